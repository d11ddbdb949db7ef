// kill_collectives [--rounds N] [--seed S] [--ranks P] [--transport shared-memory|tcp|mixed|ucx]
//                  [--security none|auth|encrypt]
//
// Kills ranks in the middle of collectives. It plays N rounds (default 200) of every collective over the
// named transport, by default over every transport except UCX. A round has P ranks (default 4), which are
// processes. SIGKILL ends one of them at a random moment.
//
// A round passes if every other rank names the killed rank within 5 s and no process, file or socket remains.
// The program prints a table. For each failed round it prints the seed, which repeats the round's random
// choices. The exit status is 1 if a round failed.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/testing/kill_round.h"

namespace starling {
namespace {

constexpr CollectiveKind kKinds[] = {CollectiveKind::kBarrier,   CollectiveKind::kBroadcast,
                                     CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                                     CollectiveKind::kAllGather, CollectiveKind::kAllToAll,
                                     CollectiveKind::kSend};
const std::vector<Transport> kTransports = {Transport::kSharedMemory, Transport::kTcp, Transport::kMixed};

struct Options {
  int rounds = 200;
  uint64_t seed = 1;
  int ranks = 4;
  std::optional<Transport> transport;
  DataSecurity security = DataSecurity::kNone;
};

// Plays the rounds of one collective over one transport. Returns the number of failed rounds.
int play_all(const Options& options, CollectiveKind kind, Transport transport, int rounds) {
  std::vector<double> times;
  int bad = 0;
  for (int i = 0; i < rounds; ++i) {
    const uint64_t seed = options.seed + static_cast<uint64_t>(i);
    const KillOutcome outcome = play_kill_round({kind, transport, options.security, options.ranks, seed});
    times.push_back(outcome.slowest_s);
    if (outcome.problems.empty()) continue;
    ++bad;
    for (const std::string& problem : outcome.problems)
      fmt::print("  seed {}, rank {} killed: {}\n", seed, outcome.victim, problem);
  }
  std::sort(times.begin(), times.end());
  fmt::print("{:<15} {:<14} {:>6} {:>6} {:>9.3f} {:>9.3f} {:>9.3f}\n", name_of(kind), name_of(transport),
             rounds, rounds - bad, times.front(), times[times.size() / 2], times.back());
  std::fflush(stdout);
  return bad;
}

int run(const Options& options) {
  fmt::print("{} ranks, seeds from {}, security {}\n", options.ranks, options.seed,
             security_name(options.security));
  fmt::print("{:<15} {:<14} {:>6} {:>6} {:>9} {:>9} {:>9}\n", "collective", "transport", "rounds", "right",
             "s: min", "median", "max");
  int bad = 0;
  for (const CollectiveKind kind : kKinds)
    for (const Transport transport : options.transport ? std::vector{*options.transport} : kTransports)
      bad += play_all(options, kind, transport, options.rounds);
  fmt::print("{}\n", bad == 0 ? "every round passed" : fmt::format("{} rounds failed", bad));
  return bad == 0 ? 0 : 1;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--rounds") {
      options.rounds = std::max(1, std::atoi(value.c_str()));
    } else if (name == "--seed") {
      options.seed = std::strtoull(value.c_str(), nullptr, 10);
    } else if (name == "--ranks") {
      options.ranks = std::clamp(std::atoi(value.c_str()), 2, 64);
    } else if (name == "--security") {
      options.security = security_named(value);
    } else if (name == "--transport") {
      for (const Transport t : kTransports)
        if (value == name_of(t)) options.transport = t;
      if (value == name_of(Transport::kUcx)) options.transport = Transport::kUcx;
      if (!options.transport) throw ConfigError(name, "must be shared-memory, tcp, mixed or ucx");
    } else {
      throw ConfigError(name, "unknown option; the head of bench/kill_collectives.cc lists the options");
    }
  }
  return options;
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  try {
    return starling::run(starling::parse(argc, argv));
  } catch (const starling::Error& error) {
    fmt::print(stderr, "kill_collectives: {}\n", error.what());
    return 2;
  }
}
