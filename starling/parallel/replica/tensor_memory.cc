#include "starling/parallel/replica/tensor_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <new>

namespace starling {
namespace {

// Precedes each allocation and holds what the deallocation needs. It is as long as the alignment that c10
// gives tensors.
struct alignas(64) Header {
  void* allocation;
  c10::DeleterFnPtr free;
  int64_t bytes;
  TensorMemory* memory;
};

// data: the pointer that the tensor has, or null.
void count_and_free(void* data) {
  if (data == nullptr) return;
  const Header header = *(static_cast<Header*>(data) - 1);
  header.memory->subtract(header.bytes);
  header.free(header.allocation);
}

class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator& behind) : behind_(behind) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return behind_.allocate(0);
    c10::DataPtr whole = behind_.allocate(sizeof(Header) + bytes);
    auto* header = new (whole.get())
        Header{whole.get_context(), whole.get_deleter(), static_cast<int64_t>(bytes), &memory_};
    const c10::Device device = whole.device();
    whole.release_context();
    memory_.add(header->bytes);
    return {header + 1, header + 1, &count_and_free, device};
  }
  // For callers that allocate raw memory (oneDNN's kernels): the pointer alone is enough to free it.
  c10::DeleterFnPtr raw_deleter() const override { return &count_and_free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  TensorMemory& memory() { return memory_; }

 private:
  c10::Allocator& behind_;
  TensorMemory memory_;
};

}  // namespace

void TensorMemory::add(int64_t bytes) {
  const int64_t now = live_.fetch_add(bytes) + bytes;
  int64_t most = peak_.load();
  while (now > most && !peak_.compare_exchange_weak(most, now)) {
  }
}

TensorMemory& count_tensor_memory() {
  c10::Allocator* present = c10::GetCPUAllocator();
  auto* counting = dynamic_cast<CountingAllocator*>(present);
  if (counting == nullptr) {
    counting = new CountingAllocator(*present);  // c10 never frees it
    c10::SetCPUAllocator(counting);
  }
  return counting->memory();
}

}  // namespace starling
