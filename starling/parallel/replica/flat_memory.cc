#include "starling/parallel/replica/flat_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <torch/types.h>

#include <atomic>
#include <cstring>

#include "starling/base/check.h"
#include "starling/base/error.h"

namespace starling {
namespace {

constexpr size_t kPage = 4096;

size_t pages(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

// Returns private zeroed memory, page-aligned, in huge pages if the kernel has them.
std::shared_ptr<std::byte> private_memory(size_t bytes) {
  bytes = std::max(pages(bytes), kPage);
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    throw Error(ErrorCode::kMemory,
                fmt::format("out of memory: cannot allocate {} MB for parameters and optimizer states; "
                            "use a smaller model or fewer ranks",
                            bytes >> 20));
  }
  ::madvise(p, bytes, MADV_HUGEPAGE);
  return {static_cast<std::byte*>(p), [bytes](std::byte* q) { ::munmap(q, bytes); }};
}

// Returns a pointer for a storage. It keeps the memory's owner alive.
at::DataPtr held(void* data, const std::shared_ptr<void>& owner) {
  const auto release = [](void* kept) { delete static_cast<std::shared_ptr<void>*>(kept); };
  return {data, new std::shared_ptr<void>(owner), release, at::Device(at::kCPU)};
}

at::Tensor view_of(const at::Tensor& flat, size_t offset, const at::Tensor& like) {
  return flat.as_strided(like.sizes(), like.strides(), static_cast<int64_t>(offset));
}

}  // namespace

FlatMemory::FlatMemory(Group& group, const FlatMemoryOptions& options) : options_(options), group_(group) {
  const size_t locals = group.local_ranks().size();
  master_bytes_ = pages(options.total * at::elementSize(options.master));
  working_bytes_ =
      options.working == options.master ? 0 : pages(options.total * at::elementSize(options.working));
  side_bytes_ = master_bytes_ * (1 + options.states) + working_bytes_;
  gradient_bytes_ = pages(options.total * at::elementSize(options.working));
  if (options.sharded) {
    // The window holds two sides and a page for the commit word. They span the regions of the local ranks,
    // which lie in one range.
    shared_ = group.allocate_window(pages((2 * side_bytes_ + kPage + locals - 1) / locals));
    base_ = shared_->region(0);
    owner_ = shared_;
  } else {
    own_ = private_memory(two_sides() ? 2 * side_bytes_ : side_bytes_);
    base_ = own_.get();
    owner_ = own_;
  }
  if (locals > 1) {
    gradient_window_ = group.allocate_window(gradient_bytes_ * options.threads);
  } else {
    own_gradients_ = private_memory(gradient_bytes_ * options.threads);
  }
  flat_master_ = flat_tensor(parameters(false), options.master, owner_);
  if (working_bytes_ > 0) flat_working_ = flat_tensor(working(false), options.working, owner_);
  for (int i = 0; i < options.states; ++i)
    flat_states_.push_back(flat_tensor(state(i, false), options.master, owner_));
}

// Returns a tensor over a flat range. It keeps the memory's owner alive.
at::Tensor FlatMemory::flat_tensor(void* data, at::ScalarType type,
                                   const std::shared_ptr<void>& owner) const {
  return at::from_blob(
      data, {static_cast<int64_t>(options_.total)}, [owner](void*) {}, at::TensorOptions(type));
}

void* FlatMemory::state(int i, bool next) const {
  return side(next) + master_bytes_ * (1 + i);
}

void* FlatMemory::working(bool next) const {
  return working_bytes_ == 0 ? nullptr : side(next) + master_bytes_ * (1 + options_.states);
}

void* FlatMemory::gradients(int local_rank, int thread) const {
  std::byte* first = gradient_window_ ? gradient_window_->region(local_rank) : own_gradients_.get();
  return first + gradient_bytes_ * thread;
}

at::Tensor FlatMemory::master_view(size_t offset, const at::Tensor& like) const {
  return view_of(flat_master_, offset, like);
}

at::Tensor FlatMemory::working_view(size_t offset, const at::Tensor& like) const {
  return view_of(flat_working_.defined() ? flat_working_ : flat_master_, offset, like);
}

at::Tensor FlatMemory::state_view(int i, size_t offset, const at::Tensor& like) const {
  return view_of(flat_states_[i], offset, like);
}

at::Tensor FlatMemory::gradient_view(int thread, size_t offset, const at::Tensor& like) const {
  const std::shared_ptr<void> owner =
      gradient_window_ ? std::shared_ptr<void>(gradient_window_) : std::shared_ptr<void>(own_gradients_);
  return view_of(flat_tensor(gradients(group_.local_rank(), thread), options_.working, owner), offset, like);
}

void FlatMemory::point_storages() {
  const auto point = [this](const at::Tensor& flat, void* data) {
    flat.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(held(data, owner_));
  };
  point(flat_master_, parameters(false));
  if (flat_working_.defined()) point(flat_working_, working(false));
  for (int i = 0; i < options_.states; ++i) point(flat_states_[i], state(i, false));
}

void FlatMemory::commit(int64_t step) {
  if (!two_sides()) return;
  current_ ^= 1;
  point_storages();
  if (options_.sharded && group_.local_rank() == 0) {
    auto* word = reinterpret_cast<std::atomic<uint64_t>*>(base_ + 2 * side_bytes_);
    word->store(static_cast<uint64_t>(step) << 1 | static_cast<uint64_t>(current_),
                std::memory_order_release);
  }
}

}  // namespace starling
