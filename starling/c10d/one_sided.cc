#include "starling/c10d/one_sided.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "starling/base/error.h"
#include "starling/c10d/backend_calls.h"

namespace starling {
namespace {

[[noreturn]] void refuse_window(const char* operation, const std::string& why) {
  throw Error(ErrorCode::kConfig, fmt::format("{}: {}", operation, why));
}

// What the ranks tell each other about their tensors.
struct TensorPlace {
  int64_t count, type, storage_bytes, offset;
};

std::vector<TensorPlace> places_of_all(Group& group, const at::Tensor& tensor) {
  const auto item = static_cast<int64_t>(tensor.itemsize());
  const TensorPlace own{tensor.numel(), static_cast<int64_t>(tensor.scalar_type()),
                        static_cast<int64_t>(tensor.storage().nbytes()), tensor.storage_offset() * item};
  std::vector<TensorPlace> all(static_cast<size_t>(group.size()));
  static_assert(sizeof(TensorPlace) == 4 * sizeof(int64_t));
  all_gather(group, &own, all.data(), 4, DataType::kInt64);
  return all;
}

// Moves the bytes of the storage into `region`. The storage keeps `memory` alive.
void move_storage(const c10::Storage& storage, std::byte* region, const std::shared_ptr<Window>& memory) {
  const size_t bytes = storage.nbytes();
  if (bytes > 0) std::memcpy(region, storage.mutable_data(), bytes);
  auto* impl = storage.unsafeGetStorageImpl();
  impl->set_data_ptr_noswap(at::DataPtr(
      region, new std::shared_ptr<Window>(memory),
      [](void* held) { delete static_cast<std::shared_ptr<Window>*>(held); }, at::Device(at::kCPU)));
  impl->set_resizable(false);
}

}  // namespace

StarlingWindow::StarlingWindow(c10::intrusive_ptr<StarlingBackend> backend, int64_t number)
    : backend_(std::move(backend)), number_(number) {}

void StarlingWindow::tensor_register(const at::Tensor& tensor, bool owning) {
  constexpr const char* kName = "tensor_register";
  check_tensor(kName, tensor);
  if (!tensor.is_contiguous()) refuse_window(kName, "a tensor with gaps; give tensor.contiguous()");
  {
    const std::lock_guard lock(mutex_);
    if (registered_) refuse_window(kName, "the window has a tensor; call tensor_deregister() before");
  }
  auto made = std::make_shared<Registered>();
  made->sizes = tensor.sizes().vec();
  made->type = tensor.scalar_type();
  made->count = tensor.numel();
  if (owning) made->tensor = tensor;
  const auto body = [made, tensor, backend = backend_.get()](Group& group) {
    const std::vector<TensorPlace> all = places_of_all(group, tensor);
    int64_t bytes = 1;
    made->offsets.reserve(all.size());
    for (size_t r = 0; r < all.size(); ++r) {
      if (all[r].count != all[0].count || all[r].type != all[0].type) {
        refuse_window(
            kName,
            fmt::format("{} elements of {} on rank 0 and {} of {} on rank {}; give tensors of one shape",
                        all[0].count, c10::toString(static_cast<at::ScalarType>(all[0].type)), all[r].count,
                        c10::toString(static_cast<at::ScalarType>(all[r].type)), r));
      }
      bytes = std::max(bytes, all[r].storage_bytes);
      made->offsets.push_back(static_cast<size_t>(all[r].offset));
    }
    made->memory = backend->window_of(group, static_cast<size_t>(bytes));
    move_storage(tensor.storage(), made->memory->region(group.local_rank()), made->memory);
    starling::barrier(group);  // no rank puts before all tensors have moved
  };
  made->group = backend_->group();
  backend_->in_order("starling:window", body)->wait();
  const std::lock_guard lock(mutex_);
  registered_ = std::move(made);
}

void StarlingWindow::tensor_deregister() {
  registered("tensor_deregister", 0);
  backend_->in_order("starling:window", [](Group& group) { starling::barrier(group); })->wait();
  const std::lock_guard lock(mutex_);
  registered_.reset();
}

std::shared_ptr<const StarlingWindow::Registered> StarlingWindow::registered(const char* operation,
                                                                             int64_t rank) const {
  std::shared_ptr<const Registered> current;
  {
    const std::lock_guard lock(mutex_);
    current = registered_;
  }
  if (!current) refuse_window(operation, "the window has no tensor; call tensor_register() on all ranks");
  if (current->group.lock() != backend_->group()) {
    throw CommError(fmt::format("{}: the window is of a group that has ended; make a new one", operation));
  }
  if (rank < 0 || rank >= static_cast<int64_t>(current->offsets.size())) {
    refuse_window(operation, fmt::format("rank {} does not exist in a group of {} ranks", rank,
                                         current->offsets.size()));
  }
  return current;
}

StarlingWindow::WorkPtr StarlingWindow::put(const at::Tensor& tensor, int64_t peer, int64_t offset,
                                            bool async, const c10d::PutOptions& options) {
  check_tensor("put", tensor);
  const auto to = registered("put", peer);
  if (tensor.scalar_type() != to->type) {
    refuse_window("put", fmt::format("a tensor of {} into a window of {}; convert it",
                                     c10::toString(tensor.scalar_type()), c10::toString(to->type)));
  }
  if (offset < 0 || offset > to->count || tensor.numel() > to->count - offset) {
    refuse_window("put", fmt::format("{} elements from element {} on, into a window of {}", tensor.numel(),
                                     offset, to->count));
  }
  const auto body = [to, tensor, peer, offset](Group&, StarlingWork&) {
    const at::Tensor flat = tensor.contiguous();
    std::byte* region = to->memory->region(static_cast<int>(peer));
    if (flat.nbytes() == 0) return;
    // Source and target may overlap: a rank may put from a tensor that it has mapped.
    std::memmove(region + to->offsets[peer] + static_cast<size_t>(offset) * flat.itemsize(),
                 flat.const_data_ptr(), flat.nbytes());
  };
  return backend_->on_lane({static_cast<int>(peer), StarlingBackend::window_lane(number_, true)},
                           c10d::OpType::UNKNOWN, "starling:put", {}, async, options.timeout, body);
}

at::Tensor StarlingWindow::map_remote_tensor(int64_t rank) {
  const auto of = registered("map_remote_tensor", rank);
  return at::from_blob(
      of->memory->region(static_cast<int>(rank)) + of->offsets[rank], of->sizes,
      [memory = of->memory](void*) {}, at::dtype(of->type));
}

// A signal is an empty message with the tag of the window. It therefore has the faults and the memory order
// of messages.
StarlingWindow::WorkPtr StarlingWindow::signals(const char* operation, int64_t peer, bool sends, bool async,
                                                std::chrono::milliseconds limit) {
  registered(operation, peer);
  if (peer == backend_->getRank()) refuse_window(operation, "a rank does not signal itself");
  const uint32_t tag = StarlingBackend::window_tag(number_);
  const auto body = [backend = backend_.get(), peer = static_cast<int>(peer), sends, tag, limit](
                        Group& group, StarlingWork&) {
    bool came = true;
    backend->guarded([&] {
      if (sends) return starling::send(group, nullptr, 0, peer, tag);
      if (limit.count() <= 0) return starling::recv(group, nullptr, 0, peer, tag);
      came = look_until(std::chrono::steady_clock::now() + limit,
                        [&] { return group.try_recv(nullptr, 0, peer, tag); });
    });
    if (came) return;
    throw TimeoutError(fmt::format("rank {} ({}) did not signal within {} ms; wait again, or see its log",
                                   peer, group.host_of(peer), limit.count()),
                       peer);
  };
  return backend_->on_lane({static_cast<int>(peer), StarlingBackend::window_lane(number_, sends)},
                           c10d::OpType::UNKNOWN, sends ? "starling:signal" : "starling:wait_signal", {},
                           async, sends ? limit : std::chrono::milliseconds(0), body);
}

StarlingWindow::WorkPtr StarlingWindow::signal(int64_t peer, bool async, const c10d::SignalOptions& options) {
  return signals("signal", peer, true, async, options.timeout);
}

StarlingWindow::WorkPtr StarlingWindow::wait_signal(int64_t peer, bool async,
                                                    const c10d::WaitSignalOptions& options) {
  return signals("wait_signal", peer, false, async, options.timeout);
}

c10d::WindowAttr StarlingWindow::get_attr(int64_t peer) {
  registered("get_attr", peer);
  return {c10d::WindowAccessType::UNIFIED};
}

}  // namespace starling
