// SharedObject loads an engine at run time, so that the program does not depend on the library of the engine
// (UCX, MPI, NCCL).
//
// Each engine is a shared object with one C function. The layer that uses the engine declares the name and
// the types of the function (net/ucx/ucx_plugin.h, comm/mpi/mpi_plugin.h, c10d/device_backends.h). The
// function makes C++ objects, so the program and the engine must belong to one build. The request contains an
// ABI number, which the engine checks.
#pragma once

#include <string>

namespace starling {

class SharedObject {
 public:
  // Loads lib<name>.so from lib/starling in the folder of this program or in its parent folder, or else from
  // the search path of the system. The library stays loaded until the process ends. Changes that the library
  // makes to signal handlers are undone. Throws ConfigError if the library cannot be loaded. The place of the
  // error is `key`, and its message has the loader's words and `remedy`.
  SharedObject(const std::string& name, const std::string& key, const std::string& remedy);

  // Returns the address of a function. Throws ConfigError if the library has no function of that name.
  void* find(const char* function) const;
  // The path, or the file name, by which the library was loaded.
  const std::string& path() const { return path_; }

 private:
  std::string key_;
  std::string path_;
  void* library_ = nullptr;
};

}  // namespace starling
