#include "starling/lasso/lasso_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <system_error>

#include "starling/base/error.h"

namespace starling {
namespace {

constexpr int64_t kMostCount = int64_t{1} << 53;  // so that a resumed run can count on

[[noreturn]] void refuse_state(const std::string& what) {
  throw Error(ErrorCode::kCheckpoint,
              fmt::format("the checkpoint is damaged: {}; remove the folder to start anew", what));
}

const std::string& value_of(const JobState& state, const std::string& name) {
  const auto found = state.values.find(name);
  if (found == state.values.end()) refuse_state("it has no value \"" + name + "\"");
  return found->second;
}

int64_t count_in(const JobState& state, const std::string& name) {
  const std::string& text = value_of(state, name);
  int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count < 0 || count > kMostCount)
    refuse_state("its value \"" + name + "\" is no count");
  return count;
}

double number_in(const JobState& state, const std::string& name) {
  const std::string& text = value_of(state, name);
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (text.empty() || end != text.c_str() + text.size() || !std::isfinite(number))
    refuse_state("its value \"" + name + "\" is no finite number");
  return number;
}

void require_finite(const std::vector<double>& numbers, const std::string& name) {
  if (!std::all_of(numbers.begin(), numbers.end(), [](double x) { return std::isfinite(x); }))
    refuse_state("a number of the array \"" + name + "\" is not finite");
}

}  // namespace

void LassoState::put(CheckpointArrays& arrays, int rank) const {
  arrays.put<double>("residual", residual);
  if (rank != 0) return;
  std::vector<double> progress(weights.size());
  for (size_t j = 0; j < progress.size(); ++j) progress[j] = priorities.progress(static_cast<int64_t>(j));
  arrays.put<double>("weights", weights);
  arrays.put<double>("progress", progress);
  arrays.put<int64_t>("active", active);
}

std::map<std::string, std::string> LassoState::values() const {
  return {{"l1", fmt::format("{:a}", l1)},
          {"bound", fmt::format("{:a}", bound)},
          {"updates", std::to_string(updates)},
          {"passes", std::to_string(passes)},
          {"since_pass", std::to_string(since_pass)},
          {"since_look", std::to_string(since_look)},
          {"mass", fmt::format("{:a}", mass)},
          {"settled", fmt::format("{:a}", settled)}};
}

void LassoState::take(const JobCheckpoint& checkpoint, const JobState& state, const LassoData& data) {
  const CheckpointArrays first = checkpoint.read(state, 0);
  weights = first.get<double>("weights");
  active = first.get<int64_t>("active");
  const std::vector<double> progress = first.get<double>("progress");
  if (std::ssize(weights) != data.features || progress.size() != weights.size())
    refuse_state("an array has a wrong length");
  require_finite(weights, "weights");
  require_finite(progress, "progress");
  if (std::any_of(progress.begin(), progress.end(), [](double x) { return x < 0; }))
    refuse_state("a number of the array \"progress\" is negative");
  if (std::any_of(active.begin(), active.end(), [&](int64_t j) { return j < 0 || j >= data.features; }))
    refuse_state("the array \"active\" names no feature");
  for (size_t j = 0; j < progress.size(); ++j) priorities.set(static_cast<int64_t>(j), progress[j]);
  l1 = number_in(state, "l1");
  bound = number_in(state, "bound");
  mass = number_in(state, "mass");
  settled = number_in(state, "settled");
  rounds = state.step;
  updates = count_in(state, "updates");
  passes = count_in(state, "passes");
  since_pass = count_in(state, "since_pass");
  since_look = count_in(state, "since_look");
  residual.clear();
  for (int rank = 0; rank < state.ranks; ++rank) {
    const SampleRange range = samples_of_rank(data.samples, rank, state.ranks);
    const int64_t begin = std::max(range.begin, data.first),
                  end = std::min(range.end, data.first + data.count);
    if (begin >= end) continue;
    const std::vector<double> part = checkpoint.read(state, rank).get<double>("residual");
    if (std::ssize(part) != range.end - range.begin) refuse_state("an array has a wrong length");
    require_finite(part, "residual");
    residual.insert(residual.end(), part.begin() + (begin - range.begin), part.begin() + (end - range.begin));
  }
}

}  // namespace starling
