#include "starling/train/checkpoint_scalars.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "starling/base/json_depth.h"
#include "starling/base/json_number.h"
#include "starling/spec/print.h"
#include "starling/train/checkpoint_folder.h"

namespace starling {
namespace {

using nlohmann::json;

// Returns a count, with which a resumed run counts on.
int64_t count_of(const json& value) {
  const auto count = integer_of<int64_t>(value);
  if (count < 0 || count > int64_t{1} << 53)
    throw json::out_of_range::create(406, "a count is not from 0 to 2^53", &value);
  return count;
}

}  // namespace

std::string write_checkpoint_scalars(const CheckpointScalars& state) {
  const json all = {{"step", state.step},       {"total_steps", state.total_steps},
                    {"epoch", state.epoch},     {"batches", state.batches},
                    {"seed", state.seed},       {"losses", state.losses},
                    {"choices", state.choices}, {"config", spec_to_json(state.spec)}};
  return all.dump(2) + "\n";
}

CheckpointScalars parse_checkpoint_scalars(const std::string& path, const std::string& text) {
  const auto all = parse_shallow<json>(text, kDeepestJson);
  CheckpointScalars state;
  state.step = count_of(all.at("step"));
  state.total_steps = count_of(all.at("total_steps"));
  state.epoch = count_of(all.at("epoch"));
  state.batches = count_of(all.at("batches"));
  state.seed = integer_of<uint64_t>(all.at("seed"));
  for (const auto& loss : all.at("losses"))  // JSON has no NaN, so NaN is written as null
    state.losses.push_back(loss.is_null() ? std::numeric_limits<double>::quiet_NaN() : loss.get<double>());
  state.choices = all.at("choices").get<std::map<std::string, std::string>>();
  state.spec = spec_from_json(all.at("config"), path);
  return state;
}

}  // namespace starling
