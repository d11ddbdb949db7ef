// ForkedRanks: the ranks of a test as processes. They are forked before the test has threads. The test serves
// their store.
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
#include "starling/net/store/store_client.h"
#include "starling/net/store/store_server.h"

namespace starling {

// ForkedRanks kills the processes that are left when it is destroyed.
class ForkedRanks {
 public:
  // Each child calls body(rank, store) and ends with status 0. After an exception it puts the message as
  // "error/<rank>" and ends with status 1.
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

  // The store of the job.
  Store& store() { return *store_; }
  // The number of keys that the server of the store holds.
  size_t keys() const { return server_->keys(); }
  // Sends a signal to a rank.
  void signal(int rank, int number) { kill(pids_[rank], number); }
  // Waits for a rank to end. Returns its exit status, or the negative number of the signal that killed it.
  int wait(int rank) {
    int status = -1;
    waitpid(pids_[rank], &status, 0);
    pids_[rank] = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  // Waits for all ranks. Errors: Error with the messages of all ranks that did not end with 0.
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
      // The test is gone, so nobody is left to tell.
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
