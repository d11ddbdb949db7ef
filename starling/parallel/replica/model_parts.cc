#include "starling/parallel/replica/model_parts.h"

#include <algorithm>

namespace starling {

double sum_over_parts(const ModelParts& parts, double own) {
  if (parts.group == nullptr || parts.group->size() == 1) return own;
  all_reduce(*parts.group, &own, 1, DataType::kFp64, ReduceOp::kSum);
  return own;
}

void sum_over_slices(const ModelParts& parts, const std::vector<NamedTensor>& parameters,
                     std::vector<LayerSquares>& squares) {
  if (parts.slices == nullptr || parts.slices->size() == 1) return;
  std::vector<LayerSquares*> sliced;
  std::vector<double> sums;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (std::find(parts.sliced.begin(), parts.sliced.end(), parameters[i].name) == parts.sliced.end())
      continue;
    sliced.push_back(&squares[i]);
    sums.insert(sums.end(), {squares[i].parameter, squares[i].update});
  }
  if (sliced.empty()) return;
  all_reduce(*parts.slices, sums.data(), sums.size(), DataType::kFp64, ReduceOp::kSum);
  for (size_t k = 0; k < sliced.size(); ++k) *sliced[k] = {sums[2 * k], sums[2 * k + 1]};
}

bool counts_here(const ModelParts& parts, const std::string& parameter) {
  const auto& names = parts.counted_elsewhere;
  return std::find(names.begin(), names.end(), parameter) == names.end();
}

const std::string& name_of_part(const ModelParts& parts, const std::vector<NamedTensor>& parameters) {
  for (const NamedTensor& p : parameters) {
    if (counts_here(parts, p.name)) return p.name;
  }
  return parameters.front().name;
}

std::vector<FlatRange> ranges_counted_elsewhere(const ModelParts& parts,
                                                const std::vector<NamedTensor>& parameters,
                                                const FlatLayout& layout) {
  std::vector<FlatRange> ranges;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto size = static_cast<size_t>(parameters[i].tensor.numel());
    if (!counts_here(parts, parameters[i].name))
      ranges.emplace_back(layout.offset[i], layout.offset[i] + size);
  }
  return ranges;
}

std::vector<FlatRange> pieces_outside(size_t begin, size_t end, std::vector<FlatRange> holes) {
  std::sort(holes.begin(), holes.end());
  std::vector<FlatRange> pieces;
  for (const auto& [from, to] : holes) {
    if (to <= begin || from >= end) continue;
    if (from > begin) pieces.emplace_back(begin, from);
    begin = to;
  }
  if (begin < end) pieces.emplace_back(begin, end);
  return pieces;
}

}  // namespace starling
