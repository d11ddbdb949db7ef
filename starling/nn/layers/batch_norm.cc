#include "starling/nn/layers/batch_norm.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/types.h>

#include "starling/base/error.h"

namespace starling {
namespace {

constexpr double kEps = 1e-5;
constexpr double kMomentum = 0.1;

struct SumHolder : torch::CustomClassHolder {
  explicit SumHolder(SumOverReplicas f) : sum(std::move(f)) {}
  SumOverReplicas sum;
};

// Returns the dtype of statistics: fp32 for bf16 and fp16 inputs, otherwise the input's dtype.
at::ScalarType statistics_type(const at::Tensor& x) {
  return at::isReducedFloatingType(x.scalar_type()) ? at::kFloat : x.scalar_type();
}

// The mean and biased variance [c] (of dtype statistics_type) and the count, over all replicas.
struct Moments {
  at::Tensor mean, var;
  double count = 0;
};

Moments moments_over_replicas(const at::Tensor& x, const SumOverReplicas& sum) {
  const int64_t channels = x.size(1);
  const auto type = statistics_type(x);
  const double local_count = static_cast<double>(x.numel()) / static_cast<double>(channels);
  at::Tensor sums = at::zeros({2 * channels + 1}, x.options().dtype(at::kDouble));
  if (local_count > 0) {
    const at::Tensor unused_mean = at::zeros({channels}, x.options().dtype(type));
    const at::Tensor unused_var = at::ones({channels}, x.options().dtype(type));
    auto [mean, var] = at::batch_norm_update_stats(x, unused_mean, unused_var, 0.0);
    mean = mean.to(at::kDouble);
    sums.narrow(0, 0, channels).copy_(mean * local_count);
    sums.narrow(0, channels, channels).copy_((var.to(at::kDouble) + mean * mean) * local_count);
    sums[2 * channels] = local_count;
  }
  sum(sums);
  const double count = sums[2 * channels].item<double>();
  const at::Tensor mean = sums.narrow(0, 0, channels) / count;
  const at::Tensor var = (sums.narrow(0, channels, channels) / count - mean * mean).clamp_min(0.0);
  return {mean.to(type), var.to(type), count};
}

class SyncBatchNorm : public torch::autograd::Function<SyncBatchNorm> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& mean,
                            const at::Tensor& var, double count,
                            const c10::intrusive_ptr<SumHolder>& holder) {
    const auto type = mean.scalar_type();
    ctx->save_for_backward({x, weight, mean, var});
    ctx->saved_data["count"] = count;
    ctx->saved_data["sum"] = c10::IValue::make_capsule(holder);
    return std::get<0>(at::native_batch_norm(x, weight.to(type), bias.to(type), mean, var, false, 0.0, kEps));
  }

  // With s1 = sum dy, s2 = sum dy xhat over all replicas and the count N, each channel has
  //   dx = weight / sqrt(var + eps) * (dy - s1 / N - xhat s2 / N),  dweight = local s2,  dbias = local s1.
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &mean = saved[2], &var = saved[3];
    const at::Tensor weight = saved[1].to(mean.scalar_type());
    const double count = ctx->saved_data["count"].toDouble();
    const auto holder = c10::static_intrusive_pointer_cast<SumHolder>(ctx->saved_data["sum"].toCapsule());
    const int64_t channels = x.size(1);

    auto [dx, dweight, dbias] = at::native_batch_norm_backward(grads[0], x, weight, mean, var, {}, {}, false,
                                                               kEps, {true, true, true});
    at::Tensor sums = at::cat({dbias.to(at::kDouble), dweight.to(at::kDouble)});
    holder->sum(sums);
    const at::Tensor scale = weight.to(at::kDouble) * (var.to(at::kDouble) + kEps).rsqrt_() / -count;
    const at::Tensor shift = (sums.narrow(0, 0, channels) * scale).to(mean.scalar_type());
    const at::Tensor slope = (sums.narrow(0, channels, channels) * scale).to(mean.scalar_type());
    dx.add_(std::get<0>(at::native_batch_norm(x, slope, shift, mean, var, false, 0.0, kEps)));
    const auto type = saved[1].scalar_type();
    return {dx, dweight.to(type), dbias.to(type), {}, {}, {}, {}};
  }
};

}  // namespace

BatchNorm2dImpl::BatchNorm2dImpl(int64_t channels) {
  weight = register_parameter("weight", torch::ones({channels}));
  bias = register_parameter("bias", torch::zeros({channels}));
  running_mean = register_buffer("running_mean", torch::zeros({channels}));
  running_var = register_buffer("running_var", torch::ones({channels}));
  num_batches_tracked = register_buffer("num_batches_tracked", torch::zeros({}, torch::kLong));
}

at::Tensor BatchNorm2dImpl::forward(const at::Tensor& x) {
  if (is_training()) num_batches_tracked.add_(1);
  if (!is_training() || !sum_) {
    return at::batch_norm(x, weight, bias, running_mean, running_var, is_training(), kMomentum, kEps, true);
  }
  Moments moments;
  {
    torch::NoGradGuard no_grad;
    moments = moments_over_replicas(x.detach(), sum_);
    const double unbiased = moments.count > 1 ? moments.count / (moments.count - 1) : 1.0;
    running_mean.mul_(1 - kMomentum).add_(moments.mean.to(running_mean.scalar_type()), kMomentum);
    running_var.mul_(1 - kMomentum).add_(moments.var.to(running_var.scalar_type()), kMomentum * unbiased);
  }
  return SyncBatchNorm::apply(x, weight, bias, moments.mean, moments.var, moments.count,
                              c10::make_intrusive<SumHolder>(sum_));
}

// torch::nn::Module::to would convert integer buffers too.
void BatchNorm2dImpl::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  const at::Tensor batches = num_batches_tracked.to(device, non_blocking);
  torch::nn::Module::to(device, dtype, non_blocking);
  num_batches_tracked.set_data(batches);
}

void BatchNorm2dImpl::to(torch::Dtype dtype, bool non_blocking) {
  const at::Tensor batches = num_batches_tracked.clone();
  torch::nn::Module::to(dtype, non_blocking);
  num_batches_tracked.set_data(batches);
}

void sync_batch_norm(torch::nn::Module& module, const SumOverReplicas& sum) {
  for (const auto& item : module.named_modules(std::string(), false)) {
    const torch::nn::Module* layer = item.value().get();
    if (auto* ours = dynamic_cast<BatchNorm2dImpl*>(item.value().get())) {
      ours->sum_statistics_with(sum);
    } else if (dynamic_cast<const torch::nn::BatchNorm1dImpl*>(layer) ||
               dynamic_cast<const torch::nn::BatchNorm2dImpl*>(layer) ||
               dynamic_cast<const torch::nn::BatchNorm3dImpl*>(layer)) {
      throw ConfigError(
          "model.batch_norm",
          fmt::format(
              "layer \"{}\" is libtorch's own batch norm, whose statistics cannot be synchronized; make it a "
              "starling::BatchNorm2d (starling/nn/layers/batch_norm.h) or set model.batch_norm = local",
              item.key()));
    }
  }
}

}  // namespace starling
