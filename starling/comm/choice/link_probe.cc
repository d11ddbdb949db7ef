#include "starling/comm/choice/link_probe.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace starling {
namespace {

constexpr int kTurns = 5;
constexpr int kBulkTurns = 3;
constexpr int kBurst = 9;
constexpr size_t kBulkBytes = 64 * 1024;

// Returns the seconds from position 0's first message to position 1's answer, in the fastest turn. Position 0
// sends `messages` messages of `bytes`. Position 1 gets 0.
double turn_seconds(RemoteTeam& team, int messages, size_t bytes, int turns) {
  using Clock = std::chrono::steady_clock;
  std::byte* buffer = team.scratch(bytes);
  double best = 0;
  for (int turn = 0; turn < turns; ++turn) {
    const auto start = Clock::now();
    for (int m = 0; m < messages; ++m) {
      if (team.me() == 0)
        team.send(1, buffer, bytes);
      else
        team.recv(0, buffer, bytes);
    }
    team.move();
    if (team.me() == 0)
      team.recv(1, nullptr, 0);
    else
      team.send(0, nullptr, 0);
    team.move();
    const double took = std::chrono::duration<double>(Clock::now() - start).count();
    best = turn == 0 ? took : std::min(best, took);
  }
  return team.me() == 0 ? best : 0;
}

}  // namespace

LinkCost probe_link(RemoteTeam& team) {
  LinkCost link;
  if (team.me() > 1) return link;
  const double ping = turn_seconds(team, 1, 0, kTurns);
  const double burst = turn_seconds(team, kBurst, 0, kTurns);
  const double bulk = turn_seconds(team, 1, kBulkBytes, kBulkTurns);
  if (team.me() != 0) return link;
  link.alpha = std::max(1e-7, ping / 2);
  link.overhead = std::clamp((burst - ping) / (kBurst - 1), 1e-7, link.alpha);
  link.beta = std::max(1e-11, (bulk - ping) / static_cast<double>(kBulkBytes));
  return link;
}

}  // namespace starling
