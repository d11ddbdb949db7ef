#include "starling/comm/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "starling/base/error.h"
#include "starling/comm/collective/shm_all_gather.h"
#include "starling/comm/collective/shm_all_to_all.h"
#include "starling/comm/collective/shm_broadcast.h"
#include "starling/comm/collective/shm_direct_all_reduce.h"
#include "starling/comm/collective/shm_reduce_scatter.h"
#include "starling/comm/shared_memory.h"

namespace starling {

int Places::local_rank_of(int other) const {
  const auto& ranks = hosts[host_of[other]];
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), other) - ranks.begin());
}

Engine::Engine(EngineParts parts)
    : places_(std::move(parts.places)),
      options_(parts.options),
      store_(parts.store),
      key_(std::move(parts.key)),
      team_(std::move(parts.team)) {
  if (parts.rings != nullptr) mail_ = std::make_unique<LocalMail>(*team_, std::move(parts.rings));
}

Engine::~Engine() = default;

TrafficCount Engine::traffic() const {
  return TrafficCount{.window_written = team_->written(), .window_read = team_->read()};
}

std::shared_ptr<Window> Engine::allocate_window(size_t bytes) {
  const std::lock_guard lock(window_order_);
  auto window = make_shared_window(store_, {.key = fmt::format("{}window/{}", key_, windows_++),
                                            .local_rank = team_->rank(),
                                            .local_size = team_->size(),
                                            .bytes = bytes,
                                            .timeout = options_.timeout});
  team_->add_window(window);
  return window;
}

Operation Engine::next(CollectiveKind kind, DataType type, uint64_t bytes, ReduceOp op, int root) {
  team_->check_usable();
  return Operation{kind, type, op, root, bytes, ++sequence_};
}

void Engine::check_peer(int peer, const char* what) const {
  if (peer >= 0 && peer < size()) return;
  throw CommError(fmt::format("{}: there is no rank {} in a group of {}", what, peer, size()));
}

void Engine::barrier() {
  const std::lock_guard lock(order_);
  const Operation operation = next(CollectiveKind::kBarrier, DataType::kUint8, 0);
  if (size() > 1) team_->enter(operation, kNowhere, false);
}

void Engine::broadcast(void* data, size_t count, DataType type, int root) {
  check_peer(root, "broadcast");
  const std::lock_guard lock(order_);
  const Operation operation = next(CollectiveKind::kBroadcast, type, count * size_of(type), ReduceOp::kSum, root);
  if (size() > 1) shm_broadcast(*team_, operation, data, operation.bytes, places_.local_rank_of(root));
}

void Engine::all_reduce(void* data, size_t count, DataType type, ReduceOp op) {
  const std::lock_guard lock(order_);
  const Operation operation = next(CollectiveKind::kAllReduce, type, count * size_of(type), op);
  const int divisor = op == ReduceOp::kAvg ? size() : 1;
  if (size() > 1) shm_all_reduce(*team_, operation, data, count, divisor);
}

void Engine::reduce_scatter(const void* in, void* out, size_t count, DataType type, ReduceOp op) {
  const std::lock_guard lock(order_);
  const Operation operation = next(CollectiveKind::kReduceScatter, type, count * size_of(type), op);
  const int divisor = op == ReduceOp::kAvg ? size() : 1;
  if (size() > 1) return shm_reduce_scatter(*team_, operation, in, out, count, divisor);
  if (operation.bytes > 0 && in != out) std::memcpy(out, in, operation.bytes);
}

void Engine::all_gather(const void* in, void* out, size_t count, DataType type) {
  const std::lock_guard lock(order_);
  const Operation operation = next(CollectiveKind::kAllGather, type, count * size_of(type));
  if (size() > 1) return shm_all_gather(*team_, operation, in, out, operation.bytes);
  if (operation.bytes > 0 && in != out) std::memcpy(out, in, operation.bytes);
}

void Engine::all_to_all(const void* in, std::span<const size_t> in_counts, void* out,
                        std::span<const size_t> out_counts, DataType type) {
  if (in_counts.size() != static_cast<size_t>(size()) || out_counts.size() != in_counts.size()) {
    throw CommError(fmt::format("all-to-all: {} and {} splits in a group of {}; give one a rank", in_counts.size(),
                                out_counts.size(), size()));
  }
  const std::lock_guard lock(order_);
  const Operation operation = next(CollectiveKind::kAllToAll, type, 0);
  std::vector<uint64_t> in_bytes(size()), out_bytes(size());
  for (int r = 0; r < size(); ++r) {
    in_bytes[r] = in_counts[r] * size_of(type);
    out_bytes[r] = out_counts[r] * size_of(type);
  }
  if (size() > 1) return shm_all_to_all(*team_, operation, in, in_bytes, out, out_bytes);
  if (in_bytes[0] != out_bytes[0]) throw CommError("all-to-all: the splits of rank 0 for itself differ");
  if (in_bytes[0] > 0) std::memcpy(out, in, in_bytes[0]);
}

void Engine::send(const void* data, size_t bytes, int peer, uint32_t tag) {
  check_peer(peer, "send");
  if (peer == rank()) throw CommError("send: a rank cannot send to itself");
  mail_->send(data, bytes, places_.local_rank_of(peer), tag);
}

void Engine::recv(void* data, size_t bytes, int peer, uint32_t tag) {
  check_peer(peer, "recv");
  if (peer == rank()) throw CommError("recv: a rank cannot receive from itself");
  mail_->recv(data, bytes, places_.local_rank_of(peer), tag);
}

void Engine::abort(const std::string& reason) {
  team_->liveness().fail(Failure{fmt::format("group aborted by rank {}: {}", rank(), reason), -1, false});
}

}  // namespace starling
