// Ranks of this host as forked processes that meet in a store of their parent's.
#pragma once

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <string>

#include "starling/net/store_server.h"

namespace starling {

// Calls `rank` in a process for each, with the store's address; returns when all have ended: 0, or 1 where one has failed, which it
// says on stderr. name: of the program, for the store. Fork before anything starts a thread.
inline int fork_ranks(
    int ranks, const std::string& name,
    const std::function<void(int rank, const std::string& address, const JobIdentity& identity)>& run_rank) {
  const JobIdentity identity{make_job_key(), name};
  const std::string address = fmt::format("@starling-{}-{}", name, getpid());
  for (int rank = 0; rank < ranks; ++rank) {
    if (fork() != 0) continue;
    try {
      run_rank(rank, address, identity);
      _exit(0);
    } catch (const std::exception& error) {
      fmt::print(stderr, "rank {}: {}\n", rank, error.what());
      _exit(1);
    }
  }
  const StoreServer server({address}, identity);
  int failed = 0;
  for (int status = 0; wait(&status) > 0;) failed += status != 0 ? 1 : 0;
  return failed == 0 ? 0 : 1;
}

}  // namespace starling
