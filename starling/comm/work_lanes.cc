#include "starling/comm/work_lanes.h"

#include <fmt/format.h>

#include <condition_variable>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "starling/base/error.h"

namespace starling {
namespace {

constexpr size_t kKeptLanes = 64;  // lanes without jobs that are kept, because making one allocates memory

std::exception_ptr outcome_of(const LaneJob& job) {
  try {
    job.body();
  } catch (...) {  // complete() receives it
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace

struct WorkLanes::Queue {
  std::deque<LaneJob> jobs;  // that have not begun
  bool executing = false;    // a body is in progress, on a thread of the lanes or in run()
  bool served = false;       // a thread of the lanes executes or completes a job
};

struct WorkLanes::State {
  explicit State(std::string ended) : message(std::move(ended)) {}

  CommError stopped() const { return CommError(message); }
  void begin(Queue& queue) {
    queue.executing = true;
    ++executing;
  }
  void end(Queue& queue) {
    queue.executing = false;
    if (--executing == 0) finished.notify_all();
  }
  // Makes a lane ready for a thread. The lane has jobs that wait, and no thread serves it.
  void hand_over(const Lane& lane) {
    ready.push_back(lane);
    ready_or_stopping.notify_one();
  }
  void forget_if_idle(const Lane& lane, const Queue& queue) {
    if (queue.jobs.empty() && !queue.executing && !queue.served && lanes.size() > kKeptLanes)
      lanes.erase(lane);
  }

  const std::string message;  // of the error after close()
  mutable std::mutex mutex;   // guards all members below
  std::condition_variable ready_or_stopping, finished;
  std::map<Lane, Queue> lanes;
  std::deque<Lane> ready;  // lanes with jobs that no thread serves and that are not occupied
  size_t unserved = 0;   // lanes with jobs that no thread serves: those in `ready`, and those behind a run()
  size_t executing = 0;  // bodies in progress
  size_t idle = 0;       // threads that wait for a lane
  bool closed = false, stopping = false;
  std::map<std::thread::id, std::thread> threads;
  std::vector<std::thread> retired;  // threads that are ending
};

WorkLanes::WorkLanes(std::string ended) : state_(std::make_shared<State>(std::move(ended))) {}

WorkLanes::~WorkLanes() {
  stop();
}

void WorkLanes::submit(const Lane& lane, LaneJob job) {
  std::vector<std::thread> retired;
  {
    State& state = *state_;
    const std::lock_guard lock(state.mutex);
    if (state.closed) throw state.stopped();
    retired.swap(state.retired);
    Queue& queue = state.lanes[lane];
    const bool needs_thread = !queue.served && queue.jobs.empty();
    if (needs_thread && state.unserved + 1 > state.idle) {
      // Before the job is queued: a job that submit() refuses must never run.
      try {
        std::thread thread([shared = state_] { serve(shared); });
        const auto id = thread.get_id();
        state.threads.emplace(id, std::move(thread));
      } catch (const std::system_error& error) {
        throw CommError(
            fmt::format("a thread for the operation cannot be started: {}; raise the limit of "
                        "processes (ulimit -u) or start fewer operations at a time",
                        error.what()));
      }
    }
    queue.jobs.push_back(std::move(job));
    if (needs_thread) {
      ++state.unserved;
      if (!queue.executing) state.hand_over(lane);
    }
  }
  for (std::thread& thread : retired) thread.join();
}

WorkLanes::Queue* WorkLanes::try_enter(const Lane& lane) {
  const std::lock_guard lock(state_->mutex);
  if (state_->closed) throw state_->stopped();
  Queue& queue = state_->lanes[lane];
  if (queue.executing || !queue.jobs.empty()) return nullptr;
  state_->begin(queue);
  return &queue;
}

void WorkLanes::leave(const Lane& lane, Queue& queue) {
  const std::lock_guard lock(state_->mutex);
  state_->end(queue);
  if (!queue.jobs.empty() && !queue.served) state_->hand_over(lane);
  state_->forget_if_idle(lane, queue);
}

bool WorkLanes::busy(const Lane& lane) const {
  const std::lock_guard lock(state_->mutex);
  const auto at = state_->lanes.find(lane);
  return at != state_->lanes.end() && (at->second.executing || !at->second.jobs.empty());
}

bool WorkLanes::busy() const {
  const std::lock_guard lock(state_->mutex);
  if (state_->executing > 0) return true;
  for (const auto& [lane, queue] : state_->lanes)
    if (!queue.jobs.empty()) return true;
  return false;
}

size_t WorkLanes::threads() const {
  const std::lock_guard lock(state_->mutex);
  return state_->threads.size();
}

void WorkLanes::close() {
  const std::lock_guard lock(state_->mutex);
  state_->closed = true;
}

void WorkLanes::stop() {
  const std::shared_ptr<State> state = state_;  // complete() may destroy this object
  std::vector<LaneJob> never_begun;
  std::vector<std::thread> threads;
  {
    std::unique_lock lock(state->mutex);
    state->closed = state->stopping = true;
    for (auto& [lane, queue] : state->lanes) {
      std::move(queue.jobs.begin(), queue.jobs.end(), std::back_inserter(never_begun));
      queue.jobs.clear();
    }
    state->ready.clear();
    state->unserved = 0;
    threads.swap(state->retired);
    for (auto& [id, thread] : state->threads) threads.push_back(std::move(thread));
    state->threads.clear();
    state->ready_or_stopping.notify_all();
    state->finished.wait(lock, [&] { return state->executing == 0; });
  }
  for (LaneJob& job : never_begun) {
    job.body = nullptr;
    job.complete(std::make_exception_ptr(state->stopped()));
  }
  for (std::thread& thread : threads) {
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();  // complete() has dropped the last reference; the thread ends after complete()
    } else {
      thread.join();
    }
  }
}

void WorkLanes::serve(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  while (!state->stopping) {
    if (state->ready.empty() && state->idle >= kIdleThreads && state->unserved == 0) {
      const auto self = state->threads.find(std::this_thread::get_id());
      state->retired.push_back(std::move(self->second));
      state->threads.erase(self);
      return;
    }
    ++state->idle;
    state->ready_or_stopping.wait(lock, [&] { return !state->ready.empty() || state->stopping; });
    --state->idle;
    if (state->ready.empty()) continue;
    const Lane lane = state->ready.front();
    state->ready.pop_front();
    --state->unserved;
    Queue& queue = state->lanes.at(lane);
    queue.served = true;
    // A run() that finds the lane without jobs may execute between two jobs of this thread. At its end, run()
    // hands the lane over only if this thread no longer serves the lane.
    while (!queue.jobs.empty() && !queue.executing) {
      LaneJob job = std::move(queue.jobs.front());
      queue.jobs.pop_front();
      state->begin(queue);
      lock.unlock();
      std::exception_ptr error = outcome_of(job);
      job.body = nullptr;  // releases the memory of the job before the waiting thread continues
      lock.lock();
      state->end(queue);
      lock.unlock();
      job.complete(std::move(error));
      job.complete = nullptr;
      lock.lock();
    }
    queue.served = false;
    if (!queue.jobs.empty()) ++state->unserved;  // behind a run(), which hands the lane over
    state->forget_if_idle(lane, queue);
  }
}

}  // namespace starling
