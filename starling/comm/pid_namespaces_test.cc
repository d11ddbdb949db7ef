// Tests ranks of one host in different pid namespaces, as containers that share the network have them: the
// number of a process in one namespace means another process in the other one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <string>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/net/store/store_client.h"
#include "starling/testing/forked_ranks.h"

namespace starling {
namespace {

using testing::HasSubstr;

constexpr std::chrono::seconds kWait(60);

// Calls body() in a process that is number `pid` of a new pid namespace. Ends with the process's status.
void run_as(pid_t pid, const std::function<void()>& body) {
  if (unshare(CLONE_NEWPID) != 0) throw CommError("unshare failed");
  const auto follow = [](pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  };
  if (const pid_t first = fork(); first != 0) follow(first);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::ofstream("/proc/sys/kernel/ns_last_pid") << pid - 1 << std::flush;
  if (const pid_t second = fork(); second != 0) follow(second);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getpid() != pid) throw CommError("the process has another number than it should have");
  body();
}

// Runs one of the two ranks. Rank 1 keeps rank 0 waiting and then dies.
void meet(int rank, Store& store) {
  dynamic_cast<StoreClient&>(store).announce(rank);
  GroupSetup setup;
  setup.rank = rank;
  setup.size = 2;
  setup.host_name = "node-a";
  const auto group = make_group(store, setup);
  barrier(*group);
  store.put("met/" + std::to_string(rank), "yes");
  store.get("the stranger has ended", kWait);
  if (rank == 0) {
    store.put("waits", "yes");
  } else {
    store.get("waits", kWait);
    usleep(300'000);  // rank 0 looks many times whether rank 1 lives
  }
  barrier(*group);
  if (rank == 1) raise(SIGKILL);
  try {
    barrier(*group);
  } catch (const CommError& error) {
    store.put("fault", std::to_string(error.peer()) + " " + error.what());
  }
}

std::string why_not_permitted() {
  const pid_t child = fork();
  if (child == 0) _exit(unshare(CLONE_NEWPID) == 0 ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? "" : "pid namespaces are not permitted here";
}

TEST(PidNamespaces, AProcessWithTheNumberOfARankIsNotTheRank) {
  if (const auto reason = why_not_permitted(); !reason.empty()) GTEST_SKIP() << reason;
  const pid_t stranger = fork();  // rank 1 has its number, in another namespace
  if (stranger == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
  }
  ForkedRanks ranks(2, [stranger](int rank, Store& store) {
    if (rank == 0) return meet(rank, store);
    run_as(stranger, [&] { meet(rank, store); });
  });
  ranks.store().get("met/0", kWait);
  ranks.store().get("met/1", kWait);
  kill(stranger, SIGKILL);
  waitpid(stranger, nullptr, 0);
  ranks.store().put("the stranger has ended", "yes");
  EXPECT_EQ(ranks.wait(0), 0) << ranks.store().try_get("error/0").value_or("");
  const std::string fault = ranks.store().try_get("fault").value_or("none");
  EXPECT_THAT(fault, HasSubstr("1 rank 1 (node-a) is lost"));
}

}  // namespace
}  // namespace starling
