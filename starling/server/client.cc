#include "starling/server/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "starling/base/error.h"

namespace starling {

template <typename T>
template <typename Work>
auto ServerClient<T>::with(int shard, const char* what, const Work& work) {
  const auto where = [&](const CommError& error) {
    return fmt::format("server {} (rank {}) failed worker {} in {} at clock {}: {}", shard,
                       meeting_.rank_of_server(shard), worker_, what, shards_[shard].clock, error.what());
  };
  try {
    return work(shards_[shard]);
  } catch (const TimeoutError& error) {
    throw TimeoutError(where(error), meeting_.rank_of_server(shard));
  } catch (const CommError& error) {
    throw CommError(where(error), meeting_.rank_of_server(shard));
  }
}

template <typename T>
ServerClient<T>::ServerClient(Store& store, const Meeting& meeting, int worker, Partitioning partitioning,
                              ClientLayout layout)
    : meeting_(meeting),
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
    shards_[s].link = meet_server(store, meeting, worker, static_cast<int>(s));
    greet(static_cast<int>(s));
  }
}

template <typename T>
ServerClient<T>::~ServerClient() = default;

// The parameter's, where the partition is all of it.
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
        hello.slots.push_back(hello.shapes.size());
        own.push_back(shape);
      }
      hello.shapes.push_back(shape);
    }
    s.pushed = ValueCoder<T>(layout_.push_codec, own, true);
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
                    .extra = notes.samples},
                   body);
      ++s.clock;
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

// An answer that tells of more losses than before: who they are is asked for, outside any other conversation.
template <typename T>
void ServerClient<T>::note_lost(int shard, int lost) {
  Shard& s = shards_[shard];
  if (lost <= s.lost) return;
  s.lost = lost;
  const std::vector<int64_t> body = ask_report(shard, MessageCode::kStatistics);
  const std::vector<int> all = decode_stats(body, s.link->peer()).lost;
  lost_.insert(all.begin(), all.begin() + std::min<ptrdiff_t>(lost, std::ssize(all)));
}

template <typename T>
PullReport ServerClient<T>::pull(T* parameters) {
  // All are asked before the first is waited for: shards work at the same time.
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (shards_[i].count == 0) continue;
    with(static_cast<int>(i), "pull",
         [&](Shard& s) { s.link->send({.code = MessageCode::kPull, .clock = s.clock, .extra = loads_}); });
  }
  PullReport report;
  bool first = true;
  for (size_t i = 0; i < shards_.size(); ++i) {
    Shard& s = shards_[i];
    if (s.count == 0) continue;
    const ServerMessage answer = receive(static_cast<int>(i), s.count, s.pulled);
    scatter(s, parameters);
    pulled_.bytes += answer.bytes;
    report.redo = report.redo || answer.clock < s.clock;
    s.clock = answer.clock;
    if (std::exchange(first, false)) report.loss = answer.loss;
    report.stop = report.stop || answer.stop;
    report.staleness = std::max(report.staleness, answer.extra);
    note_lost(static_cast<int>(i), answer.lost);
  }
  ++pulled_.messages;
  return report;
}

template <typename T>
PullReport ServerClient<T>::snapshot(T* parameters) {
  const SnapshotWant want = parameters == nullptr ? SnapshotWant::kNothing : SnapshotWant::kOwn;
  for (size_t i = 0; i < shards_.size(); ++i) {
    with(static_cast<int>(i), "snapshot",
         [&](Shard& s) { s.link->send({.code = MessageCode::kSnapshot, .want = want}); });
  }
  PullReport report;
  for (size_t i = 0; i < shards_.size(); ++i) {
    Shard& s = shards_[i];
    const ServerMessage answer = receive(static_cast<int>(i), parameters == nullptr ? 0 : s.count, plain_);
    report.stop = report.stop || answer.stop;
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
    shards_[i].values = {};  // it may be much larger than what this worker owns
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
std::vector<TableStats> ServerClient<T>::stats() {
  std::vector<TableStats> out;
  for (size_t i = 0; i < shards_.size(); ++i) {
    const auto body = ask_report(static_cast<int>(i), MessageCode::kStatistics);
    out.push_back(decode_stats(body, shards_[i].link->peer()));
  }
  return out;
}

template <typename T>
std::vector<TableEvent> ServerClient<T>::events(int shard) {
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
uint64_t ServerClient<T>::step_bytes() const {
  uint64_t bytes = 0;
  for (const Shard& s : shards_) {
    if (s.count > 0) bytes += 3 * kHeadBytes + s.pushed.bytes_of(s.count) + s.pulled.bytes_of(s.count);
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
  uint64_t bytes = 0;
  for (const Shard& s : shards_) bytes += s.link->received();
  return bytes;
}

template <typename T>
TrafficCount ServerClient<T>::traffic() const {
  TrafficCount sum;
  for (const Shard& s : shards_) {
    const TrafficCount t = s.link->traffic();
    sum.socket_sent += t.socket_sent;
    sum.socket_received += t.socket_received;
    sum.window_written += t.window_written;
    sum.window_read += t.window_read;
  }
  return sum;
}

template class ServerClient<float>;
template class ServerClient<double>;

}  // namespace starling
