#include "starling/comm/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "starling/base/error.h"
#include "starling/comm/choice/link_probe.h"
#include "starling/comm/collective/shm_all_gather.h"
#include "starling/comm/collective/shm_all_to_all.h"
#include "starling/comm/collective/shm_broadcast.h"
#include "starling/comm/collective/shm_direct_all_reduce.h"
#include "starling/comm/collective/shm_reduce_scatter.h"
#include "starling/comm/host/shared_memory.h"
#include "starling/comm/recorder/flight_recorder.h"

namespace starling {

namespace {

// RecordedSync passes calls on to the counters of the team. It enters every wait into the flight recorder.
class RecordedSync final : public LocalSync {
 public:
  RecordedSync(LocalTeam& team, std::shared_ptr<FlightRecorder> recorder, int group)
      : team_(team), recorder_(std::move(recorder)), group_(group) {}

  int rank() const override { return team_.rank(); }
  int size() const override { return team_.size(); }
  void post(int counter, uint64_t value) override { team_.post(counter, value); }
  uint64_t peek(int rank, int counter) const override { return team_.peek(rank, counter); }
  void wait(int rank, int counter, uint64_t value, const std::string& what) override {
    if (team_.peek(rank, counter) >= value) return;
    const RecordedOperation entry(
        *recorder_, recorder_->begin_wait(group_, team_.liveness().global_rank(rank), counter, value));
    team_.wait(rank, counter, value, what);
  }

 private:
  LocalTeam& team_;
  const std::shared_ptr<FlightRecorder> recorder_;
  const int group_;
};

}  // namespace

Engine::Engine(EngineParts parts)
    : places_(std::move(parts.places)),
      options_(parts.options),
      store_(parts.store),
      key_(std::move(parts.key)),
      job_ranks_(std::move(parts.job_ranks)),
      team_(std::move(parts.team)),
      choice_({.named = options_.algorithm,
               .tuning = Tuning::parse(parts.tuning, "tuning"),
               .ranks = places_.size(),
               .hosts = static_cast<int>(places_.hosts.size()),
               .link = options_.link}),
      calls_(fmt::format("the group '{}'", parts.name),
             [this](const Call& call, Progress progress) { execute(call, progress); }) {
  if (options_.recorder && size() > 1) {
    recorded_group_ = options_.recorder->add_group(parts.name);
    recorded_sync_ = std::make_unique<RecordedSync>(*team_, options_.recorder, recorded_group_);
  }
  if (parts.rings != nullptr)
    local_messages_ = std::make_unique<LocalMessages>(*team_, std::move(parts.rings), options_.inbox_bytes);
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
                       notes_,
                       options_.inbox_bytes};
  };
  peers_ = std::make_unique<RemotePeers>(setup(std::move(parts.collective_endpoints)));
  remote_messages_ = std::make_unique<RemoteMessages>(setup(std::move(parts.message_endpoints)),
                                                      [this](const Failure& failure) { spread(failure); });
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

// Measures the link between rank 0 and the leader of the second host. Every rank learns the result of rank 0.
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
  if (calls_.pending()) abort("the group ended while operations were in progress; wait() for them before");
  calls_.end();
  // If the group was aborted outside a collective, the other hosts do not know it yet.
  if (const auto failure = team_->liveness().own(); failure && peers_) peers_->announce(*failure);
  std::vector<Endpoint*> connections;
  if (peers_) connections = peers_->leave();
  if (remote_messages_)
    for (Endpoint* endpoint : remote_messages_->leave()) connections.push_back(endpoint);
  end_all(connections);
}

TrafficCount Engine::traffic() const {
  TrafficCount count{.window_published = team_->published(),
                     .window_received = team_->received(),
                     .window_far = team_->far()};
  if (peers_) {
    count.socket_sent = peers_->sent() + remote_messages_->sent();
    count.socket_received = peers_->received() + remote_messages_->received();
  }
  return count;
}

std::shared_ptr<Window> Engine::allocate_window(size_t bytes) {
  const std::lock_guard lock(window_order_);
  if (options_.free_windows) team_->free_windows();
  auto window =
      make_shared_window(store_, {.key = fmt::format("{}window/{}/{}", key_, places_.my_host(), windows_++),
                                  .local_rank = team_->rank(),
                                  .local_size = team_->size(),
                                  .bytes = bytes,
                                  .timeout = options_.timeout,
                                  .look = [this](int r) {
                                    if (const auto failure = team_->trouble(r)) team_->fail(*failure);
                                  }});
  if (options_.free_windows) team_->free_windows();
  team_->add_window(window);
  return window;
}

template <typename Body>
void Engine::carry_out(Operation operation, Progress progress, const Body& body) {
  const std::lock_guard lock(order_);
  team_->check_usable();
  team_->wait_in_rounds_by(waiting(progress));
  operation.sequence = ++sequence_;
  const RecordedOperation entry(options_.recorder.get(), recorded_group_, operation);
  if (!peers_) return body(operation, nullptr);
  const Hierarchy hosts = hierarchy();
  peers_->begin(operation);
  try {
    body(operation, &hosts);
  } catch (const CommError& error) {
    const Failure failure{error.what(), error.peer(), error.code() == ErrorCode::kTimeout};
    team_->liveness().fail(failure);
    peers_->announce(failure);
    remote_messages_->abandon();
    throw;
  }
}

WorkPtr Engine::start(const Call& call) {
  check_call(call, rank(), size());
  return calls_.start(call);
}

