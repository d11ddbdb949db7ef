// Tests which library is loaded, with stand-ins for the driver and for torch's CUDA code.
#include "starling/c10d/cuda_library.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "starling/testing/temp_dir.h"

namespace starling {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::string path_of_libm() {
  Dl_info info{};
  EXPECT_NE(::dladdr(::dlsym(::dlopen("libm.so.6", RTLD_NOW), "cos"), &info), 0);
  return info.dli_fname;
}

TEST(CudaLibrary, WithoutADriverNothingIsLoaded) {
  EXPECT_THAT(load_cuda_library({"libno-such-driver.so.1", ""}),
              AllOf(HasSubstr("no CUDA driver"), HasSubstr("libno-such-driver.so.1")));
}

TEST(CudaLibrary, WithADriverItIsLoadedFromTheFolder) {
  const TempDir folder;
  const CudaLibrary library{"libc.so.6", folder.path().string()};
  EXPECT_THAT(load_cuda_library(library), AllOf(HasSubstr("libtorch_cuda.so"), HasSubstr("install a torch")));
  const std::string file = folder.file("libtorch_cuda.so");
  std::filesystem::copy_file(path_of_libm(), file);
  EXPECT_EQ(::dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD), nullptr);
  EXPECT_THAT(load_cuda_library(library), IsEmpty());
  EXPECT_NE(::dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD), nullptr);
}

// torch's wheel has its CUDA code beside libtorch_cpu. NVIDIA's packages may be missing, but not that file.
TEST(CudaLibrary, TheFolderIsThatOfTorch) {
  EXPECT_THAT(load_cuda_library({"libc.so.6", ""}), Not(HasSubstr("libtorch_cuda.so: cannot open")));
}

}  // namespace
}  // namespace starling
