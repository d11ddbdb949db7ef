#include "starling/nn/layers/causal_attention.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <cmath>
#include <vector>

#include "starling/nn/layers/causal_softmax.h"

// The BLAS inside libtorch (MKL in the wheels). The symbol is null if libtorch does not export it. Matrices
// are column-major, and all arguments are passed by address.
extern "C" __attribute__((weak)) void sgemm_(const char* transpose_a, const char* transpose_b, const int* m,
                                             const int* n, const int* k, const float* alpha, const float* a,
                                             const int* lda, const float* b, const int* ldb,
                                             const float* beta, float* c, const int* ldc);

namespace starling {
namespace {

constexpr int64_t kQueries = 64;
constexpr int64_t kLongest = 512;

// A row-major matrix in memory. Rows are `stride` numbers apart.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;
  Rows from(int64_t row) const { return {data + row * stride, stride}; }
};
using In = Rows<const float>;
using Out = Rows<float>;

void gemm(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha, In a, In b, float beta, Out c) {
  const int im = static_cast<int>(m), in = static_cast<int>(n), ik = static_cast<int>(k);
  const int lda = static_cast<int>(a.stride), ldb = static_cast<int>(b.stride),
            ldc = static_cast<int>(c.stride);
  sgemm_(&ta, &tb, &im, &in, &ik, &alpha, a.data, &lda, b.data, &ldb, &beta, c.data, &ldc);
}

// Computes c [rows, columns] = alpha a bᵀ for a [rows, k] and b [columns, k]. A row-major matrix is the
// transpose of what BLAS sees.
void product_nt(int64_t rows, int64_t columns, int64_t k, float alpha, In a, In b, Out c) {
  gemm('T', 'N', columns, rows, k, alpha, b, a, 0, c);
}
// Computes c [rows, columns] = alpha a b for a [rows, k] and b [k, columns].
void product_nn(int64_t rows, int64_t columns, int64_t k, float alpha, In a, In b, Out c) {
  gemm('N', 'N', columns, rows, k, alpha, b, a, 0, c);
}
// Computes c [rows, columns] = alpha aᵀ b + beta c for a [k, rows] and b [k, columns].
void product_tn(int64_t rows, int64_t columns, int64_t k, float alpha, In a, In b, float beta, Out c) {
  gemm('N', 'T', columns, rows, k, alpha, b, a, beta, c);
}

In in(Out m) {
  return {m.data, m.stride};
}

struct Sizes {
  int64_t n, t, heads, d;
  int64_t width() const { return heads * d; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(d)); }
};

Sizes sizes_of(const at::Tensor& qkv, int64_t heads) {
  return {qkv.size(0), qkv.size(1), heads, qkv.size(2) / 3 / heads};
}

// Computes one head of one sequence.
void attend(const Sizes& s, In q, In k, In v, Out p, Out y) {
  for (int64_t begin = 0; begin < s.t; begin += kQueries) {
    const int64_t end = std::min(s.t, begin + kQueries), rows = end - begin;
    const Out part = p.from(begin);
    product_nt(rows, end, s.d, s.scale(), q.from(begin), k, part);
    for (int64_t i = 0; i < rows; ++i) softmax_row(part.from(i).data, begin + i + 1, end);
    product_nn(rows, s.d, end, 1, in(part), v, y.from(begin));
  }
}

