#include "bench/transfer_limit.h"

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <ctime>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace starling {
namespace {

constexpr size_t kRing = size_t{1} << 20;  // bytes of all staging slots of a rank
constexpr size_t kPage = 4096;

// Returns the microseconds for which this thread has had a core. If there are more ranks than cores, ranks
// take turns.
double core_time() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

// Returns the number of cores on which this process may run.
int cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Reads one word of every cache line, of four pages in turn, because this order is the fastest.
void read_lines(const std::byte* from, size_t bytes) {
  uint64_t sum = 0;
  for (size_t block = 0; block < bytes; block += 4 * kPage) {
    const size_t end = std::min(bytes, block + 4 * kPage);
    for (size_t at = 0; at < kPage; at += 64) {
      for (size_t page = block; page + at < end; page += kPage) {
        uint64_t word;
        std::memcpy(&word, from + page + at, sizeof(word));
        sum += word;
      }
    }
  }
  asm volatile("" : : "r"(sum) : "memory");
}

// Reads and writes one word of every cache line.
void change_lines(std::byte* at, size_t bytes) {
  for (size_t i = 0; i + sizeof(uint64_t) <= bytes; i += 64) {
    uint64_t word;
    std::memcpy(&word, at + i, sizeof(word));
    ++word;
    std::memcpy(at + i, &word, sizeof(word));
  }
}

void copy_streaming(std::byte* to, const std::byte* from, size_t bytes) {
#if defined(__x86_64__)
  for (size_t at = 0; at < bytes; at += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + at),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
  }
  _mm_sfence();
#else
  std::memcpy(to, from, bytes);
#endif
}

class Transfers {
 public:
  Transfers(Group& group, const Window& window, size_t bytes)
      : group_(group), window_(window), bytes_(bytes), p_(static_cast<size_t>(group.size())) {
    own_ = window_.region(group.local_rank());
  }

  double read() {
    std::memset(own_, ++turn_, bytes_);
    barrier(group_);
    const double start = core_time();
    read_others(bytes_ / p_);
    const double took = core_time() - start;
    barrier(group_);
    return took;
  }

  // Returns the shorter time of two copies: through the caches, and with stores that bypass the caches.
  double copy(std::byte* to, const std::byte* from) {
    barrier(group_);
    double start = core_time();
    std::memcpy(to, from, bytes_);
    const double plain = core_time() - start;
    barrier(group_);
    start = core_time();
    copy_streaming(to, from, bytes_);
    return std::min(plain, core_time() - start);
  }

  // Moves the tensor in chunks through the staging slots. For each chunk, a rank copies the slices of the
  // other ranks into its slot, reads and writes its own slice in every other slot, and reads its slot.
  double staging(const std::byte* from) {
    double took = 0;
    for (size_t left = bytes_; left > 0; left -= std::min(left, kRing)) {
      const size_t slice = std::min(left, kRing) / p_;
      barrier(group_);
      double start = core_time();
      std::memcpy(own_, from, (p_ - 1) * slice);
      took += core_time() - start;
      barrier(group_);
      start = core_time();
      for (size_t i = 1; i < p_; ++i) change_lines(other(i) + (place(i) * slice), slice);
      took += core_time() - start;
      barrier(group_);
      start = core_time();
      read_lines(own_, (p_ - 1) * slice);
      took += core_time() - start;
    }
    return took;
  }

 private:
  std::byte* other(size_t i) const {
    return window_.region(static_cast<int>((static_cast<size_t>(group_.local_rank()) + i) % p_));
  }
  // Returns the index of this rank's slice in the slot of other(i). A slot does not contain its owner's
  // slice.
  size_t place(size_t i) const { return p_ - 1 - i; }

  void read_others(size_t bytes) {
    for (size_t i = 1; i < p_; ++i)
      read_lines(other(i) + static_cast<size_t>(group_.local_rank()) * bytes, bytes);
  }

  Group& group_;
  const Window& window_;
  const size_t bytes_;
  const size_t p_;
  std::byte* own_;
  unsigned char turn_ = 0;
};

}  // namespace

TransferTimes measure_transfers(Group& group, const Window& window, size_t bytes, int repetitions) {
  Transfers transfers(group, window, bytes);
  std::vector<std::byte> from(bytes + kRing), to(bytes + 64);
  std::byte* aligned = to.data() + (64 - reinterpret_cast<uintptr_t>(to.data()) % 64) % 64;
  const double turns = std::max(1.0, group.size() / static_cast<double>(cores()));
  TransferTimes times;
  for (int i = -2; i < repetitions; ++i) {
    const double read = transfers.read();
    const double copy = transfers.copy(aligned, from.data());
    const double staging = transfers.staging(from.data());
    if (i < 0) continue;
    times.read.push_back(read * turns);
    times.copy.push_back(copy * turns);
    times.staging.push_back(staging * turns);
  }
  for (auto* column : {&times.read, &times.copy, &times.staging}) std::sort(column->begin(), column->end());
  return times;
}

}  // namespace starling
