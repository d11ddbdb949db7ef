#include "starling/run/rank_generators.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/parallel/replica/default_generator.h"
#include "starling/spec/mesh.h"

namespace starling {
namespace {

constexpr const char* kGenerator = "rng.torch";

MeshPlace place_of_rank(const RunSpec& spec, int rank) {
  return place_of(parse_mesh(spec.train.mesh, spec.train.ranks), rank);
}

// Returns the coordinate of a rank in the device mesh: "replica=1", or "replica=1,stage=0,tensor=1".
std::string coordinate_of(const RunSpec& spec, int rank) {
  const MeshSpec mesh = parse_mesh(spec.train.mesh, spec.train.ranks);
  const MeshPlace place = place_of_rank(spec, rank);
  std::string text = fmt::format("replica={}", place.replica);
  if (mesh.stage > 1) text += fmt::format(",stage={}", place.stage);
  if (mesh.tensor > 1) text += fmt::format(",tensor={}", place.tensor);
  return text;
}

// Returns the state of a rank in the checkpoint, or null.
const at::Tensor* state_in(const CheckpointState& checkpoint, const std::string& coordinate) {
  const auto rank = checkpoint.ranks.find(coordinate);
  if (rank == checkpoint.ranks.end()) return nullptr;
  const auto state = rank->second.find(kGenerator);
  return state == rank->second.end() ? nullptr : &state->second;
}

// Returns whether the checkpoint has the states of exactly the ranks of this run.
bool has_all_states(const RunSpec& spec, const CheckpointState& checkpoint) {
  int64_t states = 0;
  for (const auto& [coordinate, tensors] : checkpoint.ranks) states += tensors.contains(kGenerator) ? 1 : 0;
  if (states != spec.train.ranks) return false;
  for (int rank = 0; rank < spec.train.ranks; ++rank) {
    if (state_in(checkpoint, coordinate_of(spec, rank)) == nullptr) return false;
  }
  return true;
}

}  // namespace

void begin_generator(const RunSpec& spec, int rank, const CheckpointState* resumed) {
  if (resumed == nullptr && spec.train.ranks == 1) return;
  if (resumed != nullptr && has_all_states(spec, *resumed)) {
    const std::string coordinate = coordinate_of(spec, rank);
    const at::Tensor& state = *state_in(*resumed, coordinate);
    if (state.scalar_type() != at::kByte || state.sizes() != default_generator_state().sizes()) {
      throw Error(ErrorCode::kCheckpoint,
                  fmt::format("the checkpoint's {}/{} is not a state of libtorch's generator; give another "
                              "checkpoint by --resume PATH, or --resume never to start anew",
                              coordinate, kGenerator));
    }
    return set_default_generator_state(state.clone());
  }
  const auto replica = static_cast<uint64_t>(place_of_rank(spec, rank).replica);
  const auto step = static_cast<uint64_t>(resumed != nullptr ? resumed->step : 0);
  seed_default_generator(key_of(spec.train.seed, step, replica));
}

std::map<std::string, TensorMap> generators_of_ranks(const RunSpec& spec, int rank, Group& group) {
  const at::Tensor own = default_generator_state().contiguous();
  const size_t bytes = own.nbytes();
  const auto size = static_cast<size_t>(group.size());
  std::vector<int64_t> ranks(size, rank);
  std::vector<uint8_t> states(bytes * size);
  if (group.size() > 1) {
    const int64_t mine = rank;
    all_gather(group, &mine, ranks.data(), 1, DataType::kInt64);
    all_gather(group, own.data_ptr(), states.data(), bytes, DataType::kUint8);
  } else {
    std::memcpy(states.data(), own.data_ptr(), bytes);
  }
  std::map<std::string, TensorMap> all;
  for (size_t i = 0; i < size; ++i) {
    at::Tensor state = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
    std::memcpy(state.data_ptr(), states.data() + bytes * i, bytes);
    all[coordinate_of(spec, static_cast<int>(ranks[i]))][kGenerator] = state;
  }
  return all;
}

}  // namespace starling
