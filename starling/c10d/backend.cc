#include "starling/c10d/backend.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "starling/base/error.h"
#include "starling/c10d/backend_calls.h"
#include "starling/c10d/data_type.h"

namespace starling {

StarlingBackend::StarlingBackend(std::shared_ptr<Group> group)
    : c10d::Backend(group->rank(), group->size()), group_(std::move(group)) {}

StarlingBackend::~StarlingBackend() {
  shutdown();
}

c10::intrusive_ptr<c10d::Backend::Options> StarlingBackend::getBackendOptions() {
  return c10::make_intrusive<Options>(getBackendName());
}

void StarlingBackend::abort() {
  group_->abort("abort() of the process group was called");
}

void StarlingBackend::shutdown() {
  std::vector<WorkQueue*> queues{&collectives_};
  {
    const std::lock_guard lock(mail_mutex_);
    mail_stopped_ = true;
    for (const auto& [key, queue] : mail_) queues.push_back(queue.get());
  }
  bool pending = false;
  for (const WorkQueue* queue : queues) pending = pending || queue->busy();
  if (pending) group_->abort("the process group ended while operations were pending; wait() for them before");
  for (WorkQueue* queue : queues) queue->stop();
}

void StarlingBackend::check_rank(const char* operation, int64_t rank) const {
  if (rank >= 0 && rank < size_) return;
  throw Error(ErrorCode::kConfig,
              fmt::format("{}: there is no rank {} in a group of {}", operation, rank, size_));
}

StarlingBackend::WorkPtr StarlingBackend::mail(c10d::OpType type, const char* title, int peer,
                                               const at::Tensor& tensor, std::function<void()> body) {
  const std::lock_guard lock(mail_mutex_);
  if (mail_stopped_) throw CommError("the backend starling has been shut down; make a new process group");
  auto& queue = mail_[{peer, type == c10d::OpType::SEND}];
  if (!queue) queue = std::make_unique<WorkQueue>();
  const WorkDescription description{
      .rank = rank_, .type = type, .title = title, .sequence = ++mail_sequence_};
  auto work = c10::make_intrusive<StarlingWork>(description, Tensors{tensor});
  queue->submit({std::move(body), work});
  return work;
}

StarlingBackend::WorkPtr StarlingBackend::send(Tensors& tensors, int peer, int tag) {
  check_single("send", tensors);
  check_rank("send", peer);
  const at::Tensor& tensor = tensors[0];
  return mail(c10d::OpType::SEND, "starling:send", peer, tensor, [this, tensor, peer, tag] {
    const at::Tensor flat = tensor.contiguous();
    group_->send(flat.const_data_ptr(), flat.nbytes(), peer, static_cast<uint32_t>(tag));
  });
}

StarlingBackend::WorkPtr StarlingBackend::recv(Tensors& tensors, int peer, int tag) {
  check_single("recv", tensors);
  check_rank("recv", peer);
  const at::Tensor& tensor = tensors[0];
  return mail(c10d::OpType::RECV, "starling:recv", peer, tensor, [this, tensor, peer, tag] {
    const at::Tensor flat = writable(tensor);
    group_->recv(flat.mutable_data_ptr(), flat.nbytes(), peer, static_cast<uint32_t>(tag));
    store(flat, tensor);
  });
}

StarlingBackend::WorkPtr StarlingBackend::barrier(const c10d::BarrierOptions& options) {
  return collective(c10d::OpType::BARRIER, "starling:barrier", options, {},
                    [](Group& group) { group.barrier(); });
}

// NOLINTNEXTLINE(google-runtime-int): c10d's type
at::Tensor StarlingBackend::allocateTensor(long size, at::TensorOptions options) {
  if (!options.device().is_cpu()) {
    throw Error(ErrorCode::kConfig,
                fmt::format("allocateTensor: a tensor on {}, and the backend starling communicates "
                            "CPU tensors; NCCL is the backend for CUDA",
                            options.device().str()));
  }
  if (size < 0) throw Error(ErrorCode::kConfig, fmt::format("allocateTensor: {} elements", size));
  const auto type = c10::typeMetaToScalarType(options.dtype());
  const size_t bytes = std::max<size_t>(1, static_cast<size_t>(size) * size_of(data_type_of(type)));
  const std::shared_ptr<Window> window = group_->allocate_window(bytes);
  return at::from_blob(window->region(group_->local_rank()), {size}, [window](void*) {}, at::dtype(type));
}

}  // namespace starling
