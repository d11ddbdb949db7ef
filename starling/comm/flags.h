// Flags in shared memory: one 64-bit number that only grows, alone in its cache line, written by one rank at a time and
// read by all. post() is a release and wait an acquire: what the writer stored before post() is visible to who has seen the
// value. The address may differ between processes; the futex is shared.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace starling {

struct alignas(64) FlagLine {
  std::atomic<uint64_t> value{0};
  std::atomic<uint32_t> sleepers{0};  // waiters that are in the kernel or on their way there
};
static_assert(sizeof(FlagLine) == 64 && std::atomic<uint64_t>::is_always_lock_free);

// How a wait passes its time: `pauses` looks at the flag with a pause between them, then `yields` with sched_yield, then
// the kernel (futex).
struct WaitPolicy {
  int pauses = 2000;
  int yields = 20;
  // Long spinning where every local rank has a core of its own; where they share cores the waited-for rank needs ours.
  static WaitPolicy for_ranks(int local_ranks, int cores);
  // For threads that wait while others of their process compute: who yields to those gets its core back a time slice later,
  // and who sleeps at once when it is woken.
  static constexpr WaitPolicy beside_computation() { return {300, 0}; }
};

// Stores `value` (greater than before) and wakes who sleeps on it.
void post(FlagLine& flag, uint64_t value);

inline void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The slow half of wait_at_least. Calls `give_up` at least every 20 ms; when it returns true and the value still has not
// come, the wait ends with false.
bool sleep_until_at_least(FlagLine& flag, uint64_t value, const WaitPolicy& policy,
                          const std::function<bool()>& give_up);

// True when flag.value >= value, false when give_up() ended the wait before.
template <typename GiveUp>
inline bool wait_at_least(FlagLine& flag, uint64_t value, const WaitPolicy& policy, const GiveUp& give_up) {
  for (int i = 0; i < policy.pauses; ++i) {
    if (flag.value.load(std::memory_order_acquire) >= value) return true;
    cpu_pause();
  }
  return sleep_until_at_least(flag, value, policy, std::cref(give_up));
}

}  // namespace starling
