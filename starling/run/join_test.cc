// Tests starling::join() in one process. tests/embed_test.py has several.
#include "starling/run/join.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "starling/base/error.h"
#include "starling/data/tensor_source.h"

namespace starling {
namespace {

struct Net : torch::nn::Module {
  torch::nn::Linear line = register_module("line", torch::nn::Linear(2, 2));
  at::Tensor forward(const at::Tensor& x) { return line(x); }
};

std::shared_ptr<Net> make_net() {
  return std::make_shared<Net>();
}

std::shared_ptr<const Source> points() {
  const at::Tensor x = torch::linspace(-1, 1, 128).view({64, 2});
  return tensor_source(x, (x.sin().sum(1) > 0).to(torch::kLong));
}

Settings short_run() {
  return {{"train.steps", 8}, {"train.global_batch", 16}, {"train.gemm", "mkl"}};
}

TEST(Join, AWrongSettingIsAConfigError) {
  try {
    join({{"optimizer.lr", -1}});
    FAIL() << "the setting was taken";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.where(), "starling::join: optimizer.lr");
  }
  EXPECT_THROW(join({{"train.ranks", 2}}), ConfigError);
  EXPECT_THROW(join({{"exchange.name", "parameter-server"}}), ConfigError);
  EXPECT_THROW(join({{"data.source", "digits"}}), ConfigError);
}

TEST(Join, EveryExceptionOfTheTrainingIsAnError) {
  const auto fault_of = [](const Loss& loss) -> std::string {
    auto run = join(short_run());
    try {
      run.fit<Net>(make_net, loss, points());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInternal);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(fault_of([](const at::Tensor&, const at::Tensor&) -> at::Tensor {
              throw std::runtime_error("the loss is gone");
            }),
            "the loss is gone");
  EXPECT_THAT(
      fault_of([](const at::Tensor& output, const at::Tensor&) { return output.view({7, 11}).sum(); }),
      testing::HasSubstr("shape '[7, 11]' is invalid"));
  EXPECT_EQ(fault_of([](const at::Tensor&, const at::Tensor&) -> at::Tensor { throw 5; }),
            "an exception of an unknown type");
}

TEST(Join, AProcessAloneJoinsAgainAndPrintsNothing) {
  testing::internal::CaptureStdout();
  std::vector<at::Tensor> weights;
  for (int i = 0; i < 2; ++i) {
    auto run = join(short_run());
    EXPECT_FALSE(run.is_server());
    EXPECT_THROW(run.serve(), Error);
    const Trained<Net> trained = run.fit<Net>(make_net, cross_entropy, points());
    EXPECT_EQ(trained.result.steps, 8);
    weights.push_back(trained.model->line->weight.detach().clone());
  }
  EXPECT_TRUE(at::equal(weights[0], weights[1]));
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
}

TEST(Join, AnotherThreadStopsTheRun) {
  auto run = join({{"train.steps", 1'000'000'000}, {"train.global_batch", 16}});
  std::atomic<bool> begun{false};
  std::thread other([&] {
    while (!begun) std::this_thread::yield();
    run.request_stop();
  });
  FitOptions options;
  options.on_epoch([&](const EpochState&, const Evaluation&) { begun = true; });
  const RunResult result = run.fit(model<Net>(), cross_entropy, points(), nullptr, options);
  other.join();
  EXPECT_TRUE(result.interrupted);
}

TEST(Join, OpensStarlingsKindsOfData) {
  const Settings settings = {{"data.source", "digits"}, {"data.samples", 6}, {"train.global_batch", 1}};
  const auto run = join(settings, Extensions().take_data());
  EXPECT_EQ(run.data().train->size(), 6);
  EXPECT_EQ(run.data().train->info().input_shape, (std::vector<int64_t>{1, 28, 28}));
}

TEST(Join, TakesExtensions) {
  Extensions extensions;
  extensions.source("half", "half:NUMBER", [](const SourceRequest& request) {
    const at::Tensor x = torch::full({std::stoll(request.path), 2}, 0.5);
    return DataSets{tensor_source(x, x.select(1, 0)), nullptr};
  });
  const auto run = join({{"data.source", "half:6"}, {"train.global_batch", 1}}, extensions);
  EXPECT_EQ(run.data().train->size(), 6);
  EXPECT_EQ(run.data().test, nullptr);
  const auto wrong = join({{"data.source", "half:no"}, {"train.global_batch", 1}}, extensions);
  EXPECT_THROW(wrong.data(), Error);
  extensions.source("half", "half:NUMBER", nullptr);
  EXPECT_THROW(join({}, extensions), ConfigError);
}

}  // namespace
}  // namespace starling
