#include "starling/server/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "starling/base/error.h"

namespace starling {

template <typename T>
template <typename Work>
auto ServerClient<T>::with(int shard, const char* what, const Work& work) {
  const auto where = [&](const CommError& error) {
    return fmt::format("server {} (rank {}) failed worker {} in {} at clock {}: {}", shard,
                       rendezvous_.rank_of_server(shard), worker_, what, shards_[shard].clock, error.what());
  };
  try {
    return work(shards_[shard]);
  } catch (const TimeoutError& error) {
    throw TimeoutError(where(error), rendezvous_.rank_of_server(shard));
  } catch (const CommError& error) {
    throw CommError(where(error), rendezvous_.rank_of_server(shard));
  }
}

template <typename T>
ServerClient<T>::ServerClient(Store& store, const ServerRendezvous& rendezvous, int worker,
                              Partitioning partitioning, ClientLayout layout)
    : rendezvous_(rendezvous),
      worker_(worker),
      partitioning_(std::move(partitioning)),
      layout_(std::move(layout)),
      shards_(partitioning_.shards()),
      pushes_(partitioning_.shards(), 0) {
  for (size_t p = 0; p < partitioning_.partitions.size(); ++p) {
    const Partition& partition = partitioning_.partitions[p];
    if (!layout_.owned.empty() && !layout_.owned[partition.parameter]) continue;
    shards_[partition.shard].partitions.push_back(p);
    shards_[partition.shard].count += partition.count;
  }
  for (size_t s = 0; s < shards_.size(); ++s) {
    shards_[s].link = meet_server(store, rendezvous, worker, static_cast<int>(s));
    greet(static_cast<int>(s));
  }
}

template <typename T>
ServerClient<T>::~ServerClient() = default;

// Returns the shape of the parameter if the partition is the whole parameter.
template <typename T>
TensorShape ServerClient<T>::shape_of(const Partition& partition) const {
  if (!layout_.shapes.empty() && layout_.shapes[partition.parameter].size() == partition.count)
    return layout_.shapes[partition.parameter];
  return {1, partition.count};
}

template <typename T>
void ServerClient<T>::greet(int shard) {
  with(shard, "hello", [&](Shard& s) {
    ServerHello hello{sizeof(T), {}, {}};
    std::vector<TensorShape> own;
    for (const size_t p : partitioning_.of_shard[shard]) {
      const TensorShape shape = shape_of(partitioning_.partitions[p]);
      if (std::binary_search(s.partitions.begin(), s.partitions.end(), p)) {
        hello.own_partitions.push_back(hello.shapes.size());
        own.push_back(shape);
      }
      hello.shapes.push_back(shape);
    }
    const auto stream = static_cast<uint64_t>(worker_) * shards_.size() + static_cast<uint64_t>(shard);
    s.pushed = ValueCoder<T>(layout_.push_codec, own, true, stream);
    s.pulled = ValueCoder<T>(layout_.pull_codec, own, false);
    const std::vector<uint64_t> body = encode_hello(hello);
    s.link->send({.code = MessageCode::kHello, .count = body.size()}, bytes_of(body));
    const ServerMessage welcome = s.link->recv_head();
    expect(welcome, MessageCode::kWelcome, s.link->peer());
    states_ = static_cast<int>(std::min<int64_t>(welcome.extra, 16));
  });
}

template <typename T>
void ServerClient<T>::gather(const T* from, const Shard& shard, std::vector<T>& out) const {
  for (const size_t p : shard.partitions) {
    const Partition& partition = partitioning_.partitions[p];
    const T* at = from + layout_.offset[partition.parameter] + partition.begin;
    out.insert(out.end(), at, at + partition.count);
  }
}

template <typename T>
void ServerClient<T>::scatter(const Shard& shard, T* to) const {
  const T* from = shard.values.data();
  for (const size_t p : shard.partitions) {
    const Partition& partition = partitioning_.partitions[p];
    std::memcpy(to + layout_.offset[partition.parameter] + partition.begin, from,
                partition.count * sizeof(T));
    from += partition.count;
  }
}

template <typename T>
void ServerClient<T>::load(const T* parameters, const std::vector<const T*>& states, int64_t updates) {
  forget();
  ++loads_;
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (shards_[i].count == 0) continue;
    with(static_cast<int>(i), "load", [&](Shard& s) {
      s.values.clear();
      gather(parameters, s, s.values);
      for (const T* state : states) gather(state, s, s.values);
      s.link->send({.code = MessageCode::kLoad, .count = s.values.size(), .extra = updates},
                   bytes_of(s.values));
    });
  }
}

