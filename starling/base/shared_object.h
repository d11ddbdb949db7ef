// SharedObject: an engine that is loaded at run time, so that the program neither needs nor sees the library behind it (UCX, MPI).
//
// Each engine is a shared object with one C function, whose name and types the layer that uses it declares (net/ucx/plugin.h,
// comm/mpi/plugin.h); it hands out C++ interfaces, so program and engine are of one build: the request carries an ABI number that
// the engine checks.
#pragma once

#include <string>

namespace starling {

class SharedObject {
 public:
  // Loads lib<name>.so from lib/starling in or beside the folder of this program, or from where the system looks; it stays loaded
  // until the process ends. What it does to the handling of signals is undone. ConfigError naming `key`, with what the loader said
  // and `remedy`.
  SharedObject(const std::string& name, const std::string& key, const std::string& remedy);

  // The address of a function; ConfigError where there is none of that name.
  void* find(const char* function) const;
  const std::string& path() const { return path_; }

 private:
  std::string key_;
  std::string path_;
  void* library_ = nullptr;
};

}  // namespace starling
