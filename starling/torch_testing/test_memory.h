// TestMemory is the memory of the test device (test_device.h). An address of the device lies in pages that no
// code may access. Kernels use the same bytes at another address.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

namespace starling {

// Blocks of device memory. Thread-safe.
class TestMemory {
 public:
  // Reserves the addresses. Errors: Error (kMemory).
  TestMemory();
  ~TestMemory();
  TestMemory(const TestMemory&) = delete;
  TestMemory& operator=(const TestMemory&) = delete;

  // Returns the device address of at least `bytes` bytes, aligned to 64. Errors: Error (kMemory) if the
  // device is full.
  void* allocate(size_t bytes);
  // Frees what allocate() returned.
  void free(void* block);
  // Returns where kernels access this device address.
  void* kernel_address(const void* device_address) const;

 private:
  std::byte* base_;
  std::mutex mutex_;
  size_t used_ = 0;
  std::map<const void*, size_t> sizes_;               // of the blocks in use
  std::map<size_t, std::vector<void*>> free_blocks_;  // by size
};

}  // namespace starling
