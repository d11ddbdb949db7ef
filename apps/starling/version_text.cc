// CMake compiles the commit into this file only, so that a new commit recompiles nothing else.
#include "apps/starling/version_text.h"

#include <ATen/Version.h>
#include <fmt/format.h>
#include <torch/version.h>

#include "starling/base/isa.h"

namespace starling {
namespace {

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::kBaseline:
      return "baseline";
    case Isa::kAvx2:
      return "AVX2";
    case Isa::kAvx512:
      return "AVX-512";
  }
  return "unknown";
}

}  // namespace

std::string build_version() {
  return STARLING_VERSION;
}

std::string build_commit() {
  return STARLING_COMMIT;
}

std::string build_date() {
  return STARLING_COMMIT_DATE;
}

std::string version_text() {
#ifdef __clang__
  const char* compiler = "clang " __clang_version__;
#else
  const char* compiler = "g++ " __VERSION__;
#endif
  return fmt::format(
      "starling {}\ncommit           {}\nlibtorch         {}\ncompiler         {}\n"
      "instruction set  {} (libtorch: {})",
      build_version(), build_commit(), TORCH_VERSION, compiler, name_of(best_isa()),
      at::get_cpu_capability());
}

}  // namespace starling
