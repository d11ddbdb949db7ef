#include "starling/lbfgs/gather_vector.h"

#include "starling/lbfgs/vector_shard.h"

namespace starling {

std::vector<double> gather_vector(Group& group, int64_t elements, std::span<const double> own) {
  std::vector<double> whole(own.begin(), own.end());
  if (group.size() > 1) {
    const auto width = static_cast<size_t>(slice_width(elements, group.size()));
    std::vector<double> padded = std::move(whole);
    padded.resize(width);  // all ranks give equal counts, and only the end of the whole is padded
    whole.resize(width * static_cast<size_t>(group.size()));
    all_gather(group, padded.data(), whole.data(), width, DataType::kFp64);
  }
  whole.resize(static_cast<size_t>(elements));
  return whole;
}

}  // namespace starling
