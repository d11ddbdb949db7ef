#include "starling/testing/run_ranks.h"

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "starling/base/check.h"
#include "starling/net/memory/memory_store.h"

namespace starling {

void run_ranks(int size, const std::function<void(const ThreadRank&)>& body) {
  STARLING_CHECK(size > 0, "run_ranks needs a rank and got {}", size);
  const auto store = std::make_shared<MemoryStore>();
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body({rank, size, store});
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace starling
