// Reads state.json of a checkpoint, also with numbers that no run writes.
#include "starling/train/checkpoint_scalars.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

namespace starling {
namespace {

using nlohmann::json;

CheckpointScalars some_scalars() {
  CheckpointScalars scalars;
  scalars.step = 7, scalars.total_steps = 100, scalars.epoch = 1, scalars.batches = 7;
  scalars.seed = ~uint64_t{0};
  scalars.losses = {0.5, std::nan("")};
  scalars.choices = {{"gemm", "mkl"}};
  return scalars;
}

TEST(CheckpointScalars, AreReadAsTheyWereWritten) {
  const std::string text = write_checkpoint_scalars(some_scalars());
  const CheckpointScalars read = parse_checkpoint_scalars("state.json", text);
  EXPECT_EQ(read.step, 7);
  EXPECT_EQ(read.seed, ~uint64_t{0});
  EXPECT_TRUE(std::isnan(read.losses.at(1)));
  EXPECT_EQ(write_checkpoint_scalars(read), text);
}

// A resumed run would count on from such a number, and would overflow or read before its data.
TEST(CheckpointScalars, CountsThatNoRunReachesAreRefused) {
  for (const char* name : {"step", "total_steps", "epoch", "batches"}) {
    for (const int64_t wrong : {int64_t{-1}, INT64_MAX}) {
      json all = json::parse(write_checkpoint_scalars(some_scalars()));
      all[name] = wrong;
      EXPECT_THROW(parse_checkpoint_scalars("state.json", all.dump()), json::exception) << name << wrong;
    }
  }
}

}  // namespace
}  // namespace starling
