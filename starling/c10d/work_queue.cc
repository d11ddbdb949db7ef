#include "starling/c10d/work_queue.h"

#include <c10/core/InferenceMode.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "starling/base/error.h"

namespace starling {
namespace {

// The thread's edge: what the body throws comes out of the work's wait().
std::exception_ptr outcome_of(const Job& job) {
  // Staged tensors are copied into leaves that require gradients too, and no graph is recorded.
  const c10::InferenceMode no_autograd;
  job.work->begin();
  try {
    job.body();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

CommError stopped() {
  return CommError("the backend starling has been shut down; make a new process group");
}

}  // namespace

struct WorkQueue::State {
  std::mutex mutex;
  std::condition_variable changed;
  // All guarded by the mutex.
  std::deque<Job> jobs;
  bool running = false;  // a job is being carried out
  bool stopping = false;
};

WorkQueue::WorkQueue() : state_(std::make_shared<State>()) {}

WorkQueue::~WorkQueue() {
  stop();
}

void WorkQueue::submit(Job job) {
  const std::lock_guard lock(state_->mutex);
  if (state_->stopping) throw stopped();
  state_->jobs.push_back(std::move(job));
  if (!thread_.joinable()) {
    thread_ = std::thread([state = state_] { carry_out_all(state); });
  }
  state_->changed.notify_all();
}

void WorkQueue::run(Job job) {
  std::unique_lock lock(state_->mutex);
  if (state_->stopping) throw stopped();
  if (state_->running || !state_->jobs.empty()) {
    lock.unlock();
    submit(std::move(job));
    return;
  }
  state_->running = true;
  lock.unlock();
  const std::exception_ptr error = outcome_of(job);
  lock.lock();
  state_->running = false;
  const bool awaited = !state_->jobs.empty() || state_->stopping;
  lock.unlock();
  if (awaited) state_->changed.notify_all();
  job.work->complete(error);
}

bool WorkQueue::busy() const {
  const std::lock_guard lock(state_->mutex);
  return state_->running || !state_->jobs.empty();
}

void WorkQueue::stop() {
  std::thread thread;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    thread = std::move(thread_);
  }
  state_->changed.notify_all();
  {
    std::unique_lock lock(state_->mutex);  // a caller of run() may be in the middle of a job
    state_->changed.wait(lock, [this] { return !state_->running; });
  }
  if (!thread.joinable()) return;
  if (thread.get_id() == std::this_thread::get_id()) {
    thread.detach();  // a callback has dropped the last reference: the thread ends after it
  } else {
    thread.join();
  }
}

void WorkQueue::carry_out_all(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  while (true) {
    state->changed.wait(lock, [&] { return (!state->jobs.empty() && !state->running) || state->stopping; });
    if (state->jobs.empty()) return;  // stopping
    Job job = std::move(state->jobs.front());
    state->jobs.pop_front();
    if (state->stopping) {
      lock.unlock();
      job.work->complete(std::make_exception_ptr(stopped()));
      lock.lock();
      continue;
    }
    state->running = true;
    lock.unlock();
    const std::exception_ptr error = outcome_of(job);
    job.body = nullptr;  // tensors that it holds go before the waiter is told
    lock.lock();
    state->running = false;
    const bool stopping = state->stopping;
    lock.unlock();
    if (stopping) state->changed.notify_all();
    job.work->complete(error);
    job.work.reset();
    lock.lock();
  }
}

}  // namespace starling
