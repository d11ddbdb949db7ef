// bench/kill_collectives in short: every collective once, each way between the ranks.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "starling/testing/kill_round.h"

namespace starling {
namespace {

constexpr KillTransport kTransports[] = {KillTransport::kSharedMemory, KillTransport::kTcp,
                                         KillTransport::kMixed};

TEST(KillCollectives, TheRightRankIsNamedInTimeAndNothingIsLeft) {
  constexpr CollectiveKind kKinds[] = {CollectiveKind::kBarrier,   CollectiveKind::kBroadcast,
                                       CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                                       CollectiveKind::kAllGather, CollectiveKind::kAllToAll,
                                       CollectiveKind::kSend};
  uint64_t seed = 1;
  for (const CollectiveKind kind : kKinds) {
    const KillTransport transport = kTransports[seed % 3];
    const KillOutcome outcome =
        play_kill_round({.kind = kind, .transport = transport, .ranks = 3, .seed = seed++});
    for (const std::string& problem : outcome.problems)
      ADD_FAILURE() << fmt::format("{}, {}, seed {}, victim {}: {}", name_of(kind), name_of(transport),
                                   seed - 1, outcome.victim, problem);
    EXPECT_GE(outcome.victim, 0);
  }
}

TEST(KillCollectives, EncryptedConnectionsTellAsWell) {
  for (const KillTransport transport : {KillTransport::kTcp, KillTransport::kMixed}) {
    const KillOutcome outcome =
        play_kill_round({.transport = transport, .security = DataSecurity::kEncrypt, .ranks = 4, .seed = 11});
    for (const std::string& problem : outcome.problems)
      ADD_FAILURE() << name_of(transport) << ": " << problem;
    EXPECT_GE(outcome.victim, 0);
  }
}

}  // namespace
}  // namespace starling
