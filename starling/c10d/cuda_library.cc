#include "starling/c10d/cuda_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <cstring>
#include <filesystem>

namespace starling {
namespace {

std::string reason_of_loader() {
  const char* text = ::dlerror();
  return text != nullptr ? text : "no reason given";
}

// Returns the folder of the library that has torch's code for the CPU.
std::filesystem::path folder_of_torch() {
  const char* found = nullptr;
  const auto visit = [](dl_phdr_info* library, size_t, void* into) {
    if (std::strstr(library->dlpi_name, "/libtorch_cpu.so") == nullptr) return 0;
    *static_cast<const char**>(into) = library->dlpi_name;
    return 1;
  };
  ::dl_iterate_phdr(visit, &found);
  return found != nullptr ? std::filesystem::path(found).parent_path() : std::filesystem::path();
}

}  // namespace

std::string load_cuda_library(const CudaLibrary& library) {
  // The driver first: libtorch_cuda is large, and is of no use without it.
  if (::dlopen(library.driver.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) == nullptr)
    return fmt::format("there is no CUDA driver on this host: {}", reason_of_loader());
  const std::filesystem::path folder =
      library.folder.empty() ? folder_of_torch() : std::filesystem::path(library.folder);
  if (::dlopen((folder / "libtorch_cuda.so").c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE) == nullptr)
    return fmt::format(
        "torch's CUDA code cannot be loaded: {}; install a torch with CUDA and the NVIDIA "
        "packages that it names",
        reason_of_loader());
  return "";
}

}  // namespace starling
