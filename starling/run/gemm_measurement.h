// fp32 matrix products measured: MKL against oneDNN. What `train` chooses by and `doctor` reports.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace starling {

// The largest relative error of a product that still counts as fp32.
constexpr double kFp32Error = 2e-6;

// One measured matrix product library.
struct GemmMeasurement {
  double gflops = 0;          // geometric mean over the shapes
  double relative_error = 0;  // the largest |C - C64| / |C64| over the shapes, Frobenius norm
};

struct GemmComparison {
  GemmMeasurement mkl, onednn;
  // "onednn" where it is faster and its relative error is at most kFp32Error, else "mkl".
  std::string faster() const;
};

// Times fp32 products of a [rows, 1024] and a [rows, 384] matrix through MKL and through oneDNN's switch
// (setFloat32MatmulPrecision("medium"), which on CPUs with AMX would round the factors to bf16) on the calling thread's
// ATen threads. Restores the setting.
GemmComparison measure_gemm(int64_t rows);

// Products go through "mkl" or "onednn" from here on, in the whole process.
void select_gemm(const std::string& name);

// Seconds of one call: the fastest of `repeats` after a warm-up.
double best_seconds(const std::function<void()>& call, int repeats = 3);

}  // namespace starling
