// Measures fp32 matrix products of MKL and of oneDNN. `train --tune` chooses by these measurements, and
// `doctor` reports them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace starling {

// Largest relative error of a product that still counts as fp32.
constexpr double kFp32Error = 2e-6;

// The measurement of one library.
struct GemmMeasurement {
  double gflops = 0;          // geometric mean over the shapes
  double relative_error = 0;  // the maximum of |C - C64| / |C64| over the shapes, Frobenius norm
};

// The measurements of both libraries.
struct GemmComparison {
  GemmMeasurement mkl, onednn;
  // Returns "onednn" if oneDNN is faster and its relative error is at most kFp32Error, otherwise "mkl".
  std::string faster() const;
};

// Times fp32 products of `rows` rows, [rows, 1024] · [1024, 1024] and [rows, 384] · [384, 1536], through MKL
// and through oneDNN. oneDNN is switched on by setFloat32MatmulPrecision("medium"), which rounds the factors
// to bf16 on CPUs with AMX. The function uses the calling thread's ATen threads and restores the setting.
GemmComparison measure_gemm(int64_t rows);

// Makes all products of the process go through "mkl" or "onednn" from now on.
void select_gemm(const std::string& name);

// Returns the seconds of one call: the minimum of `repeats` calls after a warm-up call. Infinity if `repeats`
// is 0.
double best_seconds(const std::function<void()>& call, int repeats = 3);

}  // namespace starling
