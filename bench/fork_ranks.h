// Starts ranks of this host as forked processes. Their parent serves the store of the job.
#pragma once

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "starling/net/store/store_server.h"

namespace starling {

// Forks one process per rank and calls run_rank() in it with the rank, the store's address and the job's
// identity. `name` is the program's name. It becomes part of the store's address.
//
// Returns when every process has ended: 0, or 1 if a rank has failed. A rank that throws prints the error to
// stderr. Call fork_ranks() before this process starts a thread.
inline int fork_ranks(
    int ranks, const std::string& name,
    const std::function<void(int rank, const std::string& address, const JobIdentity& identity)>& run_rank) {
  const JobIdentity identity{make_job_key(), name};
  const std::string address = fmt::format("@starling-{}-{}", name, getpid());
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    if (const pid_t made = fork(); made != 0) {
      processes.push_back(made);
      continue;
    }
    try {
      run_rank(rank, address, identity);
      std::fflush(stdout);
      _exit(0);
    } catch (const std::exception& error) {
      fmt::print(stderr, "rank {}: {}\n", rank, error.what());
      _exit(1);
    }
  }
  const StoreServer server({address}, identity);
  int failed = 0;
  for (const pid_t process : processes) {  // this process may have other children
    int status = 0;
    failed += waitpid(process, &status, 0) < 0 || status != 0 ? 1 : 0;
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace starling
