#include "starling/nn/layers/keyed_dropout.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <cmath>

#include "starling/base/check.h"
#include "starling/base/keyed_random.h"

namespace starling {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

uint64_t stream_of(int64_t key, uint64_t layer) {
  return mix64(static_cast<uint64_t>(key) + (layer + 1) * kGolden);
}

// An element is kept if its 32 bits are at least this number.
uint64_t threshold_of(double p) {
  return static_cast<uint64_t>(std::llround(p * 0x1p32));
}

// Processes one sample. One hash serves two elements.
template <typename T>
void drop_row(const T* in, T* out, int64_t count, uint64_t stream, uint64_t threshold,
              at::opmath_type<T> scale) {
  const auto kept = [&](const T& x, uint64_t bits) {
    return bits >= threshold ? static_cast<T>(static_cast<at::opmath_type<T>>(x) * scale) : T(0);
  };
  uint64_t state = stream;
  int64_t e = 0;
  for (; e + 1 < count; e += 2) {
    const uint64_t bits = mix64(state += kGolden);
    out[e] = kept(in[e], bits & 0xFFFFFFFFULL);
    out[e + 1] = kept(in[e + 1], bits >> 32);
  }
  if (e < count) out[e] = kept(in[e], mix64(state + kGolden) & 0xFFFFFFFFULL);
}

// Returns x, on the CPU, with some elements replaced by zeros and the others multiplied by `factor`.
at::Tensor masked(const at::Tensor& x, double p, const at::Tensor& keys, uint64_t layer, double factor) {
  const at::Tensor in = x.contiguous();
  at::Tensor out = at::empty_like(in);
  const int64_t rows = in.size(0), count = rows > 0 ? in.numel() / rows : 0;
  const int64_t* key = keys.const_data_ptr<int64_t>();
  const uint64_t threshold = threshold_of(p);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, in.scalar_type(), "keyed_dropout", [&] {
    const auto scale = static_cast<at::opmath_type<scalar_t>>(factor);
    const scalar_t* from = in.const_data_ptr<scalar_t>();
    scalar_t* to = out.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        drop_row(from + r * count, to + r * count, count, stream_of(key[r], layer), threshold, scale);
      }
    });
  });
  return out;
}

// Returns x times the mask. The gradient is dy times the mask.
at::Tensor drop(const at::Tensor& x, double p, const at::Tensor& keys, uint64_t layer) {
  const double factor = 1 / (1 - p);
  if (x.is_cpu()) return masked(x, p, keys, layer, factor);
  // The mask is drawn on the CPU. The factor is applied in the type of the arithmetic, as there.
  const at::Tensor ones = at::ones(x.sizes(), x.options().device(at::kCPU));
  return (x * masked(ones, p, keys, layer, 1).to(x.device())).mul_(factor);
}

struct KeyedDropout : torch::autograd::Function<KeyedDropout> {
  static at::Tensor forward(AutogradContext* saved, const at::Tensor& x, double p, const at::Tensor& keys,
                            int64_t layer) {
    saved->save_for_backward({keys});
    saved->saved_data["p"] = p;
    saved->saved_data["layer"] = layer;
    return drop(x, p, keys, static_cast<uint64_t>(layer));
  }

  static variable_list backward(AutogradContext* saved, variable_list gradients) {
    const at::Tensor dx =
        drop(gradients[0], saved->saved_data["p"].toDouble(), saved->get_saved_variables()[0],
             static_cast<uint64_t>(saved->saved_data["layer"].toInt()));
    return {dx, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

void check_rows(const at::Tensor& x, double p, const SampleKeys& samples) {
  STARLING_CHECK(p >= 0 && p < 1, "the dropout probability is {}, not at least 0 and below 1", p);
  const int64_t keys = samples.keys.defined() ? samples.keys.numel() : 0;
  STARLING_CHECK(x.dim() > 0 && keys == x.size(0), "dropout got {} rows, but the keys of {} samples",
                 x.dim() > 0 ? x.size(0) : 0, keys);
}

}  // namespace

at::Tensor keyed_dropout(const at::Tensor& x, double p, const SampleKeys& samples, uint64_t layer) {
  check_rows(x, p, samples);
  return KeyedDropout::apply(x, p, samples.keys.contiguous(), static_cast<int64_t>(layer));
}

at::Tensor keyed_dropout_mask_reference(const at::Tensor& x, double p, const SampleKeys& samples,
                                        uint64_t layer) {
  check_rows(x, p, samples);
  const int64_t count = x.size(0) > 0 ? x.numel() / x.size(0) : 0;
  at::Tensor mask = at::zeros({x.size(0), count}, at::kDouble);
  for (int64_t r = 0; r < x.size(0); ++r) {
    for (int64_t e = 0; e < count; ++e) {
      const uint64_t place = static_cast<uint64_t>(e) / 2 + 1;
      const uint64_t both = mix64(stream_of(samples.keys[r].item<int64_t>(), layer) + place * kGolden);
      const double u = static_cast<double>(e % 2 == 0 ? both & 0xFFFFFFFFULL : both >> 32) * 0x1p-32;
      if (u >= p) mask[r][e] = 1 / (1 - p);
    }
  }
  return mask.view(x.sizes()).to(x.scalar_type());
}

}  // namespace starling
