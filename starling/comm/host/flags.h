// Flags in shared memory, by which ranks of one host wait for each other.
//
// A flag is a 64-bit number that only grows. No two flags share a cache line. One rank at a time writes to a
// flag, and all ranks read it. post() is a release and a wait is an acquire: a rank that has seen the value
// also sees what the writer stored before. The address of a flag may differ between processes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace starling {

// FlagLine is one flag. A value of 0 is the initial state.
struct alignas(64) FlagLine {
  std::atomic<uint64_t> value{0};
  std::atomic<uint32_t> sleepers{0};  // waiters that sleep in the kernel or are about to
};
static_assert(sizeof(FlagLine) == 64 && std::atomic<uint64_t>::is_always_lock_free);

// WaitPolicy says how a thread waits for a flag. It reads the flag `pauses` times with a pause in between.
// Then it reads the flag `yields` times with a sched_yield in between. Then it sleeps in the kernel (futex).
struct WaitPolicy {
  int pauses = 2000;
  int yields = 20;
  // For the ranks of one host. A rank spins long if every local rank has a core of its own.
  // If ranks share cores, it spins briefly, because the awaited rank needs the core.
  static WaitPolicy for_ranks(int local_ranks, int cores);
  // For a thread that waits while other threads of its process compute. It never yields, because a thread
  // that yields to a computing thread gets its core back only a time slice later. A sleeping thread runs as
  // soon as it is woken.
  static constexpr WaitPolicy beside_computation() { return {300, 0}; }
};

// Stores `value`, which must not be smaller than the last value, and wakes the sleeping waiters.
void post(FlagLine& flag, uint64_t value);

// Tells the processor that the thread spins.
inline void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The slow half of wait_at_least(). While it sleeps, it calls `give_up` at least every 20 ms. It returns
// false if give_up() has returned true and the flag still is below `value`.
bool sleep_until_at_least(FlagLine& flag, uint64_t value, const WaitPolicy& policy,
                          const std::function<bool()>& give_up);

// Waits until flag.value >= value and returns true. Returns false if give_up() returned true before that.
template <typename GiveUp>
inline bool wait_at_least(FlagLine& flag, uint64_t value, const WaitPolicy& policy, const GiveUp& give_up) {
  for (int i = 0; i < policy.pauses; ++i) {
    if (flag.value.load(std::memory_order_acquire) >= value) return true;
    cpu_pause();
  }
  return sleep_until_at_least(flag, value, policy, std::cref(give_up));
}

}  // namespace starling
