#include "starling/comm/collective/halving_doubling.h"

#include <bit>
#include <vector>

namespace starling {
namespace {

// Halves tells which q ranks halve and double: every second one of the first 2 (p - q) ranks, and all later
// ranks.
struct Halves {
  explicit Halves(const RemoteTeam& team)
      : q(static_cast<int>(std::bit_floor(static_cast<unsigned>(team.size())))),
        folded(team.size() - q),
        place(team.me() >= 2 * folded ? team.me() - folded
              : team.me() % 2 == 1    ? team.me() / 2
                                      : -1) {}
  int rank_at(int other) const { return other < folded ? 2 * other + 1 : other + folded; }

  int q;
  int folded;  // how many ranks give their tensor to the next rank
  int place;   // this rank's position among the q; -1: it gives its tensor away
};

// Returns parts [first, last) as one range. The parts lie one after another.
Bytes join(const std::vector<Bytes>& parts, int first, int last) {
  return {parts[first].data(),
          static_cast<size_t>(parts[last - 1].data() + parts[last - 1].size() - parts[first].data())};
}

void halve(RemoteTeam& team, const Halves& halves, const std::vector<Bytes>& parts,
           const Elements& elements) {
  int first = 0, last = halves.q;
  for (int distance = halves.q / 2; distance >= 1; distance /= 2) {
    const int partner = halves.place ^ distance, middle = (first + last) / 2;
    const bool lower = partner > halves.place;
    const Bytes kept = lower ? join(parts, first, middle) : join(parts, middle, last);
    const Bytes given = lower ? join(parts, middle, last) : join(parts, first, middle);
    std::byte* arrived = team.scratch(kept.size());
    team.send(halves.rank_at(partner), given.data(), given.size());
    team.recv(halves.rank_at(partner), arrived, kept.size());
    team.move();
    const void *before = lower ? kept.data() : arrived, *after = lower ? arrived : kept.data();
    add_parts(before, after, kept.data(), kept.size(), elements, distance == 1);
    (lower ? last : first) = middle;
  }
}

void double_up(RemoteTeam& team, const Halves& halves, const std::vector<Bytes>& parts) {
  for (int distance = 1; distance < halves.q; distance *= 2) {
    const int partner = halves.place ^ distance;
    const auto held_by = [&](int place) {
      const int first = place & ~(distance - 1);
      return join(parts, first, first + distance);
    };
    const Bytes mine = held_by(halves.place), theirs = held_by(partner);
    team.send(halves.rank_at(partner), mine.data(), mine.size());
    team.recv(halves.rank_at(partner), theirs.data(), theirs.size());
    team.move();
  }
}

}  // namespace

void halving_doubling_all_reduce(RemoteTeam& team, void* data, size_t count, const Elements& elements) {
  if (team.size() == 1) return;
  const Halves halves(team);
  const size_t bytes = count * size_of(elements.type);
  const bool folds = team.me() < 2 * halves.folded;
  if (halves.place < 0) {
    team.send(team.me() + 1, data, bytes);
    team.move();
    team.recv(team.me() + 1, data, bytes);
    return team.move();
  }
  if (folds) {
    std::byte* arrived = team.scratch(bytes);
    team.recv(team.me() - 1, arrived, bytes);
    team.move();
    add_parts(arrived, data, data, bytes, elements, false);
  }
  const std::vector<Bytes> parts = divide(data, count, elements.type, halves.q);
  halve(team, halves, parts, elements);
  double_up(team, halves, parts);
  if (!folds) return;
  team.send(team.me() - 1, data, bytes);
  team.move();
}

}  // namespace starling
