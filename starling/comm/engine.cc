#include "starling/comm/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "starling/base/error.h"
#include "starling/comm/collective/shm_all_gather.h"
#include "starling/comm/collective/shm_all_to_all.h"
#include "starling/comm/collective/shm_broadcast.h"
#include "starling/comm/collective/shm_direct_all_reduce.h"
#include "starling/comm/collective/shm_reduce_scatter.h"
#include "starling/comm/link_probe.h"
#include "starling/comm/recorder.h"
#include "starling/comm/shared_memory.h"

namespace starling {

namespace {

// The team's numbers, with what is waited for in the flight recorder.
class RecordedSync final : public LocalSync {
 public:
  RecordedSync(LocalTeam& team, std::shared_ptr<FlightRecorder> recorder, int group)
      : team_(team), recorder_(std::move(recorder)), group_(group) {}

  int rank() const override { return team_.rank(); }
  int size() const override { return team_.size(); }
  void post(int slot, uint64_t value) override { team_.post(slot, value); }
  uint64_t peek(int rank, int slot) const override { return team_.peek(rank, slot); }
  void wait(int rank, int slot, uint64_t value, const std::string& what) override {
    if (team_.peek(rank, slot) >= value) return;
    const RecordedOperation entry(
        *recorder_, recorder_->begin_wait(group_, team_.liveness().global_rank(rank), slot, value));
    team_.wait(rank, slot, value, what);
  }

