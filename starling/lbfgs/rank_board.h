// RankBoard connects the two threads of a rank. The serving thread executes the instructions of the
// coordinator. The computing thread computes portions, and may be late in an old evaluation while the serving
// thread is in the next one.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "starling/lbfgs/messages.h"

namespace starling {

// An evaluation as the computing thread sees it.
struct OpenEvaluation {
  int64_t number = 0;
  std::shared_ptr<const std::vector<double>> weights;
};

// A part of a gradient for the shard of the same rank.
struct OwnPart {
  int portion = 0;
  std::vector<double> values;
};

// Thread-safe.
class RankBoard {
 public:
  // The serving thread: opens an evaluation for the computing thread. Numbers begin at 1 and grow.
  void open(OpenEvaluation evaluation);
  // The serving thread: ends the evaluation. A portion that is still computed is of no use any more.
  void close();
  // The serving thread: ends the computing thread in order, after its last request.
  void stop();
  // Ends every wait of both threads because of a fault. `failure` is that of the computing thread, or null if
  // the serving thread has the fault. Only the first call counts, because later faults follow from the first.
  void break_off(std::exception_ptr failure);

  // The computing thread: waits for an evaluation whose number is at least `least`, and returns it. Returns
  // nothing after stop() or break_off().
  std::optional<OpenEvaluation> await(int64_t least);
  // Returns true if `number` is not the open evaluation, or nothing is left to do.
  bool is_over(int64_t number) const;
  // Waits until the end of the time, or until is_over(number).
  void wait_in(int64_t number, std::chrono::steady_clock::time_point end);

  // Puts a request of this rank's computing thread, on rank 0.
  void put(const PortionRequest& request);
  std::optional<PortionRequest> take_request();
  // Puts the answer to it.
  void put(const PortionAnswer& answer);
  std::optional<PortionAnswer> take_answer();
  // Puts a part of a gradient for this rank's shard.
  void put(OwnPart part);
  std::optional<OwnPart> take_part();

  // Returns the number of changes so far.
  uint64_t changes() const;
  // Waits until there are more changes than `since`, or until `pause` is over.
  void wait(uint64_t since, std::chrono::microseconds pause);
  // Rethrows the failure of the computing thread, if there is one.
  void rethrow_failure() const;
  // Returns true after break_off().
  bool is_broken() const;

 private:
  bool over(int64_t number) const { return ended_ || broken_ || !open_ || evaluation_.number != number; }
  template <typename Change>
  void change(const Change& change);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  OpenEvaluation evaluation_;
  bool open_ = false, ended_ = false, broken_ = false;
  std::exception_ptr failure_;
  std::optional<PortionRequest> request_;
  std::optional<PortionAnswer> answer_;
  std::vector<OwnPart> parts_;
  uint64_t changes_ = 0;
};

}  // namespace starling
