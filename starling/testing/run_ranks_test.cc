#include "starling/testing/run_ranks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>

#include "starling/base/error.h"

namespace starling {
namespace {

using std::chrono::seconds;

TEST(RunRanks, EveryRankRunsOnceAndMeetsTheOthersInTheStore) {
  std::atomic<int> sum{0};
  run_ranks(4, [&](const ThreadRank& self) {
    self.store->put("rank" + std::to_string(self.rank), std::to_string(self.rank * 10));
    const int next = (self.rank + 1) % self.size;
    sum += std::stoi(self.store->get("rank" + std::to_string(next), seconds(30)));
  });
  EXPECT_EQ(sum, 60);
}

TEST(RunRanks, ThrowsWhatTheFirstFailingRankThrew) {
  try {
    run_ranks(3, [](const ThreadRank& self) {
      if (self.rank == 1) {
        self.store->put("failing", "now");
        throw CommError("rank 1 fails", 1);
      }
      self.store->get("never", Milliseconds(200));  // fails later with a TimeoutError, which must not win
    });
    FAIL() << "nothing was thrown";
  } catch (const CommError& error) {
    EXPECT_EQ(error.peer(), 1);
    EXPECT_STREQ(error.what(), "rank 1 fails");
  }
}

TEST(RunRanks, TheOthersFinishBeforeItThrows) {
  std::atomic<int> finished{0};
  EXPECT_THROW(run_ranks(2,
                         [&](const ThreadRank& self) {
                           if (self.rank == 0) {
                             self.store->put("thrown", "");
                             throw Error(ErrorCode::kInternal, "stop");
                           }
                           self.store->get("thrown", seconds(30));
                           ++finished;
                         }),
               Error);
  EXPECT_EQ(finished, 1);
}

}  // namespace
}  // namespace starling
