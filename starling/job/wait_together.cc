#include "starling/job/wait_together.h"

#include <chrono>
#include <future>

namespace starling {

void wait_together(Group& group, const std::function<void()>& work) {
  if (group.size() == 1) return work();
  // If a collective throws, the destructor waits for the work.
  std::future<void> working = std::async(std::launch::async, work);
  for (double busy = 1; busy > 0;) {
    busy = working.wait_for(std::chrono::milliseconds(200)) == std::future_status::ready ? 0 : 1;
    all_reduce(group, &busy, 1, DataType::kFp64, ReduceOp::kMax);
  }
  working.get();
}

}  // namespace starling
