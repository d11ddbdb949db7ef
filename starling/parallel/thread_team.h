// ThreadTeam: a fixed number of threads that carry out the same call, each with its own index. The calling thread is
// member 0. Every member computes with one ATen thread.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace starling {

// Driven by one thread.
class ThreadTeam {
 public:
  explicit ThreadTeam(int size);
  ~ThreadTeam();
  int size() const { return static_cast<int>(threads_.size()) + 1; }
  // Calls task(0) … task(size() - 1) at once and returns when all are done. Rethrows the first exception.
  void run(const std::function<void(int)>& task);

 private:
  void serve(int index);
  void carry_out(int index);

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(int)>* task_ = nullptr;
  uint64_t round_ = 0;
  int unfinished_ = 0;
  bool stopping_ = false;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

}  // namespace starling
