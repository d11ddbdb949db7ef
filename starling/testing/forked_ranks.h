// Ranks of a test as processes: forked from the test before it has threads, with a store that the test serves.
#pragma once

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/net/store_client.h"
#include "starling/net/store_server.h"

namespace starling {

class ForkedRanks {
 public:
  // Each child calls body(rank, store) and ends with status 0, or 1 after an exception, which it puts as "error/<rank>".
  ForkedRanks(int size, const std::function<void(int, Store&)>& body)
      : identity_{make_job_key(), "forked"}, address_("@starling-comm-test-" + std::to_string(getpid())) {
    for (int r = 0; r < size; ++r) {
      const pid_t pid = fork();
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(run(r, body));
      }
      pids_.push_back(pid);
    }
    server_ = std::make_unique<StoreServer>(std::vector<std::string>{address_}, identity_);
    store_ = std::make_unique<StoreClient>(address_, identity_);
  }
  ~ForkedRanks() {
    for (size_t r = 0; r < pids_.size(); ++r) {
      if (pids_[r] > 0) kill(pids_[r], SIGKILL);
      if (pids_[r] > 0) waitpid(pids_[r], nullptr, 0);
    }
  }
  ForkedRanks(const ForkedRanks&) = delete;

  Store& store() { return *store_; }
  void signal(int rank, int number) { kill(pids_[rank], number); }
  // The exit status of a rank; waits for it.
  int wait(int rank) {
    int status = -1;
    waitpid(pids_[rank], &status, 0);
    pids_[rank] = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  // Waits for all ranks; throws Error with what each rank said that did not end with 0.
  void wait_all() {
    std::string problems;
    for (int r = 0; r < static_cast<int>(pids_.size()); ++r) {
      const int status = wait(r);
      if (status == 0) continue;
      problems += "rank " + std::to_string(r) + " ended with " + std::to_string(status) + ": " +
                  store_->try_get("error/" + std::to_string(r)).value_or("no message") + "\n";
    }
    if (!problems.empty()) throw Error(ErrorCode::kInternal, problems);
  }

 private:
  int run(int rank, const std::function<void(int, Store&)>& body) {
    try {
      StoreClient store(address_, identity_);
      try {
        body(rank, store);
        return 0;
      } catch (const std::exception& error) {
        store.put("error/" + std::to_string(rank), error.what());
      }
    } catch (const std::exception&) {
      // The test has gone; there is nobody to tell.
    }
    return 1;
  }

  const JobIdentity identity_;
  const std::string address_;
  std::vector<pid_t> pids_;
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<StoreClient> store_;
};

}  // namespace starling
