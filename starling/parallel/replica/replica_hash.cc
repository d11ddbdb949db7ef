#include "starling/parallel/replica/replica_hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include "starling/base/error.h"

namespace starling {

void check_replicas_equal(Group& group, const std::vector<HashedRange>& ranges, int64_t step) {
  if (group.size() == 1) return;
  std::vector<int64_t> own;
  for (const HashedRange& range : ranges)
    own.push_back(static_cast<int64_t>(XXH3_64bits(range.data, range.bytes)));
  std::vector<int64_t> first = own;
  broadcast(group, first.data(), first.size(), DataType::kInt64, 0);
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (own[i] == first[i]) continue;
    throw Error(
        ErrorCode::kNumeric,
        fmt::format(
            "rank {} ({}): parameter {} differs from rank 0's after step {}, so the copies differ. "
            "Likely causes are faulty memory, a wrong kernel, or a program that changed the parameter on "
            "one rank; resume from the last checkpoint (--resume auto)",
            group.rank(), group.host_of(group.rank()), ranges[i].name, step),
        group.rank());
  }
}

}  // namespace starling
