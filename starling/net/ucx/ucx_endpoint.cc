#include "starling/net/ucx/ucx_endpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <tuple>
#include <utility>

#include "starling/base/error.h"
#include "starling/net/stream/frame.h"
#include "starling/net/ucx/sleep.h"
#include "starling/net/ucx/ucx_message.h"
#include "starling/net/wire.h"

namespace starling {
namespace {

using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

constexpr milliseconds kLookEvery{5};   // between looks at the TCP connection, while a step finds nothing
constexpr milliseconds kUcxAlone{300};  // for TCP to report why UCX has lost the peer
constexpr milliseconds kLastMessages{1'000};  // for the messages that the peer sent before it ended
constexpr milliseconds kFlush{500};           // for this side's own last messages to leave
constexpr milliseconds kGoodbyeTime{200};     // to send the goodbye, or to receive all of it
constexpr milliseconds kCancel{100};          // to cancel a receive, before the connection is ended for it
constexpr milliseconds kLetGo{5'000};         // for UCX to let go of memory, on a connection that has ended
constexpr uint32_t kGoodbye = 9;              // tag of a message over TCP with the number of messages sent

enum class Part : uint64_t { kFirst = 0, kRest = 1, kSeals = 2, kReceived = 3 };

uint64_t tag_of(uint32_t connection, Part part, uint64_t number) {
  return uint64_t{connection} << 32 | static_cast<uint64_t>(part) << 30 | (number & 0x3fffffff);
}

size_t portions_of(const UcxPieces& rest, size_t portion) {
  const size_t all = rest.bytes();
  return portion == 0 || all > kUcxMostUnasked ? 1 : (all + portion - 1) / portion;
}

// Steps holds the transfers of one message.
struct Steps {
  explicit Steps(UcxSleep& one) : sleep(one), first(one), seals(one) {}
  bool rest_pending() const {
    return std::any_of(rest.begin(), rest.end(), [](const UcxStep& step) { return step.pending(); });
  }
  bool pending() const { return first.pending() || rest_pending() || seals.pending(); }
  // Calls begin(portion, step) for each portion of the rest.
  template <typename Begin>
  void begin_rest(const UcxPieces& pieces, size_t portion, const Begin& begin) {
    portions = portions_of(pieces, portion);
    while (rest.size() < portions) rest.emplace_back(sleep);
    const size_t all = pieces.bytes(), each = portions == 1 ? all : portion;
    for (size_t i = 0; i < portions; ++i)
      begin(pieces.cut(i * each, std::min(each, all - i * each)), rest[i]);
  }

  UcxSleep& sleep;
  UcxStep first, seals;
  std::deque<UcxStep> rest;  // the first `portions` belong to this message
  size_t portions = 0;
};

// Told is a receiver's report: how much of what may leave unasked it has received since the start.
// Reports are not counted as sent or received bytes.
struct Told {
  explicit Told(UcxSleep& sleep) : step(sleep) {}
  UcxPieces pieces() { return UcxPieces({bytes, {}}); }
  UcxStep step;
  std::array<std::byte, 8> bytes{};
};

class UcxEndpoint final : public Endpoint {
 public:
  UcxEndpoint(std::shared_ptr<UcxProgress> progress, std::unique_ptr<Endpoint> tcp, const UcxOffer& mine,
              const UcxOffer& theirs, const ConnectionKeys& keys)
      : progress_(std::move(progress)),
        worker_(progress_->worker()),
        tcp_(std::move(tcp)),
        mine_(mine.connection),
        theirs_(theirs.connection),
        portion_sent_(mine.portion),
        portion_received_(theirs.portion),
        send_sleep_(worker_.event_fd(), tcp_->poll_fd()),
        recv_sleep_(worker_.event_fd(), tcp_->poll_fd()),
        out_(keys),
        in_(keys),
        sends_(send_sleep_),
        receives_(recv_sleep_) {
    const auto lock = hold();
    std::string error;
    peer_ = worker_.connect(theirs.address, error);
    if (peer_ == nullptr)
      throw CommError(fmt::format("{}: UCX: {}; see UCX_TLS and UCX_NET_DEVICES", tcp_->name(), error),
                      tcp_->peer_rank());
    receive(Part::kFirst, in_.room(), receives_.first);
    receive_told();
  }
  ~UcxEndpoint() override {
    Endpoint* self[] = {this};
    end_all(self);
  }

  void begin_send(const Outgoing& message) override;
  bool step_send() override;
  void begin_recv(const Incoming& message) override;
  bool step_recv() override;
  std::optional<MessageInfo> step_peek() override;
  bool step_cancel_send() override;
  bool step_cancel_recv() override;
  bool step_end() override;

  int poll_fd() const override { return recv_sleep_.poll_fd(); }
  pollfd send_poll() const override { return {send_sleep_.poll_fd(), POLLIN, 0}; }
  std::string peer() const override { return tcp_->peer(); }
  void check_alive() const override { tcp_->check_alive(); }
  void rest() override { tcp_->rest(); }
  void shutdown() override { tcp_->shutdown(); }

 private:
  // Locks the worker's mutex. Errors: CommError if the worker was given up.
  std::unique_lock<std::mutex> hold();
  // The callers of the following functions hold the mutex.
  void send(Part part, const UcxPieces& pieces, UcxStep& step);
  void receive(Part part, const UcxPieces& pieces, UcxStep& step);
  bool send_begun();
  void receive_told();
  void take_told();
  void tell_received(uint64_t ahead);
  bool telling() const;
  template <typename Done>
  bool moved(UcxSleep& sleep, const Done& done);
  void check_faults(const Steps& steps);
  void check_fault(const UcxStep& step);
  void check_gone();
  void look();
  void take_goodbye();

  bool take_first();
  template <typename Done>
  bool let_go(const Done& done, Deadline deadline);
  void begin_end();
  void end_flush(bool flushed);
  void say_goodbye();
  [[noreturn]] void throw_gone(const std::string& why) const {
    throw CommError(fmt::format("{}: {}", name(), why), peer_rank());
  }

  const std::shared_ptr<UcxProgress> progress_;
  UcxWorker& worker_;
  const std::unique_ptr<Endpoint> tcp_;
  const uint32_t mine_, theirs_;
  const size_t portion_sent_, portion_received_;
  UcxPeer* peer_ = nullptr;

  // The worker's mutex guards these.
  UcxSleep send_sleep_, recv_sleep_;
  std::string trouble_;  // why the connection is unusable; what has arrived is still received
  bool told_by_tcp_ = false;
  SteadyClock::time_point trouble_since_, next_look_;
  std::optional<uint64_t> peer_sent_;  // how many messages a peer that has ended had sent
  uint64_t out_number_ = 0, in_number_ = 0;

  // Only the sending thread uses these.
  UcxOutgoing out_;
  Outgoing outgoing_;
  bool sending_ = false;
  // Only the receiving thread uses these.
  UcxIncoming in_;
  Incoming incoming_;
  std::optional<MessageInfo> peeked_;
  bool receiving_ = false;
  bool rest_begun_ = false;

  // The worker's mutex guards these.
  Steps sends_, receives_;
  bool send_begun_ = true;  // false: the message waits until the peer has received enough
  // Sums of ucx_ahead(): of all messages that were begun, and of those that the peer has received.
  uint64_t out_ahead_ = 0, out_ahead_received_ = 0;
  // Sums of ucx_ahead(): of all received messages, and of those that the peer knows of.
  uint64_t in_ahead_ = 0, in_ahead_told_ = 0;
  Told told_{send_sleep_};    // the next report of the peer
  std::deque<Told> telling_;  // this side's reports; as many as were ever under way at the same time

  // The deadlines after a cancel has ended the connection. A receive is first cancelled without ending the
  // connection.
  std::optional<Deadline> send_let_go_, recv_cancelled_, recv_let_go_;
  enum class End { kNotBegun, kFlush, kLetGo, kDone } end_ = End::kNotBegun;
  Deadline end_by_;  // the deadline of this part of the end
  bool orderly_ = false;
  UcxStep flush_{send_sleep_};
};

void UcxEndpoint::send(Part part, const UcxPieces& pieces, UcxStep& step) {
  if (pieces.bytes() == 0) return;
  worker_.send(peer_, tag_of(theirs_, part, out_number_), pieces.parts(), step);
  sent_.fetch_add(pieces.bytes(), std::memory_order_relaxed);
}

void UcxEndpoint::receive(Part part, const UcxPieces& pieces, UcxStep& step) {
  if (pieces.bytes() == 0) return;
  worker_.receive(tag_of(mine_, part, in_number_), pieces.parts(), step);
}

std::unique_lock<std::mutex> UcxEndpoint::hold() {
  std::unique_lock lock(progress_->mutex());
  if (const auto& why = progress_->given_up()) throw CommError(*why);
  return lock;
}

// Takes a step of one direction. Returns false if it is not done; its thread then polls.
template <typename Done>
bool UcxEndpoint::moved(UcxSleep& sleep, const Done& done) {
  sleep.end();
  const UcxPace pace = progress_->until(done);
  if (pace == UcxPace::kDone) return true;
  check_gone();
  sleep.begin(pace == UcxPace::kBusy);
  return false;
}

void UcxEndpoint::receive_told() {
  worker_.receive(tag_of(mine_, Part::kReceived, 0), told_.pieces().parts(), told_.step);
}

void UcxEndpoint::take_told() {
  check_fault(told_.step);
  const uint64_t received = load_le<uint64_t>(told_.bytes.data());
  if (told_.step.bytes() != told_.bytes.size() || received < out_ahead_received_ || received > out_ahead_)
    throw_gone("it reports more received bytes than were sent");
  out_ahead_received_ = received;
  receive_told();
}

// Reports to the sender if the unreported bytes are at least half of kUcxMostAhead. Few reports are therefore
// under way.
void UcxEndpoint::tell_received(uint64_t ahead) {
  in_ahead_ += ahead;
  if (in_ahead_ - in_ahead_told_ < kUcxMostAhead / 2) return;
  in_ahead_told_ = in_ahead_;
  const auto free =
      std::find_if(telling_.begin(), telling_.end(), [](const Told& told) { return !told.step.pending(); });
  Told& told = free != telling_.end() ? *free : telling_.emplace_back(recv_sleep_);
  store_le<uint64_t>(told.bytes.data(), in_ahead_);
  worker_.send(peer_, tag_of(theirs_, Part::kReceived, 0), told.pieces().parts(), told.step);
}

bool UcxEndpoint::telling() const {
  return std::any_of(telling_.begin(), telling_.end(), [](const Told& told) { return told.step.pending(); });
}

// Begins the message if the peer has received enough of the messages before.
bool UcxEndpoint::send_begun() {
  if (send_begun_) return true;
  while (!told_.step.pending()) take_told();
  const uint64_t ahead = ucx_ahead(out_.first().bytes(), out_.rest().bytes(), out_.seals().bytes());
  if (out_ahead_ - out_ahead_received_ + ahead > kUcxMostAhead) return false;
  send_begun_ = true;
  out_ahead_ += ahead;
  send(Part::kFirst, out_.first(), sends_.first);
  sends_.begin_rest(out_.rest(), portion_sent_,
                    [&](const UcxPieces& part, UcxStep& step) { send(Part::kRest, part, step); });
  send(Part::kSeals, out_.seals(), sends_.seals);
  ++out_number_;
  return true;
}

void UcxEndpoint::begin_send(const Outgoing& message) {
  check_outgoing(message);
  if (sending_) throw_gone("an earlier message to it failed, so the connection is unusable");
  sending_ = true;
  outgoing_ = message;
  out_.prepare(message);
  const auto lock = hold();
  send_begun_ = false;
  send_begun();
}

bool UcxEndpoint::step_send() {
  const auto lock = hold();
  if (!moved(send_sleep_, [this] { return send_begun() && !sends_.pending(); })) return false;
  check_faults(sends_);
  sending_ = false;
  count_sent(outgoing_);
  return true;
}

// Returns true when a header is there.
bool UcxEndpoint::take_first() {
  if (peeked_) return true;
  {
    const auto lock = hold();
    if (!moved(recv_sleep_, [this] { return !receives_.first.pending(); })) return false;
    check_fault(receives_.first);
  }
  received_.fetch_add(receives_.first.bytes(), std::memory_order_relaxed);
  peeked_ = in_.open_first(receives_.first.bytes(), name());
  return true;
}

std::optional<MessageInfo> UcxEndpoint::step_peek() {
  if (receiving_) throw_gone("an earlier message from it failed, so the connection is unusable");
  take_first();
  return peeked_;
}

void UcxEndpoint::begin_recv(const Incoming& message) {
  if (receiving_) throw_gone("an earlier message from it failed, so the connection is unusable");
  receiving_ = true;
  incoming_ = message;
  rest_begun_ = false;
}

bool UcxEndpoint::step_recv() {
  if (!take_first()) return false;
  if (!rest_begun_) {
    check_expected(*peeked_, incoming_, *this);
    in_.begin(incoming_);
  }
  {
    const auto lock = hold();
    if (!std::exchange(rest_begun_, true)) {
      receives_.begin_rest(in_.rest(), portion_received_,
                           [&](const UcxPieces& part, UcxStep& step) { receive(Part::kRest, part, step); });
      receive(Part::kSeals, in_.seals(), receives_.seals);
    }
    if (!moved(recv_sleep_, [this] { return !receives_.pending(); })) return false;
    check_faults(receives_);
  }
  const size_t rest = in_.rest().bytes(), seals = in_.seals().bytes();
  size_t came = 0;
  for (size_t i = 0; i < receives_.portions; ++i) came += receives_.rest[i].bytes();
  if ((rest > 0 && came != rest) || (seals > 0 && receives_.seals.bytes() != seals))
    throw_gone("the rest of a message has another length than its header says");
  received_.fetch_add(rest + seals, std::memory_order_relaxed);
  in_.finish(name());
  peeked_.reset();
  receiving_ = false;
  count_received(incoming_);
  const auto lock = hold();
  tell_received(ucx_ahead(receives_.first.bytes(), rest, seals));
  ++in_number_;
  receive(Part::kFirst, in_.room(), receives_.first);
  return true;
}

void UcxEndpoint::check_faults(const Steps& steps) {
  check_fault(steps.first);
  for (size_t i = 0; i < steps.portions; ++i) check_fault(steps.rest[i]);
  check_fault(steps.seals);
}

void UcxEndpoint::check_fault(const UcxStep& step) {
  if (step.fault() == nullptr) return;
  look();
  if (told_by_tcp_) throw CommError(trouble_, peer_rank());
  throw_gone(fmt::format("UCX: {}", step.fault()));
}

// Checks whether the connection has ended. A step that finds nothing calls it.
void UcxEndpoint::check_gone() {
  const auto now = SteadyClock::now();
  if (trouble_.empty() && now < next_look_)
    return;  // without trouble, rare looks suffice; with trouble, nothing may wake a sleeping thread any more
  next_look_ = now + kLookEvery;
  look();
  if (trouble_.empty()) return;
  const bool more = peer_sent_ && in_number_ < *peer_sent_;
  const milliseconds patience = more ? kLastMessages : told_by_tcp_ ? milliseconds(0) : kUcxAlone;
  if (now - trouble_since_ >= patience) throw CommError(trouble_, peer_rank());
}

void UcxEndpoint::look() {
  if (told_by_tcp_) return;
  const bool first = trouble_.empty();
  try {
    while (tcp_->step_peek()) take_goodbye();
    const char* fault = worker_.fault_of(peer_);
    if (first && fault != nullptr) trouble_ = fmt::format("{}: UCX: {}", name(), fault);
  } catch (const CommError& error) {
    trouble_ = error.what();
    told_by_tcp_ = true;
    for (UcxSleep* sleep : {&send_sleep_, &recv_sleep_}) {
      sleep->forget_tcp();
      sleep->wake();
    }
  }
  if (first && !trouble_.empty()) trouble_since_ = SteadyClock::now();
}

void UcxEndpoint::take_goodbye() {
  std::array<std::byte, 8> number{};
  tcp_->recv({.tag = kGoodbye, .head = {}, .body = number, .kind = MessageKind::kControl},
             deadline_in(kGoodbyeTime));
  peer_sent_ = load_le<uint64_t>(number.data());
}

// Returns whether nothing touches the memory of a disconnected connection any more. The caller holds the
// worker's mutex. Either UCX has ended the transfers, or the worker is given up. UCX does not end the
// transfers of an eager message in several segments whose sender has died in between.
template <typename Done>
bool UcxEndpoint::let_go(const Done& done, Deadline deadline) {
  if (progress_->until(done) == UcxPace::kDone) return true;
  if (!has_passed(deadline)) return false;
  progress_->give_up(
      CommError(fmt::format("{}: UCX does not release the memory of its messages, so no connection uses UCX "
                            "any longer; restart the job, or use comm.engine=starling",
                            name()),
                peer_rank()));
  return true;
}

// A send cannot be withdrawn, so the connection ends.
bool UcxEndpoint::step_cancel_send() {
  const std::lock_guard lock(progress_->mutex());
  if (!sends_.pending() || progress_->given_up()) return true;
  worker_.disconnect(peer_);
  if (!send_let_go_) send_let_go_ = deadline_in(kLetGo);
  return let_go([this] { return !sends_.pending(); }, *send_let_go_);
}

bool UcxEndpoint::step_cancel_recv() {
  const std::lock_guard lock(progress_->mutex());
  if (progress_->given_up()) return true;
  const auto ended = [this] { return !receives_.rest_pending() && !receives_.seals.pending(); };
  if (!recv_cancelled_ && !ended()) {
    for (UcxStep& step : receives_.rest) worker_.cancel(step);
    worker_.cancel(receives_.seals);
    recv_cancelled_ = deadline_in(kCancel);
  }
  if (ended() || progress_->until(ended) == UcxPace::kDone) {
    recv_cancelled_.reset();
    return true;
  }
  if (!has_passed(*recv_cancelled_)) return false;
  worker_.disconnect(peer_);  // the rest of the message was on its way
  if (!recv_let_go_) recv_let_go_ = deadline_in(kLetGo);
  return let_go(ended, *recv_let_go_);
}

// Ends regularly if possible: what was sent leaves, and the peer learns the number of the sent messages.
void UcxEndpoint::begin_end() {
  worker_.cancel(receives_.first);
  for (UcxStep& step : receives_.rest) worker_.cancel(step);
  worker_.cancel(receives_.seals);
  worker_.cancel(told_.step);
  look();
  orderly_ = trouble_.empty() && !sends_.pending();
  if (!orderly_) return end_flush(false);
  worker_.flush(peer_, flush_);
  end_ = End::kFlush;
  end_by_ = deadline_in(kFlush);
}

void UcxEndpoint::end_flush(bool flushed) {
  orderly_ = flushed && flush_.fault() == nullptr;
  worker_.disconnect(peer_);
  end_ = End::kLetGo;
  end_by_ = deadline_in(kLetGo);
}

bool UcxEndpoint::step_end() {
  std::unique_lock lock(progress_->mutex());
  if (end_ == End::kDone || progress_->given_up()) return true;
  if (end_ == End::kNotBegun) begin_end();
  if (end_ == End::kFlush) {
    const bool flushed = progress_->until([this] { return !flush_.pending(); }) == UcxPace::kDone;
    if (!flushed && !has_passed(end_by_)) return false;
    end_flush(flushed);
  }
  const auto ended = [this] {
    return !flush_.pending() && !sends_.pending() && !receives_.pending() && !told_.step.pending() &&
           !telling();
  };
  if (!let_go(ended, end_by_)) return false;
  end_ = End::kDone;
  lock.unlock();
  if (orderly_) say_goodbye();
  return true;
}

void UcxEndpoint::say_goodbye() {
  std::array<std::byte, 8> number{};
  store_le<uint64_t>(number.data(), out_number_);
  try {
    tcp_->send({.tag = kGoodbye, .head = {}, .body = number, .kind = MessageKind::kControl},
               deadline_in(kGoodbyeTime));
  } catch (const CommError&) {
    // The TCP connection is gone as well.
  }
}

}  // namespace

UcxOffer make_ucx_offer(UcxProgress& progress) {
  UcxOffer offer;
  fill_random(offer.nonce);
  const std::lock_guard lock(progress.mutex());
  offer.connection = progress.next_connection();
  offer.portion = static_cast<uint32_t>(progress.worker().portion());
  offer.address = progress.worker().address();
  return offer;
}

ConnectionKeys ucx_keys(ConstBytes secret, DataSecurity security, const UcxOffer& mine,
                        const UcxOffer& theirs, bool first) {
  const auto& [one, two] = first ? std::tie(mine.nonce, theirs.nonce) : std::tie(theirs.nonce, mine.nonce);
  std::array<std::byte, 2 * sizeof(Digest)> salt;
  std::copy(one.begin(), one.end(), salt.begin());
  std::copy(two.begin(), two.end(), salt.begin() + one.size());
  const Digest there = hkdf_sha256(secret, salt, "starling ucx first to second");
  const Digest back = hkdf_sha256(secret, salt, "starling ucx second to first");
  ConnectionKeys keys;
  keys.sending = first ? there : back;
  keys.receiving = first ? back : there;
  keys.security = security;
  return keys;
}

std::unique_ptr<Endpoint> make_ucx_endpoint(std::shared_ptr<UcxProgress> progress,
                                            std::unique_ptr<Endpoint> tcp, const UcxOffer& mine,
                                            const UcxOffer& theirs, const ConnectionKeys& keys) {
  return std::make_unique<UcxEndpoint>(std::move(progress), std::move(tcp), mine, theirs, keys);
}

}  // namespace starling
