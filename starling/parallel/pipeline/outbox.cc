#include "starling/parallel/pipeline/outbox.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace starling {

struct Outbox::Line {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::pair<at::Tensor, uint32_t>> waiting;  // guarded by mutex; the front is being sent
  std::exception_ptr fault;                             // guarded by mutex
  bool stop = false;                                    // guarded by mutex
  std::thread thread;

  void run(Group& group, int peer) {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stop || (!waiting.empty() && !fault); });
      if (stop) return;
      const auto [tensor, tag] = waiting.front();
      lock.unlock();
      std::exception_ptr met;
      try {
        group.send(tensor.data_ptr(), tensor.nbytes(), peer, tag);
      } catch (...) {  // the edge of this thread: post and flush rethrow
        met = std::current_exception();
      }
      lock.lock();
      if (met) fault = met;
      if (!met) waiting.pop_front();
      changed.notify_all();
    }
  }
};

Outbox::Outbox(Group& group) : group_(group) {}

Outbox::~Outbox() {
  bool unsent = false;
  for (auto& [peer, line] : lines_) {
    const std::lock_guard lock(line->mutex);
    unsent = unsent || (!line->waiting.empty() && !line->fault);
    line->stop = true;
    line->changed.notify_all();
  }
  if (unsent) group_.abort("the pipeline ended with messages that were not sent");
  for (auto& [peer, line] : lines_) line->thread.join();
}

void Outbox::post(const at::Tensor& contiguous, int peer, uint32_t tag) {
  std::unique_ptr<Line>& line = lines_[peer];
  if (!line) {
    line = std::make_unique<Line>();
    line->thread = std::thread([this, peer = peer, line = line.get()] { line->run(group_, peer); });
  }
  const std::lock_guard lock(line->mutex);
  if (line->fault) std::rethrow_exception(line->fault);
  line->waiting.emplace_back(contiguous, tag);
  line->changed.notify_all();
}

void Outbox::flush() {
  for (auto& [peer, line] : lines_) {
    std::unique_lock lock(line->mutex);
    line->changed.wait(lock, [&line = line] { return line->waiting.empty() || line->fault; });
    if (line->fault) std::rethrow_exception(line->fault);
  }
}

}  // namespace starling
