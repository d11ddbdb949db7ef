#include "starling/comm/collective/ring.h"

#include <algorithm>
#include <vector>

#include "starling/comm/reduce/copy_bytes.h"

namespace starling {
namespace {

// Runs both halves of an all-reduce at once. The sums are made in place.
// A finished segment replaces a sum of this rank only after that sum has reached the next rank, because the
// finished segment contains it.
void pass_segments(RemoteTeam& team, const std::vector<Bytes>& parts, const Elements& elements) {
  const int p = team.size();
  const int k = ring_segments(parts);
  const size_t messages = 2 * static_cast<size_t>(p - 1) * static_cast<size_t>(k);
  std::vector<std::vector<Bytes>> segments;
  segments.reserve(parts.size());
  size_t longest = 0;
  for (const Bytes part : parts) {
    segments.push_back(divide(part.data(), part.size() / size_of(elements.type), elements.type, k));
    for (const Bytes segment : segments.back()) longest = std::max(longest, segment.size());
  }
  const auto target = [&](size_t message) {
    const int step = static_cast<int>(message) / k;
    const int part = team.position(step < p - 1 ? -step - 2 : p - 2 - step);
    return segments[part][message % static_cast<size_t>(k)];
  };
  std::byte* const arriving = team.scratch(longest);
  for (const Bytes own : segments[team.position(-1)]) team.send(team.position(1), own.data(), own.size());
  const size_t to_add = messages / 2;
  for (size_t i = 0; i < messages; ++i) {
    const Bytes here = target(i);
    team.recv(team.position(-1), i < to_add ? arriving : here.data(), here.size());
  }
  team.move([&](size_t i) {
    const Bytes here = target(i);
    const bool last = i + static_cast<size_t>(k) >= to_add;
    if (i < to_add) add_parts(arriving, here.data(), here.data(), here.size(), elements, last);
    if (i + static_cast<size_t>(k) < messages) team.send(team.position(1), here.data(), here.size());
  });
}

// Runs all steps of an all-gather at once. Each part has a number of segments of its own.
void pass_parts(RemoteTeam& team, std::span<const Bytes> parts) {
  const int p = team.size();
  const auto segments_of = [&](int part) {
    return divide(parts[part].data(), parts[part].size(), DataType::kUint8, ring_segments({&parts[part], 1}));
  };
  std::vector<Bytes> arriving;
  size_t to_pass = 0;  // the segments of the last step stay here
  for (int step = 0; step + 1 < p; ++step) {
    to_pass = arriving.size();
    const std::vector<Bytes> segments = segments_of(team.position(-step - 1));
    arriving.insert(arriving.end(), segments.begin(), segments.end());
  }
  for (const Bytes own : segments_of(team.me())) team.send(team.position(1), own.data(), own.size());
  for (const Bytes segment : arriving) team.recv(team.position(-1), segment.data(), segment.size());
  team.move([&](size_t i) {
    if (i < to_pass) team.send(team.position(1), arriving[i].data(), arriving[i].size());
  });
}

}  // namespace

int ring_segments(std::span<const Bytes> parts) {
  size_t longest = 0;
  for (const Bytes part : parts) longest = std::max(longest, part.size());
  return static_cast<int>(std::clamp<size_t>(longest / kRingSegmentBytes, 1, 64));
}

void ring_reduce_scatter(RemoteTeam& team, std::span<const ConstBytes> parts, void* out,
                         const Elements& elements) {
  const int p = team.size();
  if (p == 1) return copy_bytes(out, parts[0].data(), out == parts[0].data() ? 0 : parts[0].size());
  size_t largest = 0;
  for (const ConstBytes part : parts) largest = std::max(largest, part.size());
  // A part that arrives in one step is sent in the next step. Two places are used in turn.
  std::byte* const places = team.scratch(2 * largest);
  ConstBytes passing = parts[team.position(-1)];
  for (int step = 0; step + 1 < p; ++step) {
    const ConstBytes own = parts[team.position(-step - 2)];
    std::byte* const arriving = places + static_cast<size_t>(step % 2) * largest;
    team.send(team.position(1), passing.data(), passing.size());
    team.recv(team.position(-1), arriving, own.size());
    team.move();
    const bool last = step + 2 == p;
    add_parts(arriving, own.data(), last ? out : arriving, own.size(), elements, last);
    passing = {arriving, own.size()};
  }
}

void ring_all_gather(RemoteTeam& team, std::span<const Bytes> parts) {
  if (team.size() > 2 && ring_segments(parts) > 1) return pass_parts(team, parts);
  for (int step = 0; step + 1 < team.size(); ++step) {
    const Bytes out = parts[team.position(-step)];
    const Bytes in = parts[team.position(-step - 1)];
    team.send(team.position(1), out.data(), out.size());
    team.recv(team.position(-1), in.data(), in.size());
    team.move();
  }
}

void ring_all_reduce(RemoteTeam& team, void* data, size_t count, const Elements& elements) {
  const std::vector<Bytes> parts = divide(data, count, elements.type, team.size());
  if (team.size() > 1 && ring_segments(parts) > 1) return pass_segments(team, parts, elements);
  ring_reduce_scatter(team, std::vector<ConstBytes>(parts.begin(), parts.end()), parts[team.me()].data(),
                      elements);
  ring_all_gather(team, parts);
}

}  // namespace starling
