// TensorMemory: how many bytes the CPU tensors of this process hold, counted where c10 allocates and frees them. Tensors in
// windows (FlatMemory) are not among them, nor what libraries allocate for themselves.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace starling {

// Thread-safe.
class TensorMemory {
 public:
  int64_t live() const { return live_.load(); }
  // The most that was live since the last restart_peak().
  int64_t peak() const { return peak_.load(); }
  void restart_peak() { peak_.store(live_.load()); }

  void add(int64_t bytes);
  void subtract(int64_t bytes) { live_.fetch_sub(bytes); }

 private:
  std::atomic<int64_t> live_{0}, peak_{0};
};

// The count of this process. The first call gives c10 an allocator that counts and hands on to the one before it; c10 keeps
// it for as long as the process lives, and so the reference holds. What was allocated before is not counted. Call it while no
// other thread makes tensors.
TensorMemory& count_tensor_memory();

}  // namespace starling
