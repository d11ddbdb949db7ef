// Loads torch's CUDA code where it is installed. Starling links libtorch_cpu only, so that a machine without
// CUDA needs none of it. torch registers its CUDA code when libtorch_cuda is loaded.
#pragma once

#include <string>

namespace starling {

// What load_cuda_library() loads. The defaults are for programs; tests give stand-ins.
struct CudaLibrary {
  std::string driver = "libcuda.so.1";  // NVIDIA's driver
  std::string folder;                   // of libtorch_cuda.so; empty: the folder of libtorch_cpu.so
};

// Loads libtorch_cuda.so if the host has a driver. The library stays loaded until the process ends. Returns
// an empty text, or the reason why the library was not loaded. The reason is a missing driver, a torch
// without CUDA code, or the absence of a library that this code needs.
//
// Call it before the process asks torch about CUDA for the first time, for example by torch::manual_seed().
// torch keeps the first answer. A process that has loaded the library before gains nothing and loses nothing.
// Thread-safe.
std::string load_cuda_library(const CudaLibrary& library = {});

}  // namespace starling
