#include "starling/parallel/replica/thread_team.h"

#include <ATen/Parallel.h>

namespace starling {

ThreadTeam::ThreadTeam(int size) {
  for (int i = 1; i < size; ++i) threads_.emplace_back([this, i] { serve(i); });
}

ThreadTeam::~ThreadTeam() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void ThreadTeam::run(const std::function<void(int)>& task) {
  {
    std::lock_guard lock(mutex_);
    task_ = &task;
    unfinished_ = size();
    error_ = nullptr;
    ++round_;
  }
  changed_.notify_all();
  carry_out(0);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return unfinished_ == 0; });
  if (error_) std::rethrow_exception(error_);
}

void ThreadTeam::serve(int index) {
  at::set_num_threads(1);  // of this thread's OpenMP team
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || round_ != seen; });
    if (stopping_) return;
    seen = round_;
    lock.unlock();
    carry_out(index);
    lock.lock();
  }
}

void ThreadTeam::carry_out(int index) {
  std::exception_ptr error;
  try {
    (*task_)(index);
  } catch (...) {  // this function is the outermost of its thread; run() rethrows
    error = std::current_exception();
  }
  std::lock_guard lock(mutex_);
  if (error && !error_) error_ = error;
  if (--unfinished_ == 0) changed_.notify_all();
}

}  // namespace starling
