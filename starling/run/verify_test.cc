#include "starling/run/verify.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/data/tensor_source.h"
#include "starling/testing/run_ranks.h"

namespace starling {
namespace {

class SilentSink final : public EventSink {
 public:
  void emit(const Event&) override {}
};

// A small regression on three ranks, verified; `on_bucket` is given to rank 1 alone.
VerifyReport verify_three_ranks(const decltype(AllReduceOptions::on_bucket)& on_bucket, RunSpec spec = {}) {
  torch::manual_seed(3);
  const at::Tensor x = torch::randn({48, 5}), y = x.sum(1).gt(0).to(torch::kLong);
  DataSets data{tensor_source(x, y), nullptr};
  spec.train.precision = Precision::kFp64;
  spec.train.global_batch = 12;
  spec.verify.steps = 3;
  const SyncedModelFactory factory = [](const ModelHooks&) -> ModelFactory {
    return [] {
      auto net = std::make_shared<torch::nn::SequentialImpl>(torch::nn::Linear(5, 7), torch::nn::ReLU(),
                                                             torch::nn::Linear(7, 2));
      return Model{net, [net](const at::Tensor& in) { return net->forward(in); }, cross_entropy};
    };
  };
  const SystemClock clock;
  const std::atomic<bool> stop{false};
  VerifyReport report;
  run_ranks(3, [&](const ThreadRank& self) {
    const int rank = self.rank;
    GroupSetup setup;
    setup.rank = rank;
    setup.size = self.size;
    const auto group = make_group(*self.store, setup);
    SilentSink sink;
    const Surroundings around{*group, {}, sink, clock, stop, "", nullptr, {}};
    const VerifyReport own = verify(spec, factory, data, around, rank == 1 ? on_bucket : nullptr);
    if (rank == 0) report = own;
  });
  return report;
}

TEST(Verify, PassesForAllReduce) {
  const VerifyReport report = verify_three_ranks({});
  EXPECT_TRUE(report.passed());
  ASSERT_EQ(report.deviations.size(), 4u);
  EXPECT_LT(report.deviations.front().relative, 1e-12);
}

TEST(Verify, OneFlippedBitInOneRanksGradientFails) {
  bool flipped = false;
  const VerifyReport report = verify_three_ranks([&](int64_t step, size_t, void* data, size_t) {
    if (step != 2 || flipped) return;
    flipped = true;
    static_cast<unsigned char*>(data)[6] ^= 0x08;  // a bit of the exponent's tail of the first number
  });
  EXPECT_TRUE(flipped);
  EXPECT_FALSE(report.passed());
  EXPECT_EQ(report.deviations.front().step, 2);
}

TEST(Verify, RefusesDropout) {
  RunSpec spec;
  spec.model.dropout = 0.1;
  EXPECT_THROW(verify_three_ranks({}, spec), ConfigError);
}

}  // namespace
}  // namespace starling
