#include "starling/torch_testing/test_device.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <csignal>

namespace starling {
namespace {

c10::Stream other_stream() {
  return c10::impl::VirtualGuardImpl(c10::DeviceType::PrivateUse1).getStreamFromGlobalPool(test_device());
}

using TestDeviceDeathTest = testing::Test;

TEST(TestDeviceDeathTest, TheHostCannotReadOrWriteTheMemoryOfTheDevice) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const at::Tensor there = at::ones({4}).to(test_device());
  EXPECT_EXIT(std::printf("%f", static_cast<const volatile float*>(there.const_data_ptr())[0]),
              testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(static_cast<volatile float*>(there.mutable_data_ptr())[0] = 1, testing::KilledBySignal(SIGSEGV),
              "");
}

TEST(TestDevice, HasItsNameAndTwoDevices) {
  EXPECT_EQ(test_device(1).str(), "starling_test:1");
  EXPECT_EQ(at::ones({2}).to(test_device(1)).device(), test_device(1));
}

TEST(TestDevice, KernelsGiveTheResultsOfTheCpu) {
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({3, 2, 6, 6}, torch::kDouble),
                   w = torch::randn({4, 2, 3, 3}, torch::kDouble);
  const auto compute = [](const at::Tensor& x, const at::Tensor& w) {
    const at::Tensor h = at::max_pool2d(at::conv2d(x, w).relu_(), 2).flatten(1);
    at::Tensor sum = h.t().mm(h).select(0, 1) * 2;
    sum.add_(h.slice(1, 0, 3).sum());
    return at::cat({sum, h.narrow(1, 2, 2).reshape({-1})}).log_softmax(0);
  };
  const at::Tensor there = compute(x.to(test_device()), w.to(test_device()));
  EXPECT_EQ(there.device(), test_device());
  EXPECT_TRUE(at::allclose(there.cpu(), compute(x, w), 1e-12, 1e-12));
  EXPECT_EQ(at::full({}, 7, at::TensorOptions(test_device()).dtype(at::kLong)).item<int64_t>(), 7);
}

TEST(TestDevice, InPlaceOperationsOnViewsChangeTheWhole) {
  const at::Tensor there = at::zeros({3, 4}).to(test_device());
  there.select(1, 2).fill_(5);
  there.t().select(0, 1).add_(1);
  at::Tensor expected = at::zeros({3, 4});
  expected.select(1, 2).fill_(5);
  expected.select(1, 1).add_(1);
  EXPECT_TRUE(at::equal(there.cpu(), expected));
}

TEST(TestDevice, ResizingKeepsTheContent) {
  at::Tensor there = at::arange(4, at::kDouble).to(test_device());
  there.resize_({8});
  EXPECT_TRUE(at::equal(there.narrow(0, 0, 4).cpu(), at::arange(4, at::kDouble)));
}

TEST(TestDevice, BackwardComputesTheGradientsOfTheCpu) {
  const at::Device there = test_device();  // before the first backward pass
  torch::manual_seed(2);
  const at::Tensor x = torch::randn({4, 1, 5, 5}), w = torch::randn({2, 1, 3, 3});
  const auto gradient = [&](const at::Device& device) {
    at::Tensor weight = w.to(device).detach().requires_grad_(true);
    at::Tensor mean = at::zeros({2}).to(device), var = at::ones({2}).to(device);
    at::batch_norm(at::conv2d(x.to(device), weight), {}, {}, mean, var, true, 0.1, 1e-5, true)
        .exp()
        .mean()
        .backward();
    return at::cat({weight.grad().cpu().flatten(), mean.cpu(), var.cpu()});
  };
  EXPECT_TRUE(at::allclose(gradient(there), gradient(at::kCPU), 1e-6, 1e-7));
}

TEST(TestDevice, ACopyThatNobodyWaitsForHasNotHappened) {
  const at::Tensor there = at::full({3}, 4.0).to(test_device());
  const at::Tensor here = at::zeros({3});
  here.copy_(there, /*non_blocking=*/true);
  EXPECT_TRUE(at::equal(here, at::zeros({3})));
  EXPECT_GT(unfinished_work_of_test_devices(), 0u);
  const c10::impl::VirtualGuardImpl guard(test_device().type());
  guard.synchronizeStream(guard.getStream(test_device()));
  EXPECT_TRUE(at::equal(here, at::full({3}, 4.0)));
}

TEST(TestDevice, ABlockingCopyFromTheHostTakesASnapshot) {
  at::Tensor here = at::full({3}, 1.0);
  const at::Tensor blocking = here.to(test_device());
  const at::Tensor later = here.to(test_device(), at::kFloat, /*non_blocking=*/true);
  here.fill_(2);
  EXPECT_TRUE(at::equal(blocking.cpu(), at::full({3}, 1.0)));
  EXPECT_TRUE(at::equal(later.cpu(), at::full({3}, 2.0)));
}

TEST(TestDevice, AStreamSeesAnotherStreamsWorkBehindAnEventOnly) {
  const at::Tensor there = at::full({3}, 4.0).to(test_device());
  const at::Tensor without = at::zeros({3}), with = at::zeros({3});
  const c10::Stream other = other_stream();
  {
    const c10::StreamGuard on_other(other);
    without.copy_(there);  // waits for its own stream
  }
  EXPECT_FALSE(at::equal(without, at::full({3}, 4.0)));
  c10::Event written(test_device().type());
  written.record(c10::impl::VirtualGuardImpl(test_device().type()).getStream(test_device()));
  written.block(other);
  {
    const c10::StreamGuard on_other(other);
    with.copy_(there);
  }
  EXPECT_TRUE(at::equal(with, at::full({3}, 4.0)));
}

TEST(TestDevice, FreshMemoryIsNaN) {
  EXPECT_TRUE(at::empty({5}, at::TensorOptions(test_device())).cpu().isnan().all().item<bool>());
}

}  // namespace
}  // namespace starling
