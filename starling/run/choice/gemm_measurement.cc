#include "starling/run/choice/gemm_measurement.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "starling/base/clock.h"

namespace starling {
namespace {

GemmMeasurement measure_one(int64_t rows) {
  const int64_t shapes[][2] = {{1024, 1024}, {384, 1536}};
  GemmMeasurement result;
  double log_sum = 0;
  for (const auto& shape : shapes) {
    const at::Tensor a = at::randn({rows, shape[0]}), b = at::randn({shape[1], shape[0]});
    at::Tensor c = at::empty({rows, shape[1]});
    const double s = best_seconds([&] { at::mm_out(c, a, b.t()); }, 5);
    const double flops = 2.0 * static_cast<double>(rows * shape[0] * shape[1]);
    log_sum += std::log(flops / s / 1e9) / std::size(shapes);
    const at::Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble).t());
    const double error = ((c.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
    result.relative_error = std::max(result.relative_error, error);
  }
  result.gflops = std::exp(log_sum);
  return result;
}

}  // namespace

std::string GemmComparison::faster() const {
  return onednn.relative_error <= kFp32Error && onednn.gflops > mkl.gflops ? "onednn" : "mkl";
}

GemmComparison measure_gemm(int64_t rows) {
  at::NoGradGuard no_grad;
  static constexpr const char* kNames[] = {"highest", "high", "medium"};
  const char* before = kNames[static_cast<int>(at::globalContext().float32MatmulPrecision())];
  GemmComparison result;
  select_gemm("mkl");
  result.mkl = measure_one(rows);
  select_gemm("onednn");
  result.onednn = measure_one(rows);
  at::globalContext().setFloat32MatmulPrecision(before);
  return result;
}

void select_gemm(const std::string& name) {
  at::globalContext().setFloat32MatmulPrecision(name == "onednn" ? "medium" : "highest");
}

double best_seconds(const std::function<void()>& call, int repeats) {
  const SystemClock clock;
  call();
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < repeats; ++i) {
    const Nanoseconds start = clock.now();
    call();
    best = std::min(best, to_seconds(clock.now() - start));
  }
  return best;
}

}  // namespace starling
