#include "starling/comm/network/remote_peers.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <sstream>
#include <utility>

#include "starling/base/error.h"

namespace starling {
namespace {

constexpr std::chrono::milliseconds kSlice{20};
constexpr std::chrono::milliseconds kHostsEvery{200};  // between checks whether the peers' hosts answer
constexpr std::chrono::milliseconds kGrace{1'000};     // after a timeout, for the notices of other ranks
constexpr std::chrono::milliseconds kNoticeTime{200};  // to send a notice to all peers
constexpr size_t kLeastLooks = 64;                     // one look_around() covers at least so many ranks
constexpr size_t kMostParts = 16;                      // about so many look_around() calls cover all ranks

// Head is the head of a collective message: its Operation, field by field, in the byte order of the machine.
// All hosts of a job are little-endian.
constexpr size_t kHeadBytes = 24;
using Head = std::array<std::byte, kHeadBytes>;
static_assert(sizeof(Operation) == kHeadBytes);

Head head_of(const Operation& operation) {
  Head head{};
  head[0] = static_cast<std::byte>(operation.kind);
  head[1] = static_cast<std::byte>(operation.type);
  head[2] = static_cast<std::byte>(operation.op);
  std::memcpy(&head[4], &operation.root, 4);
  std::memcpy(&head[8], &operation.bytes, 8);
  std::memcpy(&head[16], &operation.sequence, 8);
  return head;
}

Operation operation_of(const std::byte* head) {
  Operation o;
  o.kind = static_cast<CollectiveKind>(head[0]);
  o.type = static_cast<DataType>(head[1]);
  o.op = static_cast<ReduceOp>(head[2]);
  std::memcpy(&o.root, head + 4, 4);
  std::memcpy(&o.bytes, head + 8, 8);
  std::memcpy(&o.sequence, head + 16, 8);
  return o;
}

ConstBytes bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace

struct RemotePeers::Flow {
  int rank;
  bool is_send;
  ConstBytes out;
  Bytes in;
  bool announces = false;
  Head head{};
  bool begun = false;
  bool done = false;

  Tag tag() const { return announces ? kAnnouncement : kCollective; }
  MessageKind kind() const { return announces ? MessageKind::kControl : MessageKind::kData; }
};

RemotePeers::Flow RemotePeers::sending(const RemoteSend& send) {
  return {.rank = send.rank, .is_send = true, .out = send.bytes, .in = {}, .announces = send.announces};
}

RemotePeers::RemotePeers(RemoteSetup setup)
    : setup_(std::move(setup)),
      waits_for_(setup_.endpoints.size()),
      sending_(setup_.endpoints.size(), false),
      receiving_(setup_.endpoints.size(), false),
      left_(setup_.endpoints.size(), false),
      mute_(setup_.endpoints.size(), false) {
  for (auto& direction : blocked_) direction.assign(setup_.endpoints.size(), 0);
}

RemotePeers::~RemotePeers() {
  if (!has_left_) end_all(leave());
}

std::vector<Endpoint*> RemotePeers::leave() {
  has_left_ = true;
  if (!announced_) {
    notify_all(kFarewell, "");
    end_half_sent();
  }
  return all_of(setup_.endpoints);
}

std::string RemotePeers::name(int rank) const {
  return fmt::format("rank {} ({})", rank, setup_.host_names[rank]);
}

uint64_t RemotePeers::sent() const {
  uint64_t sum = 0;
  for (const auto& e : setup_.endpoints) sum += e ? e->payload_sent() : 0;
  return sum;
}

uint64_t RemotePeers::received() const {
  uint64_t sum = 0;
  for (const auto& e : setup_.endpoints) sum += e ? e->payload_received() : 0;
  return sum;
}

// Calls call(endpoint), which is one step of sending a notice. Returns false if the peer is gone. This rank
// sends no further notice to such a peer.
template <typename Call>
bool RemotePeers::tell(size_t rank, const Call& call) {
  try {
    call(*setup_.endpoints[rank]);
    return true;
  } catch (const CommError&) {
    left_[rank] = true;
    return false;
  }
}

// Tells all peers at the same time, so that all peers that do not read cost kNoticeTime together.
void RemotePeers::notify_all(Tag tag, const std::string& text) {
  const Outgoing notice{.tag = tag, .head = {}, .body = bytes_of(text), .kind = MessageKind::kControl};
  std::vector<size_t> under_way;  // ranks
  for (size_t r = 0; r < setup_.endpoints.size(); ++r) {
    if (!setup_.endpoints[r] || left_[r] || mute_[r] || sending_[r]) continue;
    if (tell(r, [&](Endpoint& e) { e.begin_send(notice); })) under_way.push_back(r);
  }
  for (const Deadline deadline = deadline_in(kNoticeTime);;) {
    std::erase_if(under_way, [&](size_t r) {
      bool sent = false;
      return !tell(r, [&](Endpoint& e) { sent = e.step_send(); }) || sent;
    });
    if (under_way.empty() || has_passed(deadline)) break;
    std::vector<pollfd> polled;
    polled.reserve(under_way.size());
    for (const size_t r : under_way) polled.push_back(setup_.endpoints[r]->send_poll());
    ::poll(polled.data(), polled.size(), std::min(poll_timeout(deadline), static_cast<int>(kSlice.count())));
  }
  std::vector<Transfer> unsent;
  unsent.reserve(under_way.size());
  for (const size_t r : under_way) {
    mute_[r] = true;  // the peer does not read, so it can be told nothing more
    // After a failure, end_half_sent() ends the connection, which tells the peer. A farewell may be missing.
    if (tag != kFarewell) sending_[r] = true;
    unsent.push_back({setup_.endpoints[r].get(), notice, std::nullopt});
  }
  cancel_all(unsent);
}

void RemotePeers::end_half_sent() {
  for (size_t r = 0; r < setup_.endpoints.size(); ++r)
    if (setup_.endpoints[r] && sending_[r]) setup_.endpoints[r]->shutdown();
}

void RemotePeers::announce(const Failure& failure) {
  if (std::exchange(announced_, true)) return;
  notify_all(kFailure, failure_text(failure));
  if (setup_.notes) setup_.notes->leave(failure);
  end_half_sent();
}

void RemotePeers::fail(const Failure& failure) {
  announce(failure);
  throw_failure(failure);
}

std::vector<std::byte> RemotePeers::take_message(int rank, const MessageInfo& info) {
  std::vector<std::byte> body(info.bytes);
  setup_.endpoints[rank]->recv({.tag = info.tag, .head = {}, .body = body, .kind = info.kind},
                               deadline_in(kGrace));
  return body;
}

void RemotePeers::take_notice(int rank, const MessageInfo& info) {
  if (info.kind != MessageKind::kControl || info.bytes > kMaxControlBytes) return;
  const auto body = take_message(rank, info);
  const std::string text(reinterpret_cast<const char*>(body.data()), body.size());
  if (info.tag == kFarewell) {
    left_[rank] = true;
  } else if (info.tag == kWaiting) {
    std::istringstream words(text);
    Waiting waiting{.heard_in = operation_.sequence};
    words >> waiting.rank >> waiting.sequence;
    waits_for_[rank] = waiting;
    if (!std::exchange(said_waiting_, true)) notify_all(kWaiting, waiting_text());
  } else if (info.tag == kFailure) {
    auto failure = parse_failure(text);
    if (!failure) return;
    if (failure->reason.find(" reports: ") == std::string::npos) {
      failure->reason = fmt::format("{} reports: {}", name(rank), failure->reason);
    }
    fail(*failure);
  }
}

void RemotePeers::report_other_collective(int rank, const MessageInfo& info) {
  const auto body = take_message(rank, info);
  if (body.size() < kHeadBytes)
    fail(Failure{fmt::format("{} sent a message without a head", name(rank)), rank});
  const Operation theirs = operation_of(body.data());
  if (theirs == operation_) {
    uint64_t bytes = body.size() - kHeadBytes;
    if (info.tag == kAnnouncement && bytes == sizeof(bytes))
      std::memcpy(&bytes, body.data() + kHeadBytes, sizeof(bytes));
    fail(Failure{fmt::format("{}: {} sent {} bytes, which {} did not expect; the splits of both must agree",
                             describe(operation_), name(rank), bytes, name(setup_.rank))});
  }
  const bool mine_first = setup_.rank < rank;
  const std::string me = name(setup_.rank), other = name(rank);
  fail(Failure{mine_first ? mismatch_message(me, operation_, other, theirs)
                          : mismatch_message(other, theirs, me, operation_)});
}

void RemotePeers::check_head(const Flow& flow) {
  const Operation theirs = operation_of(flow.head.data());
  if (theirs == operation_) return;
  const bool mine_first = setup_.rank < flow.rank;
  const std::string me = name(setup_.rank), other = name(flow.rank);
  fail(Failure{mine_first ? mismatch_message(me, operation_, other, theirs)
                          : mismatch_message(other, theirs, me, operation_)});
}

bool RemotePeers::advance_receive(Flow& flow) {
  Endpoint& e = *setup_.endpoints[flow.rank];
  while (!flow.begun) {
    const auto info = e.step_peek();
    if (!info) {
      if (left_[flow.rank])
        fail(Failure{
            fmt::format("{} {} while {} waited for it", name(flow.rank), kLeftTheGroup, name(setup_.rank)),
            flow.rank});
      return false;
    }
    if (is_notice(info->tag)) {
      take_notice(flow.rank, *info);
      continue;
    }
    if (info->tag != flow.tag() || info->bytes != kHeadBytes + flow.in.size())
      report_other_collective(flow.rank, *info);
    e.begin_recv({.tag = flow.tag(), .head = flow.head, .body = flow.in, .kind = flow.kind()});
    flow.begun = receiving_[flow.rank] = true;
  }
  if (!e.step_recv()) return false;
  receiving_[flow.rank] = false;
  check_head(flow);
  return true;
}

bool RemotePeers::advance_send(Flow& flow) {
  Endpoint& e = *setup_.endpoints[flow.rank];
  if (!flow.begun) {
    flow.head = head_of(operation_);
    e.begin_send({.tag = flow.tag(), .head = flow.head, .body = flow.out, .kind = flow.kind()});
    flow.begun = sending_[flow.rank] = true;
  }
  if (!e.step_send()) return false;
  sending_[flow.rank] = false;
  return true;
}

// Returns true when all flows are done. Messages to, or from, one rank move one after another. The receives
// are the first of the flows.
bool RemotePeers::advance(std::deque<Flow>& flows, const Arrived& arrived) {
  bool all = true;
  ++pass_;
  for (size_t i = 0; i < flows.size(); ++i) {
    Flow& flow = flows[i];
    if (flow.done) continue;
    auto& blocked = blocked_[flow.is_send ? 1 : 0][flow.rank];
    if (blocked == pass_) continue;  // an earlier message is under way, so `all` is false already
    flow.done = flow.is_send ? advance_send(flow) : advance_receive(flow);
    if (!flow.done) blocked = pass_;
    all = all && flow.done;
    if (!flow.done || flow.is_send || !arrived) continue;
    arriving_ = true;
    for (const RemoteSend& s : arrived(i)) flows.push_back(sending(s));
  }
  return all;
}

// In a large group, one call covers only some ranks. The next call continues with the ranks after them.
void RemotePeers::look_around() {
  const size_t ranks = setup_.endpoints.size();
  for (size_t i = 0; i < std::min(ranks, std::max(kLeastLooks, ranks / kMostParts)); ++i) {
    const size_t r = next_look_++ % ranks;
    if (!setup_.endpoints[r] || receiving_[r] || left_[r]) continue;
    for (auto info = setup_.endpoints[r]->step_peek(); info && is_notice(info->tag);
         info = setup_.endpoints[r]->step_peek()) {
      take_notice(static_cast<int>(r), *info);
      if (left_[r]) break;
    }
  }
}

std::string RemotePeers::waiting_text() const {
  return fmt::format("{} {}", awaited_, operation_.sequence);
}

// What a rank said in an earlier collective is no longer true.
int RemotePeers::last_in_chain(int rank) const {
  for (size_t hops = 0; hops < waits_for_.size(); ++hops) {
    const auto& said = waits_for_[rank];
    if (!said || std::max(said->sequence, said->heard_in) < operation_.sequence) return rank;
    if (said->rank < 0 || said->rank >= static_cast<int>(waits_for_.size()) || said->rank == setup_.rank)
      return rank;
    rank = said->rank;
  }
  return rank;
}

// Throws CommError if the host of a rank whose message is under way does not answer.
void RemotePeers::check_hosts(const std::deque<Flow>& flows) {
  if (!has_passed(next_check_)) return;
  next_check_ = deadline_in(kHostsEvery);
  for (const Flow& flow : flows) {
    if (flow.done) continue;
    watched_.push_back(flow.rank);
    setup_.endpoints[flow.rank]->check_alive();
  }
}

void RemotePeers::rest() {
  for (const int rank : watched_) setup_.endpoints[rank]->rest();
  watched_.clear();
}

void RemotePeers::check_patience(const std::deque<Flow>& flows, Deadline deadline) {
  if (auto failure = setup_.outside ? setup_.outside() : std::nullopt) fail(*failure);
  if (setup_.warn && has_passed(deadline - setup_.timeout + setup_.timeout / 10) &&
      !std::exchange(warned_, true))
    setup_.warn(late_warning(
        fmt::format("{} did not take part in {}", name(last_in_chain(awaited_)), describe(operation_)),
        setup_.timeout));
  if (!has_passed(deadline)) return;
  if (!std::exchange(said_waiting_, true)) notify_all(kWaiting, waiting_text());
  if (!has_passed(deadline + kGrace)) return;
  const int late = last_in_chain(awaited_);
  fail(Failure{
      fmt::format(
          "{} did not take part in {} within {} ms: late or stopped; see its log, or raise the timeout",
          name(late), describe(operation_), setup_.timeout.count()),
      late, true});
}

void RemotePeers::wait_for_any(std::deque<Flow>& flows) {
  std::vector<pollfd> polled;
  ++pass_;
  for (const Flow& flow : flows) {
    if (flow.done || std::exchange(blocked_[flow.is_send ? 1 : 0][flow.rank], pass_) == pass_) continue;
    const Endpoint& e = *setup_.endpoints[flow.rank];
    polled.push_back(flow.is_send ? e.send_poll() : pollfd{e.poll_fd(), POLLIN, 0});
  }
  ::poll(polled.data(), polled.size(), static_cast<int>(kSlice.count()));
}

void RemotePeers::move(std::span<const RemoteSend> sends, std::span<const RemoteReceive> receives,
                       const Arrived& arrived) {
  std::deque<Flow> flows;
  for (const auto& r : receives)
    flows.push_back({.rank = r.rank, .is_send = false, .out = {}, .in = r.bytes, .announces = r.announces});
  for (const auto& s : sends) flows.push_back(sending(s));
  Deadline deadline = deadline_in(setup_.timeout);
  Deadline next_look = deadline_in(kSlice);
  said_waiting_ = warned_ = false;
  try {
    while (!advance(flows, arrived)) {
      if (std::exchange(arriving_, false)) {
        deadline = deadline_in(setup_.timeout);
        said_waiting_ = warned_ = false;
      }
      awaited_ = std::find_if(flows.begin(), flows.end(), [](const Flow& f) { return !f.done; })->rank;
      wait_for_any(flows);
      if (!has_passed(next_look)) continue;
      look_around();
      check_hosts(flows);
      check_patience(flows, deadline);
      next_look = deadline_in(kSlice);
    }
    rest();
  } catch (const CommError& error) {
    // A fault that an endpoint found (a broken connection) is announced to all peers. What fail() threw has
    // been announced.
    std::fill(receiving_.begin(), receiving_.end(), false);
    const bool known = announced_;
    Failure failure{error.what(), error.peer(), error.code() == ErrorCode::kTimeout};
    if (!known) {
      if (setup_.notes) failure = setup_.notes->explain(failure, setup_.endpoints);
      failure.reason = fmt::format("{}: {}", describe(operation_), failure.reason);
    }
    announce(failure);
    cancel(flows);
    throw_failure(failure);
  }
}

void RemotePeers::cancel(const std::deque<Flow>& flows) {
  std::vector<Transfer> begun;
  for (const Flow& flow : flows) {
    if (!flow.begun || flow.done) continue;
    Transfer& transfer = begun.emplace_back();
    transfer.endpoint = setup_.endpoints[flow.rank].get();
    if (flow.is_send)
      transfer.out.emplace();
    else
      transfer.in.emplace();
  }
  cancel_all(begun);
}

}  // namespace starling
