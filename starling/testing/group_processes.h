// The fixtures of starling/comm/group_processes_test.cc: groups whose ranks are processes, by the way between them. A program that has
// the tests instantiates them for the ways that it can test.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <ostream>
#include <string>

#include "starling/testing/forked_job.h"
#include "starling/testing/forked_ranks.h"

namespace starling {

struct Way {
  const char* name;
  Transport transport;
  const char* ucx_tls = "";
  const char* ucx_asks_from = nullptr;  // bytes of a message; null: as our engine tells UCX
};

// Skipped where the way is not available.
class ByWay : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    const Way& way = GetParam();
    if (const auto reason = unavailable(way.transport); !reason.empty()) GTEST_SKIP() << reason;
    if (way.transport != Transport::kUcx) return;
    // UCX reads them in the ranks, which are forked later.
    ::setenv("UCX_TLS", way.ucx_tls, 1);
    ::unsetenv("UCX_RNDV_THRESH");
    if (way.ucx_asks_from != nullptr) ::setenv("UCX_RNDV_THRESH", way.ucx_asks_from, 1);
  }
  static ForkedJob job() {
    ForkedJob out;
    out.transport = GetParam().transport;
    return out;
  }
  // On every rank; each must end well.
  static void run(const ForkedJob& job, const std::function<void(Group&)>& body) {
    ForkedRanks ranks(job.size, [&](int rank, Store& store) { body(*job.join(rank, store)); });
    EXPECT_NO_THROW(ranks.wait_all());
  }
};

class GroupProcesses : public ByWay {};
// Ways on which all that ranks tell each other goes through sockets.
class ConnectedProcesses : public ByWay {};

inline std::ostream& operator<<(std::ostream& out, const Way& way) {
  return out << way.name;
}
inline std::string name_of_way(const testing::TestParamInfo<Way>& info) {
  return info.param.name;
}

}  // namespace starling
