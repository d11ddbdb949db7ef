#include "starling/parallel/pipeline/cut_ranges.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "starling/base/error.h"
#include "starling/codec/symmetric_int8.h"
#include "starling/parallel/replica/replica.h"

namespace starling {
namespace {

constexpr std::string_view kActivationMark = ".activation", kGradientMark = ".gradient";

std::string entry_name(const CutTensor& of) {
  return fmt::format("cut{}{}{}", of.block, of.gradient ? kGradientMark : kActivationMark, of.index);
}

// Parses what entry_name() returns.
CutTensor cut_tensor_of(const std::string& name) {
  CutTensor of;
  of.gradient = name.find(kGradientMark) != std::string::npos;
  const std::string_view mark = of.gradient ? kGradientMark : kActivationMark;
  const size_t at = name.find(mark);
  if (!name.starts_with("cut") || at == std::string::npos)
    throw Error(ErrorCode::kCheckpoint, fmt::format("{} is not the name of a range of a cut", name));
  of.block = std::strtoull(name.c_str() + 3, nullptr, 10);
  of.index = std::strtoull(name.c_str() + at + mark.size(), nullptr, 10);
  return of;
}

std::string entry_prefix(int replica) {
  return fmt::format("range@{}/", replica);
}

}  // namespace

void CutRanges::begin_step(int64_t step) {
  in_step_ = true;
  if (options_.every > 0 && (step - 1) % options_.every == 0) restart();
  for (auto& [of, tensor] : tensors_) {
    tensor.seen = false;
    tensor.values = tensor.saturated = 0;
  }
}

void CutRanges::restart() {
  for (auto& [of, tensor] : tensors_) {
    tensor.recorded = 0;
    tensor.left = options_.steps;
  }
}

void CutRanges::end_step() {
  in_step_ = false;
  for (auto& [of, tensor] : tensors_) {
    if (!tensor.seen || tensor.left == 0) continue;
    if (tensor.left == 1 && tensor.recorded < kSmallestRange) continue;
    if (--tensor.left == 0) tensor.range = tensor.recorded;
  }
}

float CutRanges::range_of(const CutTensor& of) const {
  const auto tensor = tensors_.find(of);
  const bool ready = tensor != tensors_.end() && tensor->second.left == 0;
  return ready && tensor->second.range >= kSmallestRange ? tensor->second.range : 0;
}

void CutRanges::record(const CutTensor& of, std::span<const float> values) {
  if (!in_step_) return;
  Calibration& tensor = tensors_.try_emplace(of, Calibration{.left = options_.steps}).first->second;
  tensor.recorded = std::max(tensor.recorded, magnitude_percentile(values, options_.percentile));
  tensor.seen = true;
}

void CutRanges::count(const CutTensor& of, size_t values, size_t saturated) {
  const auto tensor = tensors_.find(of);
  if (!in_step_ || tensor == tensors_.end()) return;
  tensor->second.values += values;
  tensor->second.saturated += saturated;
}

bool CutRanges::exceeds_limit() const {
  const double allowed = 100 - options_.percentile + options_.limit;  // percent
  return std::any_of(tensors_.begin(), tensors_.end(), [&](const auto& item) {
    const Calibration& tensor = item.second;
    return 100 * static_cast<double>(tensor.saturated) > allowed * static_cast<double>(tensor.values);
  });
}

std::map<std::string, at::Tensor> CutRanges::state(int replica) const {
  std::map<std::string, at::Tensor> state;
  for (const auto& [of, tensor] : tensors_)
    state[entry_prefix(replica) + entry_name(of)] =
        at::tensor({static_cast<double>(tensor.range), static_cast<double>(tensor.recorded),
                    static_cast<double>(tensor.left)},
                   at::kDouble);
  return state;
}

void CutRanges::load(const std::map<std::string, at::Tensor>& state, int replica) {
  tensors_.clear();
  const std::string prefix = entry_prefix(replica);
  for (const auto& item : state) {
    const std::string& name = item.first;
    if (!name.starts_with(prefix)) continue;
    const at::Tensor words = fitting(state, name, at::empty({3}, at::kDouble)).to(at::kDouble).contiguous();
    const auto* word = words.const_data_ptr<double>();
    tensors_[cut_tensor_of(name.substr(prefix.size()))] = {.range = static_cast<float>(word[0]),
                                                           .recorded = static_cast<float>(word[1]),
                                                           .left = static_cast<int64_t>(word[2])};
  }
}

}  // namespace starling