// Computes the gradients of one head, from the last block, to which every key contributes, to the first.
// `scratch` is [kQueries, t].
void attend_backward(const Sizes& s, In q, In k, In v, In p, In dy, Out dq, Out dk, Out dv, Out scratch) {
  const int64_t last = (s.t - 1) / kQueries * kQueries;
  for (int64_t begin = last; begin >= 0; begin -= kQueries) {
    const int64_t end = std::min(s.t, begin + kQueries), rows = end - begin;
    const In part = p.from(begin), up = dy.from(begin);
    const float beta = begin == last ? 0.0f : 1.0f;
    product_nt(rows, end, s.d, 1, up, v, scratch);
    for (int64_t i = 0; i < rows; ++i) softmax_gradient_row(part.from(i).data, scratch.from(i).data, end);
    product_tn(end, s.d, rows, 1, part, up, beta, dv);
    product_nn(rows, s.d, end, s.scale(), in(scratch), k, dq.from(begin));
    product_tn(end, s.d, rows, s.scale(), in(scratch), q.from(begin), beta, dk);
  }
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct CausalAttention : torch::autograd::Function<CausalAttention> {
  static at::Tensor forward(AutogradContext* saved, const at::Tensor& qkv, int64_t heads) {
    const at::Tensor x = qkv.contiguous();
    const Sizes s = sizes_of(x, heads);
    at::Tensor p = at::empty({s.n * heads, s.t, s.t}, x.options()),
               y = at::empty({s.n, s.t, s.width()}, x.options());
    const auto* from = x.const_data_ptr<float>();
    auto *weights = p.mutable_data_ptr<float>(), *to = y.mutable_data_ptr<float>();
    at::parallel_for(0, s.n * heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t h = begin; h < end; ++h) {
        const int64_t sequence = h / heads, place = h % heads * s.d, w = s.width();
        const In q{from + sequence * s.t * 3 * w + place, 3 * w};
        attend(s, q, {q.data + w, 3 * w}, {q.data + 2 * w, 3 * w}, {weights + h * s.t * s.t, s.t},
               {to + sequence * s.t * w + place, w});
      }
    });
    saved->save_for_backward({x, p});
    saved->saved_data["heads"] = heads;
    return y;
  }

  static variable_list backward(AutogradContext* saved, variable_list gradients) {
    const variable_list tensors = saved->get_saved_variables();
    const at::Tensor &x = tensors[0], &p = tensors[1];
    const int64_t heads = saved->saved_data["heads"].toInt();
    const Sizes s = sizes_of(x, heads);
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx = at::empty_like(x);
    const auto *from = x.const_data_ptr<float>(), *weights = p.const_data_ptr<float>(),
               *up = dy.const_data_ptr<float>();
    auto* to = dx.mutable_data_ptr<float>();
    at::parallel_for(0, s.n * heads, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> scratch(static_cast<size_t>(kQueries * s.t));
      for (int64_t h = begin; h < end; ++h) {
        const int64_t sequence = h / heads, place = h % heads * s.d, w = s.width();
        const In q{from + sequence * s.t * 3 * w + place, 3 * w};
        const Out dq{to + sequence * s.t * 3 * w + place, 3 * w};
        attend_backward(s, q, {q.data + w, 3 * w}, {q.data + 2 * w, 3 * w}, {weights + h * s.t * s.t, s.t},
                        {up + sequence * s.t * w + place, w}, dq, {dq.data + w, 3 * w},
                        {dq.data + 2 * w, 3 * w}, {scratch.data(), s.t});
      }
    });
    return {dx, {}};
  }
};

bool takes_blocks(const at::Tensor& qkv) {
  const int64_t t = qkv.size(1);
  return sgemm_ != nullptr && qkv.device().is_cpu() && qkv.scalar_type() == at::kFloat && qkv.numel() > 0 &&
         t <= kLongest && t % kSoftmaxLanes == 0;
}

}  // namespace

at::Tensor causal_attention(const at::Tensor& qkv, int64_t heads) {
  return takes_blocks(qkv) ? CausalAttention::apply(qkv, heads) : causal_attention_reference(qkv, heads);
}

// q, k and v are strided views of one product, and so is the fused kernel's result, so nothing is copied.
at::Tensor causal_attention_reference(const at::Tensor& qkv, int64_t heads) {
  const int64_t n = qkv.size(0), t = qkv.size(1), width = qkv.size(2) / 3;
  std::vector<at::Tensor> parts = qkv.chunk(3, 2);
  for (at::Tensor& part : parts) part = part.view({n, t, heads, width / heads}).transpose(1, 2);
  const at::Tensor y =
      at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
  return y.transpose(1, 2).reshape({n, t, width});
}

}  // namespace starling