void Engine::run(const Call& call) {
  check_call(call, rank(), size());
  calls_.run(call);
}

void Engine::execute(const Call& call, Progress progress) {
  switch (call.kind) {
    case CollectiveKind::kSend:
      return send(call, progress);
    case CollectiveKind::kRecv:
      return recv(call, progress);
    case CollectiveKind::kAllToAll:
      return all_to_all(call, progress);
    default:
      break;
  }
  carry_out(operation_of(call), progress,
            [&](const Operation& operation, const Hierarchy* hosts) { collective(call, operation, hosts); });
}

void Engine::collective(const Call& call, const Operation& operation, const Hierarchy* hosts) {
  const bool alone = size() == 1;
  const int divisor = call.op == ReduceOp::kAvg ? size() : 1;
  const auto copy = [&] {
    if (operation.bytes > 0 && call.in != call.out) std::memcpy(call.out, call.in, operation.bytes);
  };
  switch (call.kind) {
    case CollectiveKind::kBarrier:
      if (hosts != nullptr) return hierarchical_barrier(*hosts, operation);
      if (!alone) team_->enter(operation, kNowhere, false);
      return;
    case CollectiveKind::kBroadcast:
      if (hosts != nullptr) return hierarchical_broadcast(*hosts, operation, call.out);
      if (!alone)
        shm_broadcast(*team_, operation, call.out, operation.bytes, places_.local_rank_of(call.rank));
      return;
    case CollectiveKind::kAllReduce:
      if (hosts != nullptr) return hierarchical_all_reduce(*hosts, operation, call.out, call.count, divisor);
      if (!alone) shm_all_reduce(*team_, operation, call.out, call.count, divisor);
      return;
    case CollectiveKind::kReduceScatter:
      if (hosts != nullptr)
        return hierarchical_reduce_scatter(*hosts, operation, call.in, call.out, call.count, divisor);
      return alone ? copy() : shm_reduce_scatter(*team_, operation, call.in, call.out, call.count, divisor);
    case CollectiveKind::kAllGather:
      if (hosts != nullptr) return hierarchical_all_gather(*hosts, operation, call.in, call.out);
      return alone ? copy() : shm_all_gather(*team_, operation, call.in, call.out, operation.bytes);
    default:
      throw CommError(fmt::format("{} is not a collective of a group", name_of(call.kind)));
  }
}

void Engine::all_to_all(const Call& call, Progress progress) {
  std::vector<uint64_t> sent, expected;
  for (const size_t n : call.in_counts) sent.push_back(n * size_of(call.type));
  for (const size_t n : call.out_counts) expected.push_back(n * size_of(call.type));
  carry_out(operation_of(call), progress, [&](const Operation& operation, const Hierarchy* hosts) {
    if (size() > 1 && hosts == nullptr)
      return shm_all_to_all(*team_, operation, call.in, sent, call.out, expected);
    if (sent[rank()] != expected[rank()]) {
      team_->fail(Failure{fmt::format("{}: rank {} sends {} bytes to itself and expects {}",
                                      describe(operation), rank(), sent[rank()], expected[rank()])});
    }
    if (hosts != nullptr)
      return hierarchical_all_to_all(*hosts, operation, call.in, sent, call.out, expected);
    if (sent[0] > 0) std::memcpy(call.out, call.in, sent[0]);
  });
}

void Engine::send(const Call& call, Progress progress) {
  team_->check_usable();
  const RecordedOperation entry(options_.recorder.get(), recorded_group_,
                                {.kind = CollectiveKind::kSend, .bytes = call.count}, call.rank, call.tag);
  if (!is_local(call.rank)) return remote_messages_->send(call.in, call.count, call.rank, call.tag);
  local_messages_->send(call.in, call.count, places_.local_rank_of(call.rank), call.tag, waiting(progress));
}

void Engine::recv(const Call& call, Progress progress) {
  team_->check_usable();
  const RecordedOperation entry(options_.recorder.get(), recorded_group_,
                                {.kind = CollectiveKind::kRecv, .bytes = call.count}, call.rank, call.tag);
  if (!is_local(call.rank)) return remote_messages_->recv(call.out, call.count, call.rank, call.tag);
  local_messages_->recv(call.out, call.count, places_.local_rank_of(call.rank), call.tag, waiting(progress));
}

bool Engine::try_recv(void* data, size_t bytes, int peer, uint32_t tag) {
  if (peer == rank()) return false;
  check_call(recv_call(data, bytes, peer, tag), rank(), size());
  team_->check_usable();
  if (is_local(peer) ? local_messages_->try_recv(data, bytes, places_.local_rank_of(peer), tag)
                     : remote_messages_->try_recv(data, bytes, peer, tag))
    return true;
  if (const auto failure = team_->trouble(-1)) team_->fail(*failure);
  return false;
}

void Engine::abort(const std::string& reason) {
  spread(Failure{fmt::format("group aborted by rank {}: {}", rank(), reason), -1, false});
}

// A failure of one transport must end the waits on the others, here and on other ranks. A collective that
// runs on another thread of this rank sees the failure and announces it itself.
void Engine::spread(const Failure& failure) {
  team_->liveness().fail(failure);
  if (!peers_) return;
  notes_->leave(failure);
  if (const std::unique_lock free(order_, std::try_to_lock); free.owns_lock()) peers_->announce(failure);
  if (remote_messages_) remote_messages_->abandon();
}

}  // namespace starling
