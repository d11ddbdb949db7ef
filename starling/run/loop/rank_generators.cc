#include "starling/run/loop/rank_generators.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/parallel/replica/default_generator.h"
#include "starling/run/ranks/rank_coordinates.h"
#include "starling/spec/mesh.h"

namespace starling {
namespace {

constexpr const char* kGenerator = "rng.torch";

MeshPlace place_of_rank(const RunSpec& spec, int rank) {
  return place_of(parse_mesh(spec.train.mesh, spec.train.ranks), rank);
}

}  // namespace

void begin_generator(const RunSpec& spec, int rank, const CheckpointState* resumed) {
  if (resumed == nullptr && spec.train.ranks == 1) return;
  if (resumed != nullptr && has_tensor_of_every_rank(spec, *resumed, kGenerator)) {
    const std::string coordinate = coordinate_of_rank(spec, rank);
    const at::Tensor& state = *tensor_of_rank(*resumed, coordinate, kGenerator);
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
    all[coordinate_of_rank(spec, static_cast<int>(ranks[i]))][kGenerator] = state;
  }
  return all;
}

}  // namespace starling