 private:
  LocalTeam& team_;
  const std::shared_ptr<FlightRecorder> recorder_;
  const int group_;
};

void check_operation(DataType type, ReduceOp op) {
  if (is_bitwise(op) && is_floating(type))
    throw CommError(fmt::format("{} of {}: bitwise operations are for integers", name_of(op), name_of(type)));
}

}  // namespace

Engine::Engine(EngineParts parts)
    : places_(std::move(parts.places)),
      options_(parts.options),
      store_(parts.store),
      key_(std::move(parts.key)),
      team_(std::move(parts.team)),
      choice_({.named = options_.algorithm,
               .tuning = Tuning::parse(parts.tuning, "tuning"),
               .ranks = places_.size(),
               .hosts = static_cast<int>(places_.hosts.size()),
               .link = options_.link}) {
  if (options_.recorder && size() > 1) {
    recorded_group_ = options_.recorder->add_group(parts.name);
    recorded_sync_ = std::make_unique<RecordedSync>(*team_, options_.recorder, recorded_group_);
  }
  if (parts.rings != nullptr) local_mail_ = std::make_unique<LocalMail>(*team_, std::move(parts.rings));
  if (!parts.collective_endpoints.empty()) connect(parts);
}

void Engine::connect(EngineParts& parts) {
  notes_ = std::make_shared<FailureNotes>(*store_, key_, rank());
  const auto setup = [&](std::vector<std::unique_ptr<Endpoint>> endpoints) {
    return RemoteSetup{rank(),
                       places_.host_names,
                       std::move(endpoints),
                       options_.timeout,
                       [this] { return team_->trouble(-1); },
                       options_.warn,
                       notes_};
  };
  peers_ = std::make_unique<RemotePeers>(setup(std::move(parts.collective_endpoints)));
  remote_mail_ =
      std::make_unique<RemoteMail>(setup(std::move(parts.mail_endpoints)), [this](const Failure& failure) {
        team_->liveness().fail(failure);
        notes_->leave(failure);
      });
  std::vector<int> all(size()), lane;
  std::iota(all.begin(), all.end(), 0);
  everyone_ = std::make_unique<RemoteTeam>(*peers_, all, rank());
  lanes_ = size();
  for (const auto& ranks : places_.hosts) lanes_ = std::min(lanes_, static_cast<int>(ranks.size()));
  if (team_->rank() < lanes_) {
    for (const auto& ranks : places_.hosts) lane.push_back(ranks[team_->rank()]);
    lane_ = std::make_unique<RemoteTeam>(*peers_, lane, places_.my_host());
  }
  if (choice_.needs_link()) measure_link();
}

// Rank 0 measures, with the leader of the second host; all learn what it found.
void Engine::measure_link() {
  const Operation what{.kind = CollectiveKind::kBroadcast, .root = 0, .bytes = sizeof(LinkCost)};
  peers_->begin(what);
  LinkCost link;
  if (places_.is_leader()) link = probe_link(*lane_);
  hierarchical_broadcast(hierarchy(), what, &link);
  choice_.set_link(link);
}

LocalSync* Engine::local_sync() {
  return recorded_sync_ ? recorded_sync_.get() : team_.get();
}

Engine::~Engine() {
  // What was aborted elsewhere than in a collective has not been told to the other hosts yet.
  if (const auto failure = team_->liveness().own(); failure && peers_) peers_->announce(*failure);
  std::vector<Endpoint*> connections;
  if (peers_) connections = peers_->leave();
  if (remote_mail_)
    for (Endpoint* mail : remote_mail_->leave()) connections.push_back(mail);
  end_all(connections);
}

TrafficCount Engine::traffic() const {
  TrafficCount count{
      .window_written = team_->written(), .window_read = team_->read(), .window_far = team_->far()};
  if (peers_) {
    count.socket_sent = peers_->sent() + remote_mail_->sent();
    count.socket_received = peers_->received() + remote_mail_->received();
  }
  return count;
}

std::shared_ptr<Window> Engine::allocate_window(size_t bytes) {
  const std::lock_guard lock(window_order_);
  auto window =
      make_shared_window(store_, {.key = fmt::format("{}window/{}/{}", key_, places_.my_host(), windows_++),
                                  .local_rank = team_->rank(),
                                  .local_size = team_->size(),
                                  .bytes = bytes,
                                  .timeout = options_.timeout,
                                  .look = [this](int r) {
                                    if (const auto failure = team_->trouble(r)) team_->fail(*failure);
                                  }});
  team_->add_window(window);
  return window;
}

template <typename Body>
void Engine::carry_out(Operation operation, const Body& body) {
  const std::lock_guard lock(order_);
  team_->check_usable();
  operation.sequence = ++sequence_;
  const RecordedOperation entry(options_.recorder.get(), recorded_group_, operation);
  if (!peers_) return body(operation, nullptr);
  const Hierarchy hosts = hierarchy();
  peers_->begin(operation);
  try {
    body(operation, &hosts);
  } catch (const CommError& error) {
    // A fault of one transport ends the waits on the other.
    const Failure failure{error.what(), error.peer(), error.code() == ErrorCode::kTimeout};
    team_->liveness().fail(failure);
    peers_->announce(failure);
    throw;
  }
}

void Engine::check_peer(int peer, const char* what) const {
  if (peer >= 0 && peer < size()) return;
  throw CommError(fmt::format("{}: there is no rank {} in a group of {}", what, peer, size()));
}

void Engine::barrier() {
  carry_out({.kind = CollectiveKind::kBarrier}, [&](const Operation& operation, const Hierarchy* hosts) {
    if (hosts != nullptr) return hierarchical_barrier(*hosts, operation);
    if (size() > 1) team_->enter(operation, kNowhere, false);
  });
}

void Engine::broadcast(void* data, size_t count, DataType type, int root) {
  check_peer(root, "broadcast");
  const Operation what{
      .kind = CollectiveKind::kBroadcast, .type = type, .root = root, .bytes = count * size_of(type)};
  carry_out(what, [&](const Operation& operation, const Hierarchy* hosts) {
    if (hosts != nullptr) return hierarchical_broadcast(*hosts, operation, data);
    if (size() > 1) shm_broadcast(*team_, operation, data, operation.bytes, places_.local_rank_of(root));
  });
}

void Engine::all_reduce(void* data, size_t count, DataType type, ReduceOp op) {
  check_operation(type, op);
  const int divisor = op == ReduceOp::kAvg ? size() : 1;
  const Operation what{
      .kind = CollectiveKind::kAllReduce, .type = type, .op = op, .bytes = count * size_of(type)};
  carry_out(what, [&](const Operation& operation, const Hierarchy* hosts) {
    if (hosts != nullptr) return hierarchical_all_reduce(*hosts, operation, data, count, divisor);
    if (size() > 1) shm_all_reduce(*team_, operation, data, count, divisor);
  });
}

void Engine::reduce_scatter(const void* in, void* out, size_t count, DataType type, ReduceOp op) {
  check_operation(type, op);
  const int divisor = op == ReduceOp::kAvg ? size() : 1;
  const Operation what{
      .kind = CollectiveKind::kReduceScatter, .type = type, .op = op, .bytes = count * size_of(type)};
  carry_out(what, [&](const Operation& operation, const Hierarchy* hosts) {
    if (hosts != nullptr) return hierarchical_reduce_scatter(*hosts, operation, in, out, count, divisor);
    if (size() > 1) return shm_reduce_scatter(*team_, operation, in, out, count, divisor);
    if (operation.bytes > 0 && in != out) std::memcpy(out, in, operation.bytes);
  });
}

void Engine::all_gather(const void* in, void* out, size_t count, DataType type) {
  const Operation what{.kind = CollectiveKind::kAllGather, .type = type, .bytes = count * size_of(type)};
  carry_out(what, [&](const Operation& operation, const Hierarchy* hosts) {
    if (hosts != nullptr) return hierarchical_all_gather(*hosts, operation, in, out);
    if (size() > 1) return shm_all_gather(*team_, operation, in, out, operation.bytes);
    if (operation.bytes > 0 && in != out) std::memcpy(out, in, operation.bytes);
  });
}

void Engine::all_to_all(const void* in, std::span<const size_t> in_counts, void* out,
                        std::span<const size_t> out_counts, DataType type) {
  if (in_counts.size() != static_cast<size_t>(size()) || out_counts.size() != in_counts.size()) {
    throw CommError(fmt::format("all-to-all: {} and {} splits in a group of {}; give one a rank",
                                in_counts.size(), out_counts.size(), size()));
  }
  std::vector<uint64_t> sent, expected;
  for (const size_t n : in_counts) sent.push_back(n * size_of(type));
  for (const size_t n : out_counts) expected.push_back(n * size_of(type));
  carry_out({.kind = CollectiveKind::kAllToAll, .type = type}, [&](const Operation& operation,
                                                                   const Hierarchy* hosts) {
    if (size() > 1 && hosts == nullptr) return shm_all_to_all(*team_, operation, in, sent, out, expected);
    if (sent[rank()] != expected[rank()]) {
      team_->fail(Failure{fmt::format("{}: rank {} sends {} bytes to itself and expects {}",
                                      describe(operation), rank(), sent[rank()], expected[rank()])});
    }
    if (hosts != nullptr) return hierarchical_all_to_all(*hosts, operation, in, sent, out, expected);
    if (sent[0] > 0) std::memcpy(out, in, sent[0]);
  });
}

void Engine::send(const void* data, size_t bytes, int peer, uint32_t tag) {
  check_peer(peer, "send");
  if (peer == rank()) throw CommError("send: a rank cannot send to itself; copy instead");
  team_->check_usable();
  const RecordedOperation entry(options_.recorder.get(), recorded_group_,
                                {.kind = CollectiveKind::kSend, .bytes = bytes}, peer, tag);
  if (is_local(peer)) return local_mail_->send(data, bytes, places_.local_rank_of(peer), tag);
  remote_mail_->send(data, bytes, peer, tag);
}

void Engine::recv(void* data, size_t bytes, int peer, uint32_t tag) {
  check_peer(peer, "recv");
  if (peer == rank()) throw CommError("recv: a rank cannot receive from itself; copy instead");
  team_->check_usable();
  const RecordedOperation entry(options_.recorder.get(), recorded_group_,
                                {.kind = CollectiveKind::kRecv, .bytes = bytes}, peer, tag);
  if (is_local(peer)) return local_mail_->recv(data, bytes, places_.local_rank_of(peer), tag);
  remote_mail_->recv(data, bytes, peer, tag);
}

bool Engine::try_recv(void* data, size_t bytes, int peer, uint32_t tag) {
  check_peer(peer, "recv");
  if (peer == rank()) return false;
  team_->check_usable();
  if (is_local(peer) ? local_mail_->try_recv(data, bytes, places_.local_rank_of(peer), tag)
                     : remote_mail_->try_recv(data, bytes, peer, tag))
    return true;
  if (const auto failure = team_->trouble(-1)) team_->fail(*failure);
  return false;
}

void Engine::abort(const std::string& reason) {
  team_->liveness().fail(Failure{fmt::format("group aborted by rank {}: {}", rank(), reason), -1, false});
}

}  // namespace starling
