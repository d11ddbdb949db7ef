#include "starling/nn/tensor_parallel/regions.h"

#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <utility>

#include "starling/base/check.h"

namespace starling {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct MapPair : torch::CustomClassHolder {
  MapPair(TensorFunction f, TensorFunction a) : forward(std::move(f)), adjoint(std::move(a)) {}
  TensorFunction forward, adjoint;
};

class LinearMap : public torch::autograd::Function<LinearMap> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const c10::intrusive_ptr<MapPair>& maps) {
    ctx->saved_data["maps"] = c10::IValue::make_capsule(maps);
    return maps->forward(x);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto maps = c10::static_intrusive_pointer_cast<MapPair>(ctx->saved_data["maps"].toCapsule());
    at::NoGradGuard no_grad;
    return {maps->adjoint(gradients[0]), {}};
  }
};

at::Tensor unchanged(const at::Tensor& x) {
  return x;
}

// Returns the parts of x along its last dimension, by rank.
std::vector<at::Tensor> column_parts(const at::Tensor& x, int size) {
  std::vector<at::Tensor> parts;
  for (int r = 0; r < size; ++r) {
    const IndexRange part = part_of_range(x.size(-1), size, r);
    parts.push_back(x.narrow(-1, part.begin, part.count()));
  }
  return parts;
}

}  // namespace

TensorFunction linear_map(TensorFunction forward, TensorFunction adjoint) {
  const auto maps = c10::make_intrusive<MapPair>(std::move(forward), std::move(adjoint));
  return [maps](const at::Tensor& x) { return LinearMap::apply(x, maps); };
}

TensorFunction enter_region(TensorGroup& group, const std::string& layer) {
  return linear_map(unchanged, [&group, layer](const at::Tensor& dy) { return group.sum(dy, layer); });
}

TensorFunction sum_region(TensorGroup& group, const std::string& layer) {
  return linear_map([&group, layer](const at::Tensor& x) { return group.sum(x, layer); }, unchanged);
}

namespace {

// Returns the two maps between a rank's part along `dim` and the whole.
std::pair<TensorFunction, TensorFunction> gather_and_split(TensorGroup& group, int64_t dim, int64_t whole,
                                                           const std::string& layer) {
  const IndexRange own = part_of_range(whole, group.size(), group.rank());
  return {[&group, dim, whole, layer](const at::Tensor& x) {
            return group.gather(x, dim < 0 ? dim + x.dim() : dim, whole, layer);
          },
          [own, dim](const at::Tensor& x) { return x.narrow(dim, own.begin, own.count()).contiguous(); }};
}

}  // namespace

TensorFunction gather_region(TensorGroup& group, int64_t dim, int64_t whole, const std::string& layer) {
  auto [gather, split] = gather_and_split(group, dim, whole, layer);
  return linear_map(std::move(gather), std::move(split));
}

TensorFunction split_region(TensorGroup& group, int64_t dim, int64_t whole, const std::string& layer) {
  auto [gather, split] = gather_and_split(group, dim, whole, layer);
  return linear_map(std::move(split), std::move(gather));
}

TensorFunction gather_samples(TensorGroup& group, const std::string& layer) {
  return linear_map(
      [&group, layer](const at::Tensor& x) { return group.gather(x, 0, x.size(0) * group.size(), layer); },
      [&group, layer](const at::Tensor& dy) { return group.sum_scatter(dy, layer); });
}

TensorFunction return_samples(TensorGroup& group, int64_t whole, const std::string& layer) {
  const auto forward = [&group, whole, layer](const at::Tensor& x) {
    const int p = group.size();
    STARLING_CHECK(x.size(0) % p == 0, "{} samples cannot be divided evenly among {} ranks", x.size(0), p);
    std::vector<int64_t> shape = x.sizes().vec();
    shape[0] /= p;
    std::vector<std::vector<int64_t>> sizes;
    for (int r = 0; r < p; ++r) {
      shape.back() = part_of_range(whole, p, r).count();
      sizes.push_back(shape);
    }
    return at::cat(group.exchange(x.chunk(p, 0), sizes, layer), -1);
  };
  const auto adjoint = [&group, layer](const at::Tensor& dy) {
    const int p = group.size();
    std::vector<int64_t> shape = dy.sizes().vec();
    shape.back() = part_of_range(dy.size(-1), p, group.rank()).count();
    const std::vector<std::vector<int64_t>> sizes(static_cast<size_t>(p), shape);
    return at::cat(group.exchange(column_parts(dy, p), sizes, layer), 0);
  };
  return linear_map(forward, adjoint);
}

}  // namespace starling
