#include "starling/comm/mpi/mpi_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/mpi/mpi_rendezvous.h"
#include "starling/comm/mpi/patience.h"
#include "starling/comm/mpi/roll_call.h"
#include "starling/comm/mpi/send_queue.h"
#include "starling/comm/operation.h"
#include "starling/comm/recorder/flight_recorder.h"
#include "starling/comm/reduce/reduce_kernels.h"
#include "starling/comm/started_calls.h"

namespace starling {
namespace {

constexpr size_t kMpiPiece = size_t{1} << 28;  // elements or bytes; longer data goes in pieces
constexpr size_t kHostBytes = 256;
constexpr size_t kMarks = 4;  // how many numbers of an operation are compared

std::byte* bytes_at(void* data) {
  return static_cast<std::byte*>(data);
}

std::string too_many(size_t count) {
  return fmt::format("{} elements, more than the {} that MPI can count; use comm.engine=starling", count,
                     kMpiMostElements);
}

// Refuses a count that is too large. The count is equal on all ranks, so all ranks throw.
void check_elements(size_t count, const Operation& operation) {
  if (count > kMpiMostElements) throw CommError(fmt::format("{}: {}", describe(operation), too_many(count)));
}

bool overlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const auto from_a = reinterpret_cast<uintptr_t>(a), from_b = reinterpret_cast<uintptr_t>(b);
  return from_a < from_b + b_bytes && from_b < from_a + a_bytes;
}

template <typename T>
std::vector<int32_t> widen(const void* values, size_t count) {
  const T* from = static_cast<const T*>(values);
  return {from, from + count};
}

// Returns whether a sum of such integers needs more bits than they have.
bool is_short_integer(DataType type) {
  return !is_floating(type) && size_of(type) < size_of(DataType::kInt32);
}

std::vector<int32_t> widen(const void* values, size_t count, DataType type) {
  if (type == DataType::kInt16) return widen<int16_t>(values, count);
  return type == DataType::kInt8 ? widen<int8_t>(values, count) : widen<uint8_t>(values, count);
}

template <typename T>
void narrow(std::span<const int32_t> values, void* to) {
  T* at = static_cast<T*>(to);
  for (const int32_t value : values) *at++ = static_cast<T>(value);
}

// Narrows 32-bit integers. Signed and unsigned types of one size have the same low bits.
void narrow(std::span<const int32_t> values, void* to, DataType type) {
  type == DataType::kInt16 ? narrow<int16_t>(values, to) : narrow<uint8_t>(values, to);
}

// Splits holds one count and one offset per rank, as MPI wants them. They are 0 from the point on where MPI
// cannot count.
struct Splits {
  std::vector<int> counts, offsets;
  size_t total = 0;
  bool too_many = false;
  explicit Splits(std::span<const size_t> of) {
    for (const size_t count : of) {
      too_many = too_many || count > kMpiMostElements || total + count > kMpiMostElements;
      counts.push_back(too_many ? 0 : static_cast<int>(count));
      offsets.push_back(too_many ? 0 : static_cast<int>(total));
      total += count;
    }
  }
};

class MpiGroup final : public Group {
 public:
  MpiGroup(std::shared_ptr<MpiLibrary> library, const GroupSetup& setup);
  ~MpiGroup() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int job_rank(int rank) const override { return job_ranks_.at(static_cast<size_t>(rank)); }
  int local_rank() const override { return 0; }
  std::vector<int> local_ranks() const override { return {rank_}; }
  std::string host_of(int rank) const override { return hosts_.at(static_cast<size_t>(rank)); }
  TrafficCount traffic() const override { return {.socket_sent = sent_, .socket_received = received_}; }
  std::shared_ptr<Window> allocate_window(size_t bytes) override { return alone_->allocate_window(bytes); }
  LocalSync* local_sync() override { return alone_->local_sync(); }

