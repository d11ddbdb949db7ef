// A short form of bench/kill_collectives: runs every collective once, over one transport after the other.
#include <gtest/gtest.h>

#include "starling/testing/kill_round.h"

namespace starling {
namespace {

constexpr Transport kTransports[] = {Transport::kSharedMemory, Transport::kTcp, Transport::kMixed};

TEST(KillCollectives, TheRightRankIsNamedInTimeAndNothingIsLeft) {
  constexpr CollectiveKind kKinds[] = {CollectiveKind::kBarrier,   CollectiveKind::kBroadcast,
                                       CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                                       CollectiveKind::kAllGather, CollectiveKind::kAllToAll,
                                       CollectiveKind::kSend};
  uint64_t seed = 1;
  for (const CollectiveKind kind : kKinds) {
    const Transport transport = kTransports[seed % 3];
    EXPECT_EQ(problems_of({.kind = kind, .transport = transport, .ranks = 3, .seed = seed++}), "");
  }
}

TEST(KillCollectives, EncryptedConnectionsTellAsWell) {
  for (const Transport transport : {Transport::kTcp, Transport::kMixed})
    EXPECT_EQ(
        problems_of({.transport = transport, .security = DataSecurity::kEncrypt, .ranks = 4, .seed = 11}),
        "");
}

}  // namespace
}  // namespace starling
