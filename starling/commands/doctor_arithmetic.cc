// Build and arithmetic: the parts of doctor that use torch.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/cpu/Utils.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <string>
#include <utility>

#include "starling/base/physical_memory.h"
#include "starling/commands/doctor_parts.h"
#include "starling/run/choice/gemm_measurement.h"
#include "starling/telemetry/text_style.h"

namespace starling::doctor {
namespace {

void measure_products(Findings& out) {
  constexpr int64_t kN = 1024;
  const GemmComparison fp32 = measure_gemm(kN);
  const auto report = [&out](const std::string& key, std::string name, const GemmMeasurement& measured) {
    out.number(
        key + "_gflops", std::move(name), measured.gflops,
        fmt::format("{:.0f} GFLOP/s, relative error {:.1e}", measured.gflops, measured.relative_error));
    out.number(key + "_error", "", measured.relative_error, "");
  };
  report("gemm_fp32_mkl", "fp32 product, MKL", fp32.mkl);
  report("gemm_fp32_onednn", "fp32 product, oneDNN", fp32.onednn);
  const at::Tensor a = at::randn({kN, kN}).to(at::kBFloat16), b = at::randn({kN, kN}).to(at::kBFloat16);
  at::Tensor c = at::empty({kN, kN}, at::kBFloat16);
  const double rate = 2.0 * kN * kN * kN / best_seconds([&] { at::mm_out(c, a, b); }, 5) / 1e9;
  out.number("gemm_bf16_gflops", "bf16 product", rate, fmt::format("{:.0f} GFLOP/s", rate));
  if (fp32.onednn.relative_error > kFp32Error) {
    out.problems.push_back(
        {fmt::format("oneDNN's fp32 products round to less than fp32 on this CPU (relative error {:.1e})",
                     fp32.onednn.relative_error),
         "nothing to do: Starling computes by MKL here; for speed use --precision bf16", false});
  }
}

void measure_bandwidth(Findings& out) {
  constexpr int64_t kBytes = int64_t{256} << 20;  // larger than most caches
  if (meminfo("MemAvailable") < 4 * static_cast<uint64_t>(kBytes)) return;
  const at::Tensor from = at::ones({kBytes / 4});
  at::Tensor to = at::zeros({kBytes / 4});
  const double rate = 2.0 * kBytes / best_seconds([&] { to.copy_(from); }, 5) / 1e9;
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
