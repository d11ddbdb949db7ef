// Build and arithmetic: the parts of doctor that see torch.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/cpu/Utils.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "starling/base/clock.h"
#include "starling/run/doctor_parts.h"
#include "starling/telemetry/text_style.h"

namespace starling::doctor {
namespace {

// Seconds of one call: the median of five after a warm-up.
double median_time(const std::function<void()>& call) {
  const SystemClock clock;
  call();
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) {
    const Nanoseconds begin = clock.now();
    call();
    times.push_back(to_seconds(clock.now() - begin));
  }
  std::nth_element(times.begin(), times.begin() + 2, times.end());
  return times[2];
}

// Sets the precision of fp32 products: "highest" is MKL, "medium" is oneDNN. Restored at the end.
class MatmulPrecision {
 public:
  explicit MatmulPrecision(const char* precision) : before_(at::globalContext().float32MatmulPrecision()) {
    at::globalContext().setFloat32MatmulPrecision(precision);
  }
  ~MatmulPrecision() {
    static constexpr const char* kNames[] = {"highest", "high", "medium"};
    at::globalContext().setFloat32MatmulPrecision(kNames[static_cast<int>(before_)]);
  }
  MatmulPrecision(const MatmulPrecision&) = delete;
  MatmulPrecision& operator=(const MatmulPrecision&) = delete;

 private:
  at::Float32MatmulPrecision before_;
};

double relative_error(const at::Tensor& got, const at::Tensor& exact) {
  return (got.to(at::kDouble) - exact).norm().item<double>() / exact.norm().item<double>();
}

void measure_products(Findings& out) {
  constexpr int64_t kN = 1024;
  const double flops = 2.0 * kN * kN * kN;
  const at::Tensor a = at::randn({kN, kN}), b = at::randn({kN, kN});
  at::Tensor c = at::empty({kN, kN});
  const at::Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
  struct Way {
    const char* precision;
    const char* key;
    const char* name;
  };
  double error_onednn = 0;
  for (const Way& way : {Way{"highest", "gemm_fp32_mkl", "fp32 product, MKL"},
                         Way{"medium", "gemm_fp32_onednn", "fp32 product, oneDNN"}}) {
    const MatmulPrecision precision(way.precision);
    const double rate = flops / median_time([&] { at::mm_out(c, a, b); }) / 1e9;
    const double error = error_onednn = relative_error(c, exact);
    out.number(std::string(way.key) + "_gflops", way.name, rate,
               fmt::format("{:.0f} GFLOP/s, relative error {:.1e}", rate, error));
    out.number(std::string(way.key) + "_error", "", error, "");
  }
  const at::Tensor a16 = a.to(at::kBFloat16), b16 = b.to(at::kBFloat16);
  at::Tensor c16 = at::empty({kN, kN}, at::kBFloat16);
  const double rate = flops / median_time([&] { at::mm_out(c16, a16, b16); }) / 1e9;
  out.number("gemm_bf16_gflops", "bf16 product", rate, fmt::format("{:.0f} GFLOP/s", rate));
  if (error_onednn > 1e-5) {
    out.problems.push_back(
        {fmt::format("oneDNN's fp32 products round to less than fp32 on this CPU (relative error {:.1e})",
                     error_onednn),
         "nothing to do: train.gemm = auto keeps MKL here; for speed use --precision bf16", false});
  }
}

void measure_bandwidth(Findings& out) {
  constexpr int64_t kBytes = int64_t{256} << 20;  // beyond most caches
  if (meminfo("MemAvailable") < 4 * static_cast<uint64_t>(kBytes)) return;
  const at::Tensor from = at::ones({kBytes / 4});
  at::Tensor to = at::zeros({kBytes / 4});
  const double rate = 2.0 * kBytes / median_time([&] { to.copy_(from); }) / 1e9;
  out.number("copy_gb_per_s", "memory copy", rate,
             fmt::format("{:.1f} GB/s read and written (256 MiB)", rate));
}

}  // namespace

Findings examine_build() {
  Findings out;
  out.section.title = "build";
#ifdef __clang__
  out.text("compiler", "compiler", "clang " __VERSION__);
#else
  out.text("compiler", "compiler", "g++ " __VERSION__);
#endif
  out.text("libtorch", "libtorch", TORCH_VERSION);
  const auto one_line = [](std::string text) { return text.substr(0, text.find('\n')); };
  out.text("mkl", "MKL", one_line(at::get_mkl_version()));
  out.text("onednn", "oneDNN", one_line(at::get_mkldnn_version()));
  out.text("torch_capability", "libtorch's kernels", at::get_cpu_capability());
  return out;
}

Findings examine_arithmetic() {
  Findings out;
  out.section.title = "arithmetic";
  const at::NoGradGuard no_grad;
  out.number("threads", "threads", at::get_num_threads(), fmt::format("{}", at::get_num_threads()));
  measure_products(out);
  measure_bandwidth(out);
  return out;
}

}  // namespace starling::doctor