  WorkPtr start(const Call& call) override;
  void run(const Call& call) override;
  bool try_recv(void* data, size_t bytes, int peer, uint32_t tag) override;
  void abort(const std::string& reason) override;

 private:
  void open(const GroupSetup& setup);
  // Executes the call and blocks until it is done.
  void execute(const Call& call, Progress progress);
  void broadcast(const Call& call, const Operation& operation);
  void reduce_scatter(const Call& call, const Operation& operation);
  void all_gather(const Call& call, const Operation& operation);
  void all_to_all(const Call& call, const Operation& operation);
  void send(const Call& call);
  void recv(const Call& call, Progress progress);
  template <typename Body>
  void carry_out(Operation operation, Progress progress, const Body& body);
  void agree(const Operation& operation);
  [[noreturn]] void refuse(const Operation& operation);
  void agree_on_splits(const Operation& operation, const Splits& in, const Splits& out);
  void finish(const MpiStarted& transfer, const Operation& operation);
  void reduce_in_place(void* data, size_t count, const Operation& operation);
  void scatter_reduced(const void* in, void* out, size_t count, const Operation& operation);
  void divide(void* data, size_t count, const Operation& operation) const;
  void learn_hosts(const std::string& own);
  uint64_t others() const { return static_cast<uint64_t>(size_ - 1); }
  std::string name_of_rank(int rank) const { return fmt::format("rank {} ({})", rank, host_of(rank)); }
  int mpi_tag(uint32_t tag);

