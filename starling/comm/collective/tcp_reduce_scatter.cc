#include "starling/comm/collective/tcp_reduce_scatter.h"

#include "starling/comm/reduce_kernels.h"

namespace starling {

void tcp_reduce_scatter(RemoteTeam& team, std::span<const ConstBytes> parts, void* out,
                        const Elements& elements) {
  const int p = team.size();
  const size_t bytes = parts[team.me()].size();
  std::byte* arrived = team.scratch(bytes * static_cast<size_t>(p));
  std::vector<const void*> sources(p);
  sources[team.me()] = parts[team.me()].data();
  for (int i = 1; i < p; ++i) {
    const int to = team.position(i), from = team.position(-i);
    team.send(to, parts[to].data(), parts[to].size());
    sources[from] = arrived + static_cast<size_t>(from) * bytes;
    team.recv(from, arrived + static_cast<size_t>(from) * bytes, bytes);
  }
  team.move();
  void* const destinations[1] = {out};
  Reduction job;
  job.sources = sources;
  job.destinations = destinations;
  job.count = bytes / size_of(elements.type);
  job.type = elements.type;
  job.op = summed(elements.op);
  job.divisor = elements.divisor;
  reduce(job);
}

}  // namespace starling