template <typename T>
void ServerClient<T>::push(const T* gradients, const PushNotes& notes) {
  rate_ = notes.lr;
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (shards_[i].count == 0) continue;
    with(static_cast<int>(i), "push", [&](Shard& s) {
      s.values.clear();
      gather(gradients, s, s.values);
      const std::span<const std::byte> body = s.pushed.encode(s.values);
      pushed_.bytes += body.size();
      s.link->send({.code = MessageCode::kPush,
                    .stop = notes.stop,
                    .clock = s.clock,
                    .count = s.count,
                    .rate = notes.lr,
                    .loss = notes.loss,
                    .extra = std::bit_cast<int64_t>(notes.weight)},
                   body);
      ++s.clock;
      s.unread = true;
      ++pushes_[i];
    });
  }
  ++pushed_.messages;
}

template <typename T>
ServerMessage ServerClient<T>::receive(int shard, uint64_t count, ValueCoder<T>& coder) {
  return with(shard, "pull", [&](Shard& s) {
    const ServerMessage answer = s.link->recv_head();
    expect(answer, MessageCode::kParameters, s.link->peer());
    expect_count(answer, count, s.link->peer());
    coder.receive(*s.link, answer, s.values);
    return answer;
  });
}

// If an answer reports more lost workers than before, asks the shard which workers are lost. No other request
// of this worker to this shard may be open.
template <typename T>
void ServerClient<T>::note_lost(int shard, int lost) {
  Shard& s = shards_[shard];
  if (lost <= s.lost) return;
  s.lost = lost;
  const std::vector<int64_t> body = ask_report(shard, MessageCode::kStatistics);
  const std::vector<int> all = decode_stats(body, s.link->peer()).lost;
  lost_.insert(all.begin(), all.begin() + std::min<ptrdiff_t>(lost, std::ssize(all)));
}

// The first shard on which this worker owns partitions decides when the workers of an asynchronous run meet,
// because the shards learn of the request at different clocks.
template <typename T>
void ServerClient<T>::note_stop(size_t shard, const ServerMessage& answer, PullReport& report) {
  if (!answer.stop) return;
  if (answer.rate < 1) {
    report.stop = true;
  } else if (shard == first_shard() && answer.rate < 1e15) {
    report.stop_at = static_cast<int64_t>(answer.rate);
    last_report_.stop_at = report.stop_at;
  }
}

template <typename T>
size_t ServerClient<T>::first_shard() const {
  size_t first = 0;
  while (first + 1 < shards_.size() && shards_[first].count == 0) ++first;
  return first;
}

template <typename T>
int64_t ServerClient<T>::push_clock() const {
  return shards_[first_shard()].clock;
}

// Returns whether a read of the shard at the present clock may be answered from the cache.
template <typename T>
bool ServerClient<T>::cached(const Shard& shard) const {
  return layout_.staleness > 0 && shard.complete >= 0 && shard.complete >= shard.clock - layout_.staleness;
}

// Ends the use of the cache until the next answers.
template <typename T>
void ServerClient<T>::forget() {
  for (Shard& s : shards_) s.complete = -1;
}

// Subtracts the gradient of the last push, which is in shard.values.
template <typename T>
void ServerClient<T>::add_own(const Shard& shard, T* parameters) const {
  const double left = rendezvous_.workers - static_cast<double>(lost_.size());
  const auto step = static_cast<T>(rate_ * (layout_.lambda > 0 ? layout_.lambda : 1.0 / left));
  const T* from = shard.values.data();
  for (const size_t p : shard.partitions) {
    const Partition& partition = partitioning_.partitions[p];
    T* to = parameters + layout_.offset[partition.parameter] + partition.begin;
    for (size_t i = 0; i < partition.count; ++i) to[i] -= step * from[i];
    from += partition.count;
  }
}

