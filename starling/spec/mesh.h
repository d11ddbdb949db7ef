// The mesh of ranks as one validated value: replica × stage × tensor.
#pragma once

#include <cstdint>
#include <string>

namespace starling {

struct MeshSpec {
  int64_t replica = 1;
  int64_t stage = 1;
  int64_t tensor = 1;
  int64_t ranks() const { return replica * stage * tensor; }
  bool operator==(const MeshSpec&) const = default;
};

// "replica=2,stage=2"; axes that are not named are 1, but the replica axis, when it is not named, takes what the other axes
// leave of `ranks`. Empty: replica = ranks. Errors: ConfigError ("train.mesh") that shows the form, or where the axes do not
// multiply to `ranks`.
MeshSpec parse_mesh(const std::string& text, int64_t ranks);

}  // namespace starling
