#include "starling/spec/mesh.h"

#include <fmt/format.h>

#include <charconv>

#include "starling/base/check.h"
#include "starling/base/error.h"

namespace starling {
namespace {

constexpr const char* kKey = "train.mesh";

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw ConfigError(
      kKey,
      fmt::format(
          "\"{}\" is not a mesh: {}. Write for example replica=2,stage=2 (axes: replica, stage, tensor)",
          text, why));
}

struct Axis {
  std::string name;
  int64_t size = 0;
};

Axis parse_axis(const std::string& text, const std::string& part) {
  const size_t equals = part.find('=');
  if (equals == std::string::npos) refuse(text, "\"" + part + "\" lacks =");
  Axis axis{part.substr(0, equals), 0};
  const char* end = part.data() + part.size();
  const auto [stop, error] = std::from_chars(part.data() + equals + 1, end, axis.size);
  if (error != std::errc() || stop != end || axis.size < 1 || axis.size > 65536)
    refuse(text, "\"" + part + "\" needs a number from 1 to 65536");
  return axis;
}

// Parses the axes. An axis that is not named has size 1.
MeshSpec named_axes(const std::string& text, bool& replica_named) {
  MeshSpec mesh;
  for (size_t begin = 0; begin < text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    const Axis axis = parse_axis(text, text.substr(begin, comma - begin));
    if (axis.name == "replica") {
      mesh.replica = axis.size;
      replica_named = true;
    } else if (axis.name == "stage") {
      mesh.stage = axis.size;
    } else if (axis.name == "tensor") {
      mesh.tensor = axis.size;
    } else {
      refuse(text, "there is no axis \"" + axis.name + "\"");
    }
    begin = comma + 1;
  }
  return mesh;
}

}  // namespace

int64_t ranks_named(const std::string& text) {
  bool replica_named = false;
  return named_axes(text, replica_named).ranks();
}

MeshSpec parse_mesh(const std::string& text, int64_t ranks) {
  bool replica_named = false;
  MeshSpec mesh = named_axes(text, replica_named);
  const int64_t others = mesh.stage * mesh.tensor;
  if (!replica_named && ranks % others == 0) mesh.replica = ranks / others;
  if (mesh.ranks() != ranks) {
    throw ConfigError(
        kKey, fmt::format("replica={} x stage={} x tensor={} needs {} ranks, but there are {}: use -n {}",
                          mesh.replica, mesh.stage, mesh.tensor, mesh.ranks(), ranks, mesh.ranks()));
  }
  return mesh;
}

MeshPlace place_of(const MeshSpec& mesh, int rank) {
  STARLING_CHECK(0 <= rank && rank < mesh.ranks(), "rank {} of a mesh of {}", rank, mesh.ranks());
  const int stages = static_cast<int>(mesh.stage), slices = static_cast<int>(mesh.tensor);
  const int model = stages * slices;  // ranks of a replica
  MeshPlace place;
  place.replica = rank / model;
  place.stage = rank % model / slices;
  place.tensor = rank % slices;
  for (int r = 0; r < mesh.replica; ++r) place.replica_ranks.push_back(r * model + rank % model);
  for (int s = 0; s < stages; ++s)
    place.stage_ranks.push_back(place.replica * model + s * slices + place.tensor);
  for (int t = 0; t < slices; ++t) place.tensor_ranks.push_back(rank - place.tensor + t);
  for (int m = 0; m < model; ++m) place.model_ranks.push_back(place.replica * model + m);
  return place;
}

}  // namespace starling