template <typename T>
PullReport ServerClient<T>::pull(T* parameters) {
  // Requests from all shards precede the first answer, so that the shards work at the same time.
  std::vector<size_t> asked;
  int64_t staleness = 0;
  for (size_t i = 0; i < shards_.size(); ++i) {
    Shard& shard = shards_[i];
    if (shard.count == 0) continue;
    const bool unread = std::exchange(shard.unread, false);
    if (cached(shard)) {
      if (unread) add_own(shard, parameters);
      staleness = std::max(staleness, shard.clock - shard.complete);
      ++cached_reads_;
      continue;
    }
    asked.push_back(i);
    with(static_cast<int>(i), "pull",
         [&](Shard& s) { s.link->send({.code = MessageCode::kPull, .clock = s.clock, .extra = loads_}); });
  }
  PullReport report = last_report_;
  report.staleness = staleness;
  report.redo = false;
  if (!asked.empty()) report.stop = false;  // the answers say it again
  bool first = true;
  for (const size_t i : asked) {
    Shard& s = shards_[i];
    const ServerMessage answer = receive(static_cast<int>(i), s.count, s.pulled);
    scatter(s, parameters);
    pulled_.bytes += answer.bytes;
    report.redo = report.redo || answer.clock < s.clock;
    s.clock = answer.clock;
    s.complete = answer.clock - answer.extra;
    if (std::exchange(first, false)) report.loss = answer.loss;
    note_stop(i, answer, report);
    report.staleness = std::max(report.staleness, answer.extra);
    note_lost(static_cast<int>(i), answer.lost);
  }
  if (!asked.empty()) ++pulled_.messages;
  last_report_ = report;
  return report;
}

template <typename T>
PullReport ServerClient<T>::snapshot(T* parameters) {
  const SnapshotWant want = parameters == nullptr ? SnapshotWant::kNothing : SnapshotWant::kOwn;
  forget();  // the answers take the place of the last gradients
  for (size_t i = 0; i < shards_.size(); ++i) {
    with(static_cast<int>(i), "snapshot",
         [&](Shard& s) { s.link->send({.code = MessageCode::kSnapshot, .want = want}); });
  }
  PullReport report;
  report.stop_at = last_report_.stop_at;
  for (size_t i = 0; i < shards_.size(); ++i) {
    Shard& s = shards_[i];
    const ServerMessage answer = receive(static_cast<int>(i), parameters == nullptr ? 0 : s.count, plain_);
    note_stop(i, answer, report);
    report.updates = std::max(report.updates, answer.extra);
    if (i == 0) report.loss = answer.loss;
    if (parameters != nullptr) {
      scatter(s, parameters);
      s.clock = answer.clock;
    }
    note_lost(static_cast<int>(i), answer.lost);
  }
  return report;
}

template <typename T>
PullReport ServerClient<T>::snapshot_whole(const Visit& visit) {
  forget();
  for (size_t i = 0; i < shards_.size(); ++i) {
    with(static_cast<int>(i), "snapshot",
         [&](Shard& s) { s.link->send({.code = MessageCode::kSnapshot, .want = SnapshotWant::kWhole}); });
  }
  PullReport report;
  for (size_t i = 0; i < shards_.size(); ++i) {
    size_t count = 0;
    for (const size_t size : partitioning_.sizes_of(static_cast<int>(i))) count += size;
    const ServerMessage answer =
        receive(static_cast<int>(i), count * static_cast<size_t>(1 + states_), plain_);
    report.updates = std::max(report.updates, answer.extra);
    const T* from = shards_[i].values.data();
    for (int section = 0; section <= states_; ++section) {
      for (const size_t p : partitioning_.of_shard[i]) {
        visit(section, partitioning_.partitions[p], from);
        from += partitioning_.partitions[p].count;
      }
    }
    shards_[i].values = {};  // frees the buffer, which may be much larger than what this worker owns
    note_lost(static_cast<int>(i), answer.lost);
  }
  return report;
}

