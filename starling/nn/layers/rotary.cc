#include "starling/nn/layers/rotary.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

namespace starling {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct HeadSizes {
  int64_t n, t, kv, each, d;  // `each` queries share one of the `kv` keys
};

HeadSizes head_sizes(const at::Tensor& q, const at::Tensor& k, int64_t d) {
  return {q.size(0), q.size(1), k.size(2) / d, q.size(2) / k.size(2), d};
}

// Returns x as [n, t, kv, queries per key, d].
at::Tensor by_head(const at::Tensor& x, const HeadSizes& s) {
  return x.reshape({s.n, s.t, s.kv, x.size(2) / (s.kv * s.d), s.d});
}

// Returns queries (0), keys (1) or values (2) of qkv as [n, t, kv, queries per key, d].
at::Tensor part_of(const at::Tensor& qkv, const HeadSizes& s, int64_t part) {
  return qkv.view({s.n, s.t, 3, s.kv, s.each, s.d}).select(2, part);
}

// Writes the turned pairs of x, [..., d], to `out`, whose shape x is broadcast to.
void turn(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& out) {
  const int64_t half = out.size(-1) / 2;
  const at::Tensor all = x.expand_as(out);
  const at::Tensor first = all.narrow(-1, 0, half), second = all.narrow(-1, half, half);
  at::Tensor to_first = out.narrow(-1, 0, half), to_second = out.narrow(-1, half, half);
  at::mul_out(to_first, first, cos);
  to_first.addcmul_(second, sin, -1);
  at::mul_out(to_second, second, cos);
  to_second.addcmul_(first, sin);
}

struct RotatedQkv : torch::autograd::Function<RotatedQkv> {
  static at::Tensor forward(AutogradContext* saved, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const at::Tensor& cos, const at::Tensor& sin) {
    const HeadSizes s = head_sizes(q, k, 2 * cos.size(-1));
    const at::Tensor qkv = at::empty({s.n, s.t, 3 * q.size(2)}, q.options());
    turn(by_head(q, s), cos, sin, part_of(qkv, s, 0));
    turn(by_head(k, s), cos, sin, part_of(qkv, s, 1));
    part_of(qkv, s, 2).copy_(by_head(v, s).expand({s.n, s.t, s.kv, s.each, s.d}));
    saved->save_for_backward({cos, sin});
    saved->saved_data["kv"] = s.kv;
    return qkv;
  }

  static variable_list backward(AutogradContext* saved, const variable_list& gradients) {
    const variable_list angles = saved->get_saved_variables();
    const at::Tensor &cos = angles[0], back = angles[1].neg();
    const at::Tensor dqkv = gradients[0].contiguous();
    const int64_t d = 2 * cos.size(-1), kv = saved->saved_data["kv"].toInt(), width = dqkv.size(2) / 3;
    const HeadSizes s{dqkv.size(0), dqkv.size(1), kv, width / (kv * d), d};
    const at::Tensor dq = at::empty({s.n, s.t, width}, dqkv.options());
    const at::Tensor dk = at::empty({s.n, s.t, kv * d}, dqkv.options());
    turn(part_of(dqkv, s, 0), cos, back, by_head(dq, s));
    turn(part_of(dqkv, s, 1).sum(3, /*keepdim=*/true), cos, back, by_head(dk, s));
    return {dq, dk, part_of(dqkv, s, 2).sum(3).view({s.n, s.t, kv * d}), {}, {}};
  }
};

// Returns the angles of the positions of x [n, t, width] as [t, 1, 1, d/2], in the type and on the device of
// x.
at::Tensor angles_of(const at::Tensor& table, const at::Tensor& x) {
  return table.narrow(0, 0, x.size(1)).to(x.device(), x.scalar_type()).unsqueeze(1).unsqueeze(1);
}

}  // namespace

RotaryTable::RotaryTable(int64_t tokens, int64_t head_width, double theta) {
  const at::Tensor exponents = at::arange(0, head_width, 2, at::kFloat) / head_width;
  const at::Tensor frequencies = at::pow(at::Scalar(theta), exponents).reciprocal();
  const at::Tensor angles = at::arange(tokens, at::kFloat).unsqueeze(1) * frequencies;
  cos = angles.cos();
  sin = angles.sin();
}

at::Tensor rotated_qkv(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const RotaryTable& table) {
  return RotatedQkv::apply(q, k, v, angles_of(table.cos, q), angles_of(table.sin, q));
}

at::Tensor rotated_qkv_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const RotaryTable& table) {
  const at::Tensor cos = angles_of(table.cos, q), sin = angles_of(table.sin, q);
  const HeadSizes s = head_sizes(q, k, 2 * cos.size(-1));
  const auto turned = [&](const at::Tensor& x) {
    const std::vector<at::Tensor> halves = x.chunk(2, -1);
    return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
  };
  const auto flat = [&](const at::Tensor& x) {
    return x.expand({s.n, s.t, s.kv, s.each, s.d}).reshape({s.n, s.t, q.size(2)});
  };
  return at::cat({flat(turned(by_head(q, s))), flat(turned(by_head(k, s))), flat(by_head(v, s))}, 2);
}

}  // namespace starling
