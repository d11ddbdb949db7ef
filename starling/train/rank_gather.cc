#include "starling/train/rank_gather.h"

namespace starling {

std::vector<std::vector<double>> GroupGather::gather(const std::string&, const std::vector<double>& own) {
  const size_t count = own.size();
  std::vector<double> flat(count * static_cast<size_t>(group_.size()));
  if (group_.size() > 1) {
    all_gather(group_, own.data(), flat.data(), count, DataType::kFp64);
  } else {
    flat = own;
  }
  std::vector<std::vector<double>> all;
  for (size_t at = 0; at < flat.size(); at += count)
    all.emplace_back(flat.begin() + static_cast<ptrdiff_t>(at),
                     flat.begin() + static_cast<ptrdiff_t>(at + count));
  return all;
}

std::vector<std::vector<double>> GroupGather::gather_last(const std::vector<double>& own) {
  return gather("last", own);
}

}  // namespace starling