  const std::shared_ptr<MpiLibrary> library_;
  const GroupOptions options_;
  const int rank_, size_;
  const std::vector<int> job_ranks_;
  std::unique_ptr<Group> alone_;  // the windows and counters of this rank
  MpiPatience patience_;
  std::unique_ptr<MpiCommunicator> collectives_, messages_;
  std::unique_ptr<RollCall> roll_call_;
  std::unique_ptr<MpiOutbox> outbox_;
  std::vector<std::string> hosts_;
  int recorded_group_ = -1;          // the group's number in the recorder; -1: nothing is recorded
  std::mutex order_;                 // one collective at a time
  bool beside_computation_ = false;  // guarded by order_: how the collective waits
  uint64_t sequence_ = 0;
  std::array<int64_t, 2 * kMarks> greatest_{};  // of agree(); MPI may write here after the wait was given up
  std::mutex tags_mutex_;
  std::map<int, uint32_t> tags_;  // MPI's tag → the caller's tag
  // MPI does not tell what it moves. These are the bytes of the algorithms that move the fewest.
  std::atomic<uint64_t> sent_ = 0, received_ = 0;
  StartedCalls calls_;  // the last member, because its threads use all others
};

MpiGroup::MpiGroup(std::shared_ptr<MpiLibrary> library, const GroupSetup& setup)
    : library_(std::move(library)),
      options_(setup.options),
      rank_(setup.rank),
      size_(static_cast<int>(setup.world_ranks.size())),
      job_ranks_(setup.world_ranks),
      alone_(make_single_group()),
      patience_(options_),
      calls_(fmt::format("the group '{}'", setup.name),
             [this](const Call& call, Progress progress) { execute(call, progress); }) {
  try {
    open(setup);
  } catch (...) {
    library_->abandon();
    throw;
  }
}

void MpiGroup::open(const GroupSetup& setup) {
  const int tag = meet_over_mpi(*library_, setup, patience_);
  for (auto* made : {&collectives_, &messages_}) {
    std::string error;
    *made = library_->make(setup.world_ranks, tag, error);
    if (!*made)
      throw CommError(fmt::format("MPI could not make a communicator for group '{}': {}", setup.name, error));
  }
  if (options_.recorder) recorded_group_ = options_.recorder->add_group(setup.name);
  roll_call_ = std::make_unique<RollCall>(*collectives_, rank_, size_);
  outbox_ = std::make_unique<MpiOutbox>(*messages_, [this](const std::string& fault) {
    patience_.fail({fmt::format("send over MPI: {}", fault), -1, false});
  });
  learn_hosts(setup.host_name.empty() ? library_->host_name() : setup.host_name);
}

// MPI is finalized only if all went well. After a fault, other ranks may never come to its end.
MpiGroup::~MpiGroup() {
  if (calls_.pending()) abort("the group ended while operations were in progress; wait() for them before");
  calls_.end();
  const bool orderly = !patience_.failed() && std::uncaught_exceptions() == 0;
  if (!orderly || (outbox_ && !outbox_->drain(options_.timeout))) library_->abandon();
}

void MpiGroup::learn_hosts(const std::string& own) {
  hosts_.assign(static_cast<size_t>(size_), "?");
  std::string name = own.substr(0, kHostBytes - 1), all(kHostBytes * static_cast<size_t>(size_), '\0');
  name.resize(kHostBytes, '\0');
  run(all_gather_call(name.data(), all.data(), kHostBytes, DataType::kUint8));
  for (size_t r = 0; r < hosts_.size(); ++r) hosts_[r] = all.data() + kHostBytes * r;
}

template <typename Body>
void MpiGroup::carry_out(Operation operation, Progress progress, const Body& body) {
  const std::lock_guard lock(order_);
  beside_computation_ = progress == Progress::kBackground;
  patience_.check();
  operation.sequence = ++sequence_;
  const RecordedOperation entry(options_.recorder.get(), recorded_group_, operation);
  agree(operation);
  try {
    body(operation);
  } catch (const CommError& error) {
    patience_.fail({error.what(), error.peer(), error.code() == ErrorCode::kTimeout});
    throw;
  }
}

// Compares the operation with those of all ranks. It takes the maximum of each number and of its negative.
// All ranks have the same number if the two maxima are each other's negative.
void MpiGroup::agree(const Operation& operation) {
  const auto kinds = static_cast<int64_t>(operation.kind) << 16 | static_cast<int64_t>(operation.type) << 8 |
                     static_cast<int64_t>(operation.op);
  const std::array<int64_t, kMarks> own{kinds, operation.root, static_cast<int64_t>(operation.bytes),
                                        static_cast<int64_t>(operation.sequence)};
  for (size_t i = 0; i < own.size(); ++i) {
    greatest_[i] = own[i];
    greatest_[own.size() + i] = -own[i];
  }
  roll_call_->enter(operation.sequence);
  MpiWatch watch;
  watch.beside_computation = beside_computation_;
  watch.look = [&](bool long_wait) { roll_call_->look(long_wait); };
  watch.late = [&]() -> Lateness {
    const std::vector<int> absent = roll_call_->absent();
    if (absent.empty())
      return {fmt::format("all ranks entered {}, but MPI did not complete it", describe(operation)), -1};
    std::string names;
    for (const int r : absent) names += (names.empty() ? "" : ", ") + name_of_rank(r);
    return {fmt::format("{} did not enter {}", names, describe(operation)), absent.front()};
  };
  const MpiStarted compared =
      collectives_->all_reduce(greatest_.data(), greatest_.size(), DataType::kInt64, ReduceOp::kMax);
  patience_.wait(*compared, describe(operation), watch);
  for (size_t i = 0; i < own.size(); ++i)
    if (greatest_[i] != -greatest_[own.size() + i]) refuse(operation);
}

// Throws the error for operations that differ. All ranks call it, because all have compared the same numbers.
void MpiGroup::refuse(const Operation& operation) {
  std::vector<Operation> all(static_cast<size_t>(size_));
  finish(collectives_->all_gather(&operation, all.data(), sizeof(Operation), DataType::kUint8), operation);
  const auto other = std::find_if(all.begin(), all.end(), [&](const Operation& o) { return !(o == all[0]); });
  const int rank = static_cast<int>(other - all.begin()) % size_;
  const Failure failure{
      mismatch_message(name_of_rank(0), all[0], name_of_rank(rank), all[static_cast<size_t>(rank)]),
      rank == rank_ ? 0 : rank, false};
  patience_.fail(failure);
  throw_failure(failure);
}

void MpiGroup::finish(const MpiStarted& transfer, const Operation& operation) {
  patience_.wait(
      *transfer, describe(operation),
      {.late = [&]() -> Lateness {
         return {fmt::format("all ranks entered {}, but MPI did not complete it", describe(operation)), -1};
       },
       .beside_computation = beside_computation_});
}

WorkPtr MpiGroup::start(const Call& call) {
  check_call(call, rank_, size_);
  return calls_.start(call);
}

void MpiGroup::run(const Call& call) {
  check_call(call, rank_, size_);
  calls_.run(call);
}

void MpiGroup::execute(const Call& call, Progress progress) {
  if (call.kind == CollectiveKind::kSend) return send(call);
  if (call.kind == CollectiveKind::kRecv) return recv(call, progress);
  carry_out(operation_of(call), progress, [&](const Operation& operation) {
    switch (call.kind) {
      case CollectiveKind::kBarrier:
        return;  // the comparison of the operations is a barrier
      case CollectiveKind::kBroadcast:
        return broadcast(call, operation);
      case CollectiveKind::kAllReduce:
        return reduce_in_place(call.out, call.count, operation);
      case CollectiveKind::kReduceScatter:
        return reduce_scatter(call, operation);
      case CollectiveKind::kAllGather:
        return all_gather(call, operation);
      case CollectiveKind::kAllToAll:
        return all_to_all(call, operation);
      default:
        throw CommError(fmt::format("{} is not a collective of a group", name_of(call.kind)));
    }
  });
}

void MpiGroup::broadcast(const Call& call, const Operation& operation) {
  for (size_t done = 0; done < call.count; done += kMpiPiece) {
    const size_t piece = std::min(call.count - done, kMpiPiece);
    std::byte* at = bytes_at(call.out) + done * size_of(call.type);
    finish(collectives_->broadcast(at, piece, call.type, call.rank), operation);
  }
  if (rank_ == call.rank) {
    sent_ += operation.bytes * others();
  } else {
    received_ += operation.bytes;
  }
}

void MpiGroup::divide(void* data, size_t count, const Operation& operation) const {
  if (operation.op != ReduceOp::kAvg) return;
  const void* sources[] = {data};
  void* destinations[] = {data};
  reduce({.sources = sources,
          .destinations = destinations,
          .count = count,
          .type = operation.type,
          .op = ReduceOp::kSum,
          .divisor = size_});
}

void MpiGroup::reduce_in_place(void* data, size_t count, const Operation& operation) {
  if (operation.op == ReduceOp::kAvg && is_short_integer(operation.type)) {
    std::vector<int32_t> wide = widen(data, count, operation.type);
    Operation as_wide = operation;
    as_wide.type = DataType::kInt32;
    reduce_in_place(wide.data(), count, as_wide);
    return narrow(wide, data, operation.type);
  }
  for (size_t done = 0; done < count; done += kMpiPiece) {
    const size_t piece = std::min(count - done, kMpiPiece);
    std::byte* at = bytes_at(data) + done * size_of(operation.type);
    finish(collectives_->all_reduce(at, piece, operation.type, operation.op), operation);
  }
  divide(data, count, operation);
  const uint64_t moved = 2 * count * size_of(operation.type) * others() / static_cast<uint64_t>(size_);
  sent_ += moved;
  received_ += moved;
}

void MpiGroup::scatter_reduced(const void* in, void* out, size_t count, const Operation& operation) {
  const size_t all = count * static_cast<size_t>(size_);
  check_elements(all, operation);
  if (operation.op == ReduceOp::kAvg && is_short_integer(operation.type)) {
    const std::vector<int32_t> wide = widen(in, all, operation.type);
    std::vector<int32_t> part(count);
    Operation as_wide = operation;
    as_wide.type = DataType::kInt32;
    scatter_reduced(wide.data(), part.data(), count, as_wide);
    return narrow(part, out, operation.type);
  }
  finish(collectives_->reduce_scatter(in, out, count, operation.type, operation.op), operation);
  divide(out, count, operation);
  sent_ += count * size_of(operation.type) * others();
  received_ += count * size_of(operation.type) * others();
}

void MpiGroup::reduce_scatter(const Call& call, const Operation& operation) {
  if (!overlap(call.in, operation.bytes * static_cast<size_t>(size_), call.out, operation.bytes))
    return scatter_reduced(call.in, call.out, call.count, operation);
  std::vector<std::byte> part(operation.bytes);  // MPI's buffers must not overlap
  scatter_reduced(call.in, part.data(), call.count, operation);
  std::memcpy(call.out, part.data(), part.size());
}

void MpiGroup::all_gather(const Call& call, const Operation& operation) {
  const size_t all = call.count * static_cast<size_t>(size_);
  check_elements(all, operation);
  const size_t bytes = all * size_of(call.type);
  const void* in = call.in;
  std::vector<std::byte> part;
  if (overlap(in, operation.bytes, call.out, bytes)) {
    part.assign(static_cast<const std::byte*>(in), static_cast<const std::byte*>(in) + operation.bytes);
    in = part.data();
  }
  finish(collectives_->all_gather(in, call.out, call.count, call.type), operation);
  sent_ += operation.bytes * others();
  received_ += operation.bytes * others();
}

// Tells every rank how much this rank sends to it, and compares what other ranks send with what this rank
// expects. All ranks get the error of one rank: of the first rank that has more elements than MPI can count,
// otherwise of the first rank that expects another number.
void MpiGroup::agree_on_splits(const Operation& operation, const Splits& in, const Splits& out) {
  const std::vector<int> ones(static_cast<size_t>(size_), 1);
  std::vector<int> places(ones.size()), coming(ones.size());
  for (size_t r = 0; r < places.size(); ++r) places[r] = static_cast<int>(r);
  finish(
      collectives_->all_to_all(in.counts.data(), ones, places, coming.data(), ones, places, DataType::kInt32),
      operation);
  // The maximum selects a rank: -rank if its splits differ, size_ - rank if it has too many elements. `found`
  // says what that rank has found.
  int64_t first = -size_;
  std::array<int64_t, 3> found{};
  const auto bad = std::mismatch(coming.begin(), coming.end(), out.counts.begin());
  if (in.too_many || out.too_many) {
    first = size_ - rank_;
    found[0] = static_cast<int64_t>(in.too_many ? in.total : out.total);
  } else if (bad.first != coming.end()) {
    first = -rank_;
    found = {bad.first - coming.begin(), *bad.first, *bad.second};
  }
  finish(collectives_->all_reduce(&first, 1, DataType::kInt64, ReduceOp::kMax), operation);
  if (first == -size_) return;
  const int at = static_cast<int>(first > 0 ? size_ - first : -first);
  finish(collectives_->broadcast(found.data(), found.size(), DataType::kInt64, at), operation);
  if (first > 0)
    throw CommError(fmt::format("{}: {} has {}", describe(operation), name_of_rank(at),
                                too_many(static_cast<size_t>(found[0]))),
                    at == rank_ ? -1 : at);
  const int from = static_cast<int>(found[0]);
  throw CommError(
      fmt::format("{}: {} sends {} elements to {}, which expects {}; the splits of both must agree",
                  describe(operation), name_of_rank(from), found[1], name_of_rank(at), found[2]),
      from == rank_ ? at : from);
}

void MpiGroup::all_to_all(const Call& call, const Operation& operation) {
  const Splits from(call.in_counts), to(call.out_counts);
  agree_on_splits(operation, from, to);
  const size_t bytes = from.total * size_of(call.type);
  const void* in = call.in;
  std::vector<std::byte> copy;
  if (overlap(in, bytes, call.out, to.total * size_of(call.type))) {
    copy.assign(static_cast<const std::byte*>(in), static_cast<const std::byte*>(in) + bytes);
    in = copy.data();
  }
  finish(collectives_->all_to_all(in, from.counts, from.offsets, call.out, to.counts, to.offsets, call.type),
         operation);
  const auto self = static_cast<size_t>(rank_);
  sent_ += bytes - call.in_counts[self] * size_of(call.type);
  received_ += (to.total - call.out_counts[self]) * size_of(call.type);
}

// Maps tags of 32 bits to the range of tags that this MPI has. Two tags of a group that get the same number
// are refused.
int MpiGroup::mpi_tag(uint32_t tag) {
  const int folded = static_cast<int>(tag % (static_cast<uint32_t>(library_->greatest_tag()) + 1));
  const std::lock_guard lock(tags_mutex_);
  const auto [at, fresh] = tags_.emplace(folded, tag);
  if (at->second != tag)
    throw CommError(
        fmt::format("tags {} and {} get the same number in this MPI, whose greatest tag is {}; use "
                    "comm.engine=starling",
                    at->second, tag, library_->greatest_tag()));
  return folded;
}

void MpiGroup::send(const Call& call) {
  patience_.check();
  const RecordedOperation entry(options_.recorder.get(), recorded_group_,
                                {.kind = CollectiveKind::kSend, .bytes = call.count}, call.rank, call.tag);
  const int mpi = mpi_tag(call.tag);
  const std::byte* at = static_cast<const std::byte*>(call.in);
  size_t left = call.count;
  do {
    const size_t piece = std::min(left, kMpiPiece);
    outbox_->send(at, piece, call.rank, mpi);
    at += piece;
    left -= piece;
  } while (left > 0);
  sent_ += call.count;
}

void MpiGroup::recv(const Call& call, Progress progress) {
  const auto [data, bytes, peer, tag] = std::tuple(call.out, call.count, call.rank, call.tag);
  patience_.check();
  const RecordedOperation entry(options_.recorder.get(), recorded_group_,
                                {.kind = CollectiveKind::kRecv, .bytes = bytes}, peer, tag);
  const int mpi = mpi_tag(tag);
  const MpiWatch watch{.late = [&]() -> Lateness {
                         return {fmt::format("{} did not send {} bytes with tag {} to {}", name_of_rank(peer),
                                             bytes, tag, name_of_rank(rank_)),
                                 peer};
                       },
                       .beside_computation = progress == Progress::kBackground};
  size_t done = 0;
  do {
    const size_t piece = std::min(bytes - done, kMpiPiece);
    const MpiStarted part = messages_->receive(bytes_at(data) + done, piece, peer, mpi);
    patience_.wait(*part, fmt::format("recv of {} bytes from {}", bytes, name_of_rank(peer)), watch);
    if (part->bytes() != piece)
      throw CommError(fmt::format("recv from {} with tag {}: received {} bytes instead of {}",
                                  name_of_rank(peer), tag, part->bytes(), piece),
                      peer);
    done += piece;
  } while (done < bytes);
  received_ += bytes;
}

bool MpiGroup::try_recv(void* data, size_t bytes, int peer, uint32_t tag) {
  if (peer == rank_) return false;
  const Call call = recv_call(data, bytes, peer, tag);
  check_call(call, rank_, size_);
  patience_.check();
  if (messages_->probe(peer, mpi_tag(tag)) < 0) return false;
  recv(call, Progress::kCaller);
  return true;
}

void MpiGroup::abort(const std::string& reason) {
  patience_.fail({fmt::format("group aborted by rank {}: {}", rank_, reason), -1, false});
}

}  // namespace

std::unique_ptr<Group> make_mpi_group(std::shared_ptr<MpiLibrary> library, const GroupSetup& setup) {
  return std::make_unique<MpiGroup>(std::move(library), setup);
}

}  // namespace starling
