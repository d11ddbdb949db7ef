#include "starling/job/wait_together.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/testing/run_ranks.h"

namespace starling {
namespace {

constexpr std::chrono::seconds kTimeout{2};

// Calls `body` once per rank, in groups whose collectives wait for kTimeout at most.
void run_hasty(int ranks, const std::function<void(Group&)>& body) {
  run_ranks(ranks, [&](const ThreadRank& at) {
    GroupSetup setup;
    setup.rank = at.rank;
    setup.size = at.size;
    setup.options.timeout = kTimeout;
    setup.host_id = setup.host_name = "node-a";
    body(*make_group(*at.store, setup));
  });
}

TEST(WaitTogether, RanksWaitForASlowRankBeyondTheTimeout) {
  for (const int ranks : {1, 3}) {
    std::atomic<int> done = 0;
    run_hasty(ranks, [&](Group& group) {
      wait_together(group, [&] {
        if (ranks > 1 && group.rank() == 0) std::this_thread::sleep_for(3 * kTimeout / 2);
        ++done;
      });
      EXPECT_EQ(done, ranks);
      barrier(group);
    });
  }
}

TEST(WaitTogether, AnErrorIsThatOfItsRank) {
  run_hasty(2, [&](Group& group) {
    std::string said;
    try {
      wait_together(group, [&] {
        if (group.rank() == 1) throw Error(ErrorCode::kCheckpoint, "the disk is full");
      });
    } catch (const Error& error) {
      said = error.what();
    }
    EXPECT_EQ(said, group.rank() == 1 ? "the disk is full" : "");
    barrier(group);
  });
}

}  // namespace
}  // namespace starling