template <typename T>
std::vector<int64_t> ServerClient<T>::ask_report(int shard, MessageCode code) {
  return with(shard, name_of(code), [&](Shard& s) {
    s.link->send({.code = code});
    const ServerMessage answer = s.link->recv_head();
    expect(answer, MessageCode::kReport, s.link->peer());
    if (answer.count > kMaxReport) expect_count(answer, kMaxReport, s.link->peer());
    expect_bytes(answer, answer.count * 8, s.link->peer());
    std::vector<int64_t> body(answer.count);
    s.link->recv_body(writable_bytes_of(body));
    return body;
  });
}

template <typename T>
std::vector<ServerTableStats> ServerClient<T>::stats() {
  std::vector<ServerTableStats> out;
  for (size_t i = 0; i < shards_.size(); ++i) {
    const auto body = ask_report(static_cast<int>(i), MessageCode::kStatistics);
    out.push_back(decode_stats(body, shards_[i].link->peer()));
  }
  return out;
}

template <typename T>
std::vector<ServerTableEvent> ServerClient<T>::events(int shard) {
  return decode_events(ask_report(shard, MessageCode::kEvents), shards_[shard].link->peer());
}

template <typename T>
std::vector<float> ServerClient<T>::push_state() const {
  std::vector<float> all;
  for (const Shard& s : shards_) {
    const std::vector<float> own = s.pushed.state();
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

template <typename T>
void ServerClient<T>::load_push_state(std::span<const float> values) {
  const size_t expected = push_state().size();
  if (values.size() != expected) {
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("the checkpoint has {} values of the codec of worker {}'s pushes, which has {} "
                            "here; resume with the same --codec, --servers and model",
                            values.size(), worker_, expected));
  }
  for (Shard& s : shards_) {
    const size_t count = s.pushed.state().size();
    s.pushed.load_state(values.first(count));
    values = values.subspan(count);
  }
}

template <typename T>
double ServerClient<T>::residual_norm() const {
  double squares = 0;
  for (const Shard& s : shards_) squares += s.pushed.residual_squares();
  return std::sqrt(squares);
}

template <typename T>
void ServerClient<T>::goodbye() {
  for (size_t i = 0; i < shards_.size(); ++i) {
    with(static_cast<int>(i), "goodbye", [](Shard& s) { s.link->send({.code = MessageCode::kGoodbye}); });
  }
}

template <typename T>
uint64_t ServerClient<T>::push_bytes() const {
  uint64_t bytes = 0;
  for (const Shard& s : shards_) {
    if (s.count > 0) bytes += kHeadBytes + s.pushed.bytes_of(s.count);
  }
  return bytes;
}

template <typename T>
uint64_t ServerClient<T>::pull_bytes() const {
  uint64_t bytes = 0;
  for (const Shard& s : shards_) {
    if (s.count > 0) bytes += 2 * kHeadBytes + s.pulled.bytes_of(s.count);
  }
  return bytes;
}

template <typename T>
uint64_t ServerClient<T>::owned_bytes() const {
  uint64_t count = 0;
  for (const Shard& s : shards_) count += s.count;
  return count * sizeof(T);
}

template <typename T>
uint64_t ServerClient<T>::bytes_sent() const {
  uint64_t bytes = 0;
  for (const Shard& s : shards_) bytes += s.link->sent();
  return bytes;
}

template <typename T>
uint64_t ServerClient<T>::bytes_received() const {
  const std::vector<uint64_t> bytes = received_by_shard();
  return std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
}

template <typename T>
std::vector<uint64_t> ServerClient<T>::received_by_shard() const {
  std::vector<uint64_t> bytes;
  for (const Shard& s : shards_) bytes.push_back(s.link->received());
  return bytes;
}

template <typename T>
TrafficCount ServerClient<T>::traffic() const {
  TrafficCount sum;
  for (const Shard& s : shards_) {
    const TrafficCount t = s.link->traffic();
    sum.socket_sent += t.socket_sent;
    sum.socket_received += t.socket_received;
    sum.window_published += t.window_published;
    sum.window_received += t.window_received;
  }
  return sum;
}

template class ServerClient<float>;
template class ServerClient<double>;

}  // namespace starling
