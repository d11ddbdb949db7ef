#include "starling/base/shared_object.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <system_error>
#include <vector>

#include "starling/base/error.h"

namespace starling {
namespace {

std::string loader_error() {
  const char* text = ::dlerror();
  return text != nullptr ? text : "no reason given";
}

// Looks for the engine beside the program of a build, beside the tests of a build, and beside an installed
// program. Otherwise returns the file name alone, for which the loader searches its own path.
std::string path_of_engine(const std::string& file) {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    for (const auto& folder : {program.parent_path(), program.parent_path().parent_path()}) {
      const std::filesystem::path path = folder / "lib/starling" / file;
      if (std::filesystem::exists(path, error)) return path;
    }
  }
  return file;
}

// Restores the signal handlers. Libraries for clusters install handlers that print the stack when they are
// loaded.
class KeptSignals {
 public:
  KeptSignals() {
    for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], nullptr, &before_[i]);
  }
  ~KeptSignals() {
    for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  }
  KeptSignals(const KeptSignals&) = delete;

 private:
  static constexpr std::array<int, 6> kSignals{SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGTERM};
  std::array<struct sigaction, kSignals.size()> before_{};
};

}  // namespace

SharedObject::SharedObject(const std::string& name, const std::string& key, const std::string& remedy)
    : key_(key), path_(path_of_engine(fmt::format("lib{}.so", name))) {
  const KeptSignals kept;
  library_ = ::dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library_ == nullptr)
    throw ConfigError(key_, fmt::format("the engine cannot be loaded: {}; {}", loader_error(), remedy));
}

void* SharedObject::find(const char* function) const {
  void* found = ::dlsym(library_, function);
  if (found == nullptr)
    throw ConfigError(key_, fmt::format("{} is not an engine of Starling: {}", path_, loader_error()));
  return found;
}

}  // namespace starling
