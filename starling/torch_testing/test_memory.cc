#include "starling/torch_testing/test_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>

#include "starling/base/error.h"

namespace starling {
namespace {

constexpr size_t kBytes = size_t{8} << 30;  // addresses; the kernel provides pages that are used
constexpr size_t kAlignment = 64;

}  // namespace

TestMemory::TestMemory() {
  void* base =
      ::mmap(nullptr, 2 * kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, 0);
  base_ = static_cast<std::byte*>(base);
  if (base == MAP_FAILED || ::mprotect(base_ + kBytes, kBytes, PROT_READ | PROT_WRITE) != 0)
    throw Error(ErrorCode::kMemory, "the test device cannot reserve 16 GiB of addresses; raise `ulimit -v`");
}

TestMemory::~TestMemory() {
  ::munmap(base_, 2 * kBytes);
}

void* TestMemory::allocate(size_t bytes) {
  const size_t size = std::bit_ceil(std::max(bytes, kAlignment));
  const std::lock_guard lock(mutex_);
  std::vector<void*>& free = free_blocks_[size];
  if (free.empty()) {
    if (used_ + size > kBytes) throw Error(ErrorCode::kMemory, "the 8 GiB of the test device are full");
    free.push_back(base_ + used_);
    used_ += size;
  }
  void* block = free.back();
  free.pop_back();
  sizes_[block] = size;
  return block;
}

void TestMemory::free(void* block) {
  const std::lock_guard lock(mutex_);
  const auto found = sizes_.find(block);
  free_blocks_[found->second].push_back(block);
  sizes_.erase(found);
}

void* TestMemory::kernel_address(const void* device_address) const {
  return base_ + kBytes + (static_cast<const std::byte*>(device_address) - base_);
}

}  // namespace starling
