#include "starling/comm/collective/hierarchical.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "starling/comm/collective/binomial_tree.h"
#include "starling/comm/collective/bruck.h"
#include "starling/comm/collective/by_name.h"
#include "starling/comm/collective/dissemination.h"
#include "starling/comm/collective/pairwise.h"
#include "starling/comm/collective/shm_all_gather.h"
#include "starling/comm/collective/shm_all_to_all.h"
#include "starling/comm/collective/shm_broadcast.h"
#include "starling/comm/collective/shm_direct_all_reduce.h"
#include "starling/comm/reduce/copy_bytes.h"

namespace starling {
namespace {

bool shared(const Hierarchy& h) {
  return h.local.size() > 1;
}

// Broadcasts what local rank `from` has received within its host. The other ranks of the host wait longer
// than `from` itself. If the network fails, they report the error of `from` instead of a timeout of their
// own.
void share(const Hierarchy& h, const Operation& operation, void* data, size_t bytes, int from = 0) {
  if (!shared(h)) return;
  h.local.set_extra_patience(std::chrono::seconds(3));
  shm_broadcast(h.local, operation, data, bytes, from);
  h.local.set_extra_patience({});
}

int host_count(const Hierarchy& h) {
  return static_cast<int>(h.places.hosts.size());
}

uint64_t sum_before(std::span<const uint64_t> sizes, int index) {
  return std::accumulate(sizes.begin(), sizes.begin() + index, uint64_t{0});
}

}  // namespace

void hierarchical_barrier(const Hierarchy& h, const Operation& operation) {
  if (shared(h)) h.local.enter(operation, kNowhere, false);
  if (h.leaders() != nullptr) dissemination_barrier(*h.leaders());
  if (!shared(h)) return;
  h.local.set_extra_patience(std::chrono::seconds(3));
  h.local.enter(operation, kNowhere, false);
  h.local.set_extra_patience({});
}

void hierarchical_broadcast(const Hierarchy& h, const Operation& operation, void* data) {
  const int root_host = h.places.host_of[operation.root];
  const bool is_here = root_host == h.places.my_host();
  if (is_here && shared(h)) {
    shm_broadcast(h.local, operation, data, operation.bytes, h.places.local_rank_of(operation.root));
  }
  if (h.leaders() != nullptr) binomial_broadcast(*h.leaders(), data, operation.bytes, root_host);
  if (!is_here) share(h, operation, data, operation.bytes);
}

void hierarchical_all_reduce(const Hierarchy& h, const Operation& operation, void* data, size_t count,
                             int divisor) {
  if (shared(h)) shm_all_reduce(h.local, operation, data, count, 1);
  const Elements elements{operation.type, operation.op, divisor};
  const size_t bytes = count * size_of(operation.type);
  const std::vector<Bytes> parts = divide(data, count, operation.type, bytes >= kLaneBytes ? h.lanes : 1);
  const auto mine = static_cast<size_t>(h.local.rank());
  if (mine < parts.size()) {
    const size_t part_count = parts[mine].size() / size_of(operation.type);
    if (h.all_reduce) {
      if (h.lane->size() > 1) h.all_reduce(*h.lane, parts[mine].data(), part_count, elements);
    } else {
      const Algorithm algorithm = h.choice.of(CollectiveKind::kAllReduce, host_count(h), bytes);
      all_reduce_by(algorithm, *h.lane, parts[mine].data(), part_count, elements);
    }
  }
  for (size_t i = 0; i < parts.size(); ++i)
    share(h, operation, parts[i].data(), parts[i].size(), static_cast<int>(i));
}

void hierarchical_reduce_scatter(const Hierarchy& h, const Operation& operation, const void* in, void* out,
                                 size_t count, int divisor) {
  const size_t bytes = count * size_of(operation.type);
  const auto* from = static_cast<const std::byte*>(in);
  const bool flat = h.places.hosts.size() == static_cast<size_t>(h.places.size());
  if (flat) {
    std::vector<ConstBytes> parts;
    for (int r = 0; r < h.places.size(); ++r)
      parts.emplace_back(from + static_cast<size_t>(r) * bytes, bytes);
    const uint64_t whole = bytes * static_cast<uint64_t>(h.places.size());
    return reduce_scatter_by(h.choice.of(CollectiveKind::kReduceScatter, host_count(h), whole), h.everyone,
                             parts, out, {operation.type, operation.op, divisor});
  }
  std::vector<std::byte> all(from, from + bytes * static_cast<size_t>(h.places.size()));
  hierarchical_all_reduce(h, operation, all.data(), count * static_cast<size_t>(h.places.size()), divisor);
  if (bytes > 0) copy_bytes(out, all.data() + static_cast<size_t>(h.places.rank) * bytes, bytes);
}

void hierarchical_all_gather(const Hierarchy& h, const Operation& operation, const void* in, void* out) {
  const size_t bytes = operation.bytes;
  const size_t total = bytes * static_cast<size_t>(h.places.size());
  std::vector<std::byte> turned(h.places.is_contiguous() ? 0 : total);
  std::byte* by_host = h.places.is_contiguous() ? static_cast<std::byte*>(out) : turned.data();
  std::vector<Bytes> parts;
  size_t at = 0;
  for (const auto& ranks : h.places.hosts) {
    parts.emplace_back(by_host + at, ranks.size() * bytes);
    at += ranks.size() * bytes;
  }
  std::byte* own = parts[h.places.my_host()].data();
  if (shared(h)) {
    shm_all_gather(h.local, operation, in, own, bytes);
  } else if (own != in && bytes > 0) {
    if (bytes > 0) std::memmove(own, in, bytes);
  }
  if (h.leaders() != nullptr) {
    const Algorithm chosen = h.choice.of(CollectiveKind::kAllGather, host_count(h), total);
    const bool even = std::all_of(parts.begin(), parts.end(),
                                  [&](const Bytes& part) { return part.size() == parts[0].size(); });
    all_gather_by(even || chosen != Algorithm::kBruck ? chosen : Algorithm::kRing, *h.leaders(), parts);
  }
  share(h, operation, by_host, total);
  if (h.places.is_contiguous() || bytes == 0) return;
  for (size_t host = 0; host < parts.size(); ++host) {
    for (size_t i = 0; i < h.places.hosts[host].size(); ++i) {
      copy_bytes(static_cast<std::byte*>(out) + static_cast<size_t>(h.places.hosts[host][i]) * bytes,
                 parts[host].data() + i * bytes, bytes);
    }
  }
}

namespace {

// Exchanges the parts of the ranks of one host. shm_all_to_all needs parts that lie one after another, so
// they are copied.
void local_all_to_all(const Hierarchy& h, const Operation& operation, const std::byte* in,
                      std::span<const uint64_t> in_bytes, std::byte* out,
                      std::span<const uint64_t> out_bytes) {
  std::vector<uint64_t> sent, expected;
  std::vector<std::byte> packed;
  for (const int r : h.places.local()) {
    const std::byte* part = in + sum_before(in_bytes, r);
    packed.insert(packed.end(), part, part + in_bytes[r]);
    sent.push_back(in_bytes[r]);
    expected.push_back(out_bytes[r]);
  }
  std::vector<std::byte> arrived(std::accumulate(expected.begin(), expected.end(), uint64_t{0}));
  shm_all_to_all(h.local, operation, packed.data(), sent, arrived.data(), expected);
  const std::byte* from = arrived.data();
  for (const int r : h.places.local()) {
    if (out_bytes[r] > 0) copy_bytes(out + sum_before(out_bytes, r), from, out_bytes[r]);
    from += out_bytes[r];
  }
}

// Runs Bruck's algorithm if all blocks have one size. Returns false otherwise.
// Only the owners know the sizes of their blocks, so the ranks first tell each other.
bool equal_all_to_all(const Hierarchy& h, const void* in, std::span<const uint64_t> in_bytes, void* out,
                      std::span<const uint64_t> out_bytes) {
  const auto is_first = [&](uint64_t n) { return n == in_bytes[0]; };
  const bool equal = std::all_of(in_bytes.begin(), in_bytes.end(), is_first) &&
                     std::all_of(out_bytes.begin(), out_bytes.end(), is_first);
  if (dissemination_minimum(h.everyone, equal ? 1 : 0) == 0) return false;
  bruck_all_to_all(h.everyone, in, out, in_bytes[0]);
  return true;
}

}  // namespace

void hierarchical_all_to_all(const Hierarchy& h, const Operation& operation, const void* in,
                             std::span<const uint64_t> in_bytes, void* out,
                             std::span<const uint64_t> out_bytes) {
  const int me = h.places.rank;
  if (host_count(h) == h.places.size() &&
      h.choice.of(CollectiveKind::kAllToAll, host_count(h), 0) == Algorithm::kBruck &&
      equal_all_to_all(h, in, in_bytes, out, out_bytes))
    return;
  const auto* from = static_cast<const std::byte*>(in);
  auto* to = static_cast<std::byte*>(out);
  if (shared(h)) {
    local_all_to_all(h, operation, from, in_bytes, to, out_bytes);
  } else if (in_bytes[me] > 0) {
    copy_bytes(to + sum_before(out_bytes, me), from + sum_before(in_bytes, me), in_bytes[me]);
  }
  std::vector<ConstBytes> sent;
  std::vector<Bytes> expected;
  std::vector<bool> here;
  for (int r = 0; r < h.places.size(); ++r) {
    sent.emplace_back(from + sum_before(in_bytes, r), in_bytes[r]);
    expected.emplace_back(to + sum_before(out_bytes, r), out_bytes[r]);
    here.push_back(h.places.host_of[r] == h.places.my_host());
  }
  pairwise_all_to_all(h.everyone, sent, expected, here);
}

}  // namespace starling
