#include "starling/run/loop/rank_generators.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "starling/base/keyed_random.h"
#include "starling/parallel/replica/default_generator.h"

namespace starling {
namespace {

at::Tensor state_of_seed(uint64_t seed) {
  seed_default_generator(seed);
  return default_generator_state().clone();
}

// Returns the state with which a rank of a run of `ranks` ranks goes on after step 5.
at::Tensor state_after_resuming(int64_t ranks, int rank, const CheckpointState& checkpoint) {
  RunSpec spec;
  spec.train.ranks = ranks;
  spec.train.seed = 3;
  begin_generator(spec, rank, &checkpoint);
  return default_generator_state().clone();
}

TEST(RankGenerators, StatesOfAnotherNumberOfRanksAreNotUsedAgain) {
  const KeptGenerator kept;
  CheckpointState checkpoint;
  checkpoint.step = 5;
  for (uint64_t r = 0; r < 3; ++r)
    checkpoint.ranks["replica=" + std::to_string(r)]["rng.torch"] = state_of_seed(100 + r);

  for (int rank = 0; rank < 3; ++rank)
    EXPECT_TRUE(at::equal(state_after_resuming(3, rank, checkpoint),
                          state_of_seed(100 + static_cast<uint64_t>(rank))));
  for (const int64_t ranks : {1, 2, 4}) {
    for (int rank = 0; rank < ranks; ++rank) {
      const at::Tensor seeded = state_of_seed(key_of(3, 5, static_cast<uint64_t>(rank)));
      EXPECT_TRUE(at::equal(state_after_resuming(ranks, rank, checkpoint), seeded)) << ranks << ' ' << rank;
    }
  }
  checkpoint.ranks.erase("replica=1");  // the rank was lost
  EXPECT_TRUE(at::equal(state_after_resuming(3, 0, checkpoint), state_of_seed(key_of(3, 5, 0))));
}

}  // namespace
}  // namespace starling
