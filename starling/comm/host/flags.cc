#include "starling/comm/host/flags.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace starling {
namespace {

constexpr long kSliceNanoseconds = 20'000'000;

// Returns the half of the number that changes with every post. A futex is 32 bits wide.
uint32_t* low_half(FlagLine& flag) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  return reinterpret_cast<uint32_t*>(&flag.value);
}

// Sleeps while the low half equals `seen`, for at most 20 ms.
void futex_wait(FlagLine& flag, uint32_t seen) {
  const timespec slice{0, kSliceNanoseconds};
  syscall(SYS_futex, low_half(flag), FUTEX_WAIT, seen, &slice, nullptr, 0);
}

}  // namespace

WaitPolicy WaitPolicy::for_ranks(int local_ranks, int cores) {
  return local_ranks <= cores ? WaitPolicy{2000, 20} : WaitPolicy{10, 200};
}

void post(FlagLine& flag, uint64_t value) {
  // The store is sequentially consistent with the waiter's increment and second look: one of the two sees the
  // other.
  flag.value.store(value, std::memory_order_seq_cst);
  if (flag.sleepers.load(std::memory_order_seq_cst) != 0) {
    syscall(SYS_futex, low_half(flag), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

bool sleep_until_at_least(FlagLine& flag, uint64_t value, const WaitPolicy& policy,
                          const std::function<bool()>& give_up) {
  const auto reached = [&] { return flag.value.load(std::memory_order_acquire) >= value; };
  for (int i = 0; i < policy.yields; ++i) {
    if (reached()) return true;
    sched_yield();
  }
  while (!reached()) {
    // A peer may post a value and then leave. Look once more before giving up.
    if (give_up()) return reached();
    flag.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint64_t seen = flag.value.load(std::memory_order_seq_cst);
    if (seen < value) futex_wait(flag, static_cast<uint32_t>(seen));
    flag.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
  return true;
}

}  // namespace starling
