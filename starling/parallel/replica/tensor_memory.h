// TensorMemory counts the bytes that the CPU tensors of this process hold, where c10 allocates and frees
// them. Tensors in windows (FlatMemory) and memory that libraries allocate for themselves are not counted.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace starling {

// Counters of live bytes and of their peak. Thread-safe.
class TensorMemory {
 public:
  // The number of live bytes.
  int64_t live() const { return live_.load(); }
  // The largest number of live bytes since the last restart_peak().
  int64_t peak() const { return peak_.load(); }
  // Sets the peak to the number of live bytes.
  void restart_peak() { peak_.store(live_.load()); }

  // Counts an allocation.
  void add(int64_t bytes);
  // Counts a deallocation.
  void subtract(int64_t bytes) { live_.fetch_sub(bytes); }

 private:
  std::atomic<int64_t> live_{0}, peak_{0};
};

// Returns the counters of this process. The reference stays valid until the process ends. The first call
// gives c10 an allocator that counts and delegates to the previous allocator. Earlier allocations are not
// counted. Call the function while no other thread makes tensors.
TensorMemory& count_tensor_memory();

}  // namespace starling
