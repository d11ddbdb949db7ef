// ThreadTeam is a fixed number of threads that execute one call together, each with its own index. The
// calling thread is thread 0. Each thread that the team starts computes with one ATen thread. The calling
// thread keeps its number of ATen threads.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace starling {

// A team of threads. Only one thread may drive it.
class ThreadTeam {
 public:
  // Starts size − 1 threads.
  explicit ThreadTeam(int size);
  // Ends the threads.
  ~ThreadTeam();
  // The number of threads, including the calling thread.
  int size() const { return static_cast<int>(threads_.size()) + 1; }
  // Calls task(0) … task(size() - 1) concurrently and returns when all have returned. Rethrows the first
  // exception.
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
