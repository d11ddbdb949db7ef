// The fixtures of starling/comm/group_processes_test.cc: groups whose ranks are processes. A program that
// contains the tests instantiates them for the transports that it can test.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <ostream>
#include <string>

#include "starling/testing/forked_job.h"
#include "starling/testing/forked_ranks.h"

namespace starling {

// Way is a transport and its settings.
struct Way {
  const char* name;
  Transport transport;
  const char* ucx_tls = "";
  const char* ucx_asks_from = nullptr;  // UCX_RNDV_THRESH in bytes; null: as Starling configures UCX
};

// ByWay is a test with a Way as parameter. It is skipped if the transport is not available.
class ByWay : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    const Way& way = GetParam();
    if (const auto reason = unavailable(way.transport); !reason.empty()) GTEST_SKIP() << reason;
    if (way.transport != Transport::kUcx) return;
    // The ranks, which are forked later, read these through UCX.
    ::setenv("UCX_TLS", way.ucx_tls, 1);
    ::unsetenv("UCX_RNDV_THRESH");
    if (way.ucx_asks_from != nullptr) ::setenv("UCX_RNDV_THRESH", way.ucx_asks_from, 1);
  }
  // Returns a job over the transport of the parameter.
  static ForkedJob job() {
    ForkedJob out;
    out.transport = GetParam().transport;
    return out;
  }
  // Runs `body` on every rank. Every rank must end without an error.
  static void run(const ForkedJob& job, const std::function<void(Group&)>& body) {
    ForkedRanks ranks(job.size, [&](int rank, Store& store) { body(*job.join(rank, store)); });
    EXPECT_NO_THROW(ranks.wait_all());
  }
};

// GroupProcesses holds the tests for every transport.
class GroupProcesses : public ByWay {};
// ConnectedProcesses holds the tests for transports on which ranks communicate through sockets only.
class ConnectedProcesses : public ByWay {};

// Prints the name of a way in test failures.
inline std::ostream& operator<<(std::ostream& out, const Way& way) {
  return out << way.name;
}
// Returns the name of a way for the names of tests.
inline std::string name_of_way(const testing::TestParamInfo<Way>& info) {
  return info.param.name;
}

}  // namespace starling
