#include "starling/comm/collective/tcp_all_reduce.h"

#include <vector>

#include "starling/comm/collective/staging.h"
#include "starling/comm/collective/tcp_all_gather.h"
#include "starling/comm/reduce_kernels.h"

namespace starling {
namespace {

void small(RemoteTeam& team, void* data, size_t count, const Elements& elements) {
  const size_t bytes = count * size_of(elements.type);
  std::byte* all = team.scratch(bytes * static_cast<size_t>(team.size()));
  tcp_doubling_all_gather(team, data, all, bytes);
  std::vector<const void*> sources;
  for (int i = 0; i < team.size(); ++i) sources.push_back(all + static_cast<size_t>(i) * bytes);
  void* const destinations[1] = {data};
  Reduction job;
  job.sources = sources;
  job.destinations = destinations;
  job.count = count;
  job.type = elements.type;
  job.op = summed(elements.op);
  job.divisor = elements.divisor;
  reduce(job);
}

}  // namespace

void tcp_all_reduce(RemoteTeam& team, void* data, size_t count, const Elements& elements) {
  if (count * size_of(elements.type) <= kSmallRemoteBytes) return small(team, data, count, elements);
  std::vector<Bytes> parts;
  std::vector<ConstBytes> inputs;
  for (int i = 0; i < team.size(); ++i) {
    const Slice slice = slice_of(count, team.size(), i, 64 / size_of(elements.type));
    auto* at = static_cast<std::byte*>(data) + slice.begin * size_of(elements.type);
    parts.emplace_back(at, slice.count() * size_of(elements.type));
    inputs.emplace_back(parts.back());
  }
  tcp_reduce_scatter(team, inputs, parts[team.me()].data(), elements);
  tcp_ring_all_gather(team, parts);
}

}  // namespace starling
