#include "starling/parallel/replica/replica_hash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starling/base/error.h"
#include "starling/testing/join_group.h"
#include "starling/testing/run_ranks.h"

namespace starling {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ReplicaHash, NamesTheRankAndTheParameterThatParted) {
  run_ranks(3, [&](const ThreadRank& self) {
    const int rank = self.rank;
    const auto group = join_group(*self.store, rank, self.size);
    std::vector<float> first(100, 1.0f), second(100, 2.0f);
    const auto ranges = [&] {
      return std::vector<HashedRange>{{"first", reinterpret_cast<const std::byte*>(first.data()), 400},
                                      {"second", reinterpret_cast<const std::byte*>(second.data()), 400}};
    };
    check_replicas_equal(*group, ranges(), 6);
    if (rank == 2) second[57] = 2.0000002f;
    try {
      check_replicas_equal(*group, ranges(), 7);
      EXPECT_NE(rank, 2);
    } catch (const Error& error) {
      EXPECT_EQ(rank, 2);
      EXPECT_EQ(error.rank(), 2);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 2"), HasSubstr("second"), HasSubstr("step 7")));
    }
  });
}

}  // namespace
}  // namespace starling
