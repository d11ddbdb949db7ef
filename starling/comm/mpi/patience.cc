#include "starling/comm/mpi/patience.h"

#include <fmt/format.h>
#include <sched.h>

#include <chrono>
#include <thread>

#include "starling/comm/operation.h"

namespace starling {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int kPolls = 200;
// A wait tests the transfer kPolls times. Then it yields between tests until kYielding has passed, and later
// sleeps kNap at a time. It calls MpiWatch::look every kBetweenLooks.
constexpr std::chrono::milliseconds kYielding{2}, kBetweenLooks{3};
constexpr std::chrono::microseconds kNap{50}, kNapBesideComputation{200};

}  // namespace

void MpiPatience::fail(const Failure& failure) {
  const std::lock_guard lock(mutex_);
  if (!failed_) failure_ = failure;
  failed_ = true;
}

void MpiPatience::check() const {
  if (!failed_) return;
  const std::lock_guard lock(mutex_);
  throw_failure(failure_);
}

void MpiPatience::give_up(const Failure& failure) {
  fail(failure);
  throw_failure(failure);
}

void MpiPatience::wait(MpiTransfer& transfer, const std::string& what, const MpiWatch& watch) {
  check();
  const SteadyClock::time_point began = SteadyClock::now();
  SteadyClock::time_point next_look = began + kBetweenLooks;
  bool warned = false;
  for (int turn = 0; !transfer.test(); ++turn) {
    if (turn < kPolls && !watch.beside_computation) continue;
    check();
    const SteadyClock::time_point now = SteadyClock::now();
    const auto waited = now - began;
    if (watch.beside_computation) {
      std::this_thread::sleep_for(kNapBesideComputation);
    } else if (waited < kYielding) {
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
    if (now < next_look) continue;
    next_look = now + kBetweenLooks;
    if (watch.look) watch.look(waited > options_.timeout / 20);
    if (!warned && options_.warn && waited > options_.timeout / 10) {
      warned = true;
      options_.warn(late_warning(watch.late().text, options_.timeout));
    }
    if (waited <= options_.timeout) continue;
    const Lateness late = watch.late();
    give_up({fmt::format("{} within {} ms: late or stopped; see its log, or raise the timeout", late.text,
                         options_.timeout.count()),
             late.rank, true});
  }
  if (!transfer.fault().empty()) give_up({fmt::format("{} over MPI: {}", what, transfer.fault()), -1, false});
}

}  // namespace starling
