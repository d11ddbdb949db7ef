// Tests the endpoint over an invented UCX in memory. It takes small messages at once, and large ones (as by
// RDMA) when the receiver asks.
#include "starling/net/ucx/ucx_endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "starling/base/error.h"
#include "starling/net/memory/memory_endpoint.h"
#include "starling/testing/error_of.h"
#include "starling/testing/test_identity.h"

namespace starling {

class UcxPeer {
 public:
  std::string address;
  const char* fault = nullptr;
};

namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr size_t kTakenAtOnce = 20'000;

class FakeWorker;

// FakeNetwork holds the workers of a test, by address.
class FakeNetwork {
 public:
  std::mutex mutex;
  std::map<std::string, FakeWorker*> workers;
};

// Packet is what is under way to a worker.
struct Packet {
  uint64_t tag = 0;
  std::vector<std::byte> bytes;   // the bytes of a small message
  std::vector<iovec> parts;       // the parts of a large message, in the sender's memory
  UcxTransfer* sender = nullptr;  // the sender's transfer of a large message
  std::string from;
  UcxTransfer* to_end = nullptr;  // the packet is not a message: this transfer of the receiver has ended
};

class FakeWorker final : public UcxWorker {
 public:
  FakeWorker(FakeNetwork& network, std::string address, size_t portion = 0)
      : network_(network),
        address_(std::move(address)),
        portion_(portion),
        event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    const std::lock_guard lock(network_.mutex);
    network_.workers[address_] = this;
  }
  // Ends flushes, and transfers to disconnected peers, only once that many peers were disconnected.
  void hold_until(size_t disconnected) {
    const std::lock_guard lock(network_.mutex);
    lets_go_after_ = disconnected;
  }
  ~FakeWorker() override {
    const std::lock_guard lock(network_.mutex);
    network_.workers.erase(address_);
  }
  std::string address() const override { return address_; }
  size_t portion() const override { return portion_; }
  UcxPeer* connect(const std::string& address, std::string& error) override {
    if (address == "nowhere") {
      error = "Destination is unreachable";
      return nullptr;
    }
    return &peers_.emplace_back(UcxPeer{address, nullptr});
  }
  const char* fault_of(const UcxPeer* peer) const override { return peer->fault; }
  void disconnect(UcxPeer* peer) override {
    const std::lock_guard lock(network_.mutex);
    if (std::exchange(peer->fault, "disconnected") == nullptr) ++disconnected_;
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      if (it->second == peer->address) {
        disconnected_transfers_.push_back(it->first);
        call_back(peer->address, it->first);
        it = waiting_.erase(it);
      } else {
        ++it;
      }
    }
  }
  void send(UcxPeer* peer, uint64_t tag, std::span<const iovec> parts, UcxTransfer& transfer) override {
    transfer.begin();
    if (peer->fault != nullptr) return transfer.end(peer->fault, 0);
    Packet packet{tag, {}, {parts.begin(), parts.end()}, &transfer, address_, nullptr};
    size_t bytes = 0;
    for (const iovec& part : parts) bytes += part.iov_len;
    const bool large = bytes > kTakenAtOnce;
    if (!large) {
      packet.bytes = gather(packet.parts);
      packet.parts.clear();
      packet.sender = nullptr;
    }
    const std::lock_guard lock(network_.mutex);
    if (large) waiting_.emplace_back(&transfer, peer->address);
    deliver(peer->address, std::move(packet));
    if (!large) transfer.end(nullptr, 0);
  }
  void receive(uint64_t tag, std::span<const iovec> parts, UcxTransfer& transfer) override {
    transfer.begin();
    posted_.push_back({tag, {parts.begin(), parts.end()}, &transfer});
  }
  void flush(UcxPeer* peer, UcxTransfer& transfer) override {
    transfer.begin();
    const std::lock_guard lock(network_.mutex);
    if (lets_go_after_ == 0) return transfer.end(nullptr, 0);
    waiting_.emplace_back(&transfer, peer->address);
  }
  void cancel(UcxTransfer& transfer) override {
    const auto it = std::find_if(posted_.begin(), posted_.end(),
                                 [&](const Posted& posted) { return posted.transfer == &transfer; });
    if (it == posted_.end()) return;
    posted_.erase(it);
    transfer.end("Request canceled", 0);
  }
  bool progress() override {
    const std::lock_guard lock(network_.mutex);
    bool moved = false;
    if (disconnected_ >= lets_go_after_) {
      moved = !disconnected_transfers_.empty();
      for (UcxTransfer* transfer : std::exchange(disconnected_transfers_, {}))
        transfer->end("Connection reset", 0);
    }
    for (auto packet = inbox_.begin(); packet != inbox_.end();) {
      const bool taken = take(*packet);
      moved = moved || taken;
      packet = taken ? inbox_.erase(packet) : std::next(packet);
    }
    return moved;
  }
  int event_fd() const override { return event_.get(); }
  bool arm() override {
    const std::lock_guard lock(network_.mutex);
    eventfd_t value;
    return ::eventfd_read(event_.get(), &value) != 0;  // false if there was an event
  }

  size_t disconnected() const {
    const std::lock_guard lock(network_.mutex);
    return disconnected_;
  }
  // Sends and flushes whose memory the worker still uses.
  size_t under_way() const {
    const std::lock_guard lock(network_.mutex);
    return waiting_.size() + disconnected_transfers_.size();
  }

  // Drops all packets that have arrived but the first `count`.
  void lose_after(size_t count) {
    const std::lock_guard lock(network_.mutex);
    while (inbox_.size() > count) inbox_.pop_back();
  }

 private:
  struct Posted {
    uint64_t tag;
    std::vector<iovec> parts;
    UcxTransfer* transfer;
  };

  static std::vector<std::byte> gather(const std::vector<iovec>& parts) {
    std::vector<std::byte> bytes;
    for (const iovec& part : parts) {
      const auto* at = static_cast<const std::byte*>(part.iov_base);
      bytes.insert(bytes.end(), at, at + part.iov_len);
    }
    return bytes;
  }
  // The caller holds the network's mutex.
  void deliver(const std::string& address, Packet packet) {
    const auto worker = network_.workers.find(address);
    if (worker == network_.workers.end()) return;
    worker->second->inbox_.push_back(std::move(packet));
    (void)::eventfd_write(worker->second->event_.get(), 1);
  }
  // What the other side has not taken is never taken, because the memory belongs to the sender again.
  void call_back(const std::string& address, const UcxTransfer* sender) {
    const auto worker = network_.workers.find(address);
    if (worker != network_.workers.end())
      std::erase_if(worker->second->inbox_, [&](const Packet& packet) { return packet.sender == sender; });
  }
  bool take(Packet& packet) {
    if (packet.to_end != nullptr) {
      const auto mine = std::find_if(waiting_.begin(), waiting_.end(),
                                     [&](const auto& waiting) { return waiting.first == packet.to_end; });
      if (mine == waiting_.end()) return true;  // the peer was disconnected meanwhile
      waiting_.erase(mine);
      packet.to_end->end(nullptr, 0);
      return true;
    }
    const auto posted =
        std::find_if(posted_.begin(), posted_.end(), [&](const Posted& p) { return p.tag == packet.tag; });
    if (posted == posted_.end()) return false;
    const auto bytes = packet.sender != nullptr ? gather(packet.parts) : packet.bytes;
    size_t at = 0;
    for (const iovec& part : posted->parts) {
      const size_t count = std::min(part.iov_len, bytes.size() - at);
      if (count > 0) std::memcpy(part.iov_base, bytes.data() + at, count);
      at += count;
    }
    UcxTransfer* transfer = posted->transfer;
    posted_.erase(posted);
    transfer->end(nullptr, bytes.size());
    if (packet.sender != nullptr) deliver(packet.from, {0, {}, {}, nullptr, "", packet.sender});
    return true;
  }

  FakeNetwork& network_;
  const std::string address_;
  const size_t portion_;
  const UniqueFd event_;
  std::list<UcxPeer> peers_;
  std::vector<Posted> posted_;
  // The network's mutex guards these.
  std::deque<Packet> inbox_;
  std::vector<std::pair<UcxTransfer*, std::string>>
      waiting_;  // large sends and held flushes, with their target
  std::vector<UcxTransfer*> disconnected_transfers_;
  size_t disconnected_ = 0, lets_go_after_ = 0;
};

// Pair has two connected endpoints, each on a worker of its own.
struct Pair {
  FakeNetwork network;
  JobIdentity identity = test_identity("ucx");
  std::shared_ptr<UcxProgress> here, there;
  std::unique_ptr<Endpoint> a, b;

  // `here` sends in portions of `portion`. `there` sends as UCX decides.
  explicit Pair(DataSecurity security = DataSecurity::kNone, size_t portion = 0) {
    identity.security = security;
    here = std::make_shared<UcxProgress>(nullptr, std::make_unique<FakeWorker>(network, "here", portion));
    there = std::make_shared<UcxProgress>(nullptr, std::make_unique<FakeWorker>(network, "there"));
    auto [one, two] = make_memory_endpoints();
    one->set_peer_rank(1, "node-b");
    two->set_peer_rank(0, "node-a");
    const UcxOffer mine = make_ucx_offer(*here), theirs = make_ucx_offer(*there);
    a = make_ucx_endpoint(here, std::move(one), mine, theirs,
                          ucx_keys(identity.key.bytes(), identity.security, mine, theirs, true));
    b = make_ucx_endpoint(there, std::move(two), theirs, mine,
                          ucx_keys(identity.key.bytes(), identity.security, theirs, mine, false));
    a->set_peer_rank(1, "node-b");
    b->set_peer_rank(0, "node-a");
  }
};

Deadline soon() {
  return deadline_in(milliseconds(10'000));
}

std::vector<std::byte> pattern(size_t count, int seed) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 3 + i / 255 + seed);
  return bytes;
}

TEST(UcxEndpoint, CarriesMessagesBothWaysAtOnce) {
  for (const DataSecurity security : {DataSecurity::kNone, DataSecurity::kAuth, DataSecurity::kEncrypt}) {
    Pair pair(security);
    for (const size_t bytes : {0u, 10u, 8192u, 15'000u, 300'000u}) {
      const auto out = pattern(bytes, 1), back = pattern(bytes, 2);
      std::vector<std::byte> got(bytes), other(bytes);
      std::thread thread([&] { pair.b->exchange({3, {}, back}, {2, other, {}}, soon()); });
      pair.a->exchange({2, std::span(out).first(bytes / 3), std::span(out).subspan(bytes / 3)}, {3, {}, got},
                       soon());
      thread.join();
      EXPECT_EQ(got, back);
      EXPECT_EQ(other, out);
    }
    EXPECT_EQ(pair.a->socket_sent(), pair.b->socket_received());
    EXPECT_GT(pair.a->socket_sent(), 323'000u);
  }
}

TEST(UcxEndpoint, UpToAMegabyteLeavesInPortionsUnasked) {
  for (const DataSecurity security : {DataSecurity::kNone, DataSecurity::kAuth, DataSecurity::kEncrypt}) {
    Pair pair(security, 5000);
    for (const size_t bytes : {8193u, 10'000u, 1u << 20}) {
      const auto out = pattern(bytes, 3);
      std::vector<std::byte> got(bytes);
      // The other side does nothing yet. It would have to be asked for what does not fit into a portion.
      pair.a->send({2, std::span(out).first(bytes / 5), std::span(out).subspan(bytes / 5)}, soon());
      pair.b->recv({2, std::span(got).first(bytes / 2), std::span(got).subspan(bytes / 2)}, soon());
      EXPECT_EQ(got, out);
      std::thread thread([&] { pair.b->send({3, {}, got}, soon()); });
      std::vector<std::byte> back(bytes);
      pair.a->recv({3, {}, back}, soon());
      thread.join();
      EXPECT_EQ(back, out);
    }
    const auto longer = pattern((1 << 20) + 1, 4);
    EXPECT_THROW(pair.a->send({2, {}, longer}, deadline_in(milliseconds(30))), TimeoutError);
  }
}

// This holds for any length: each message, with its 8 KiB, takes more than a quarter of what the sender may
// be ahead.
TEST(UcxEndpoint, ASenderIsAheadOfItsReceiverByABoundOnly) {
  for (const DataSecurity security : {DataSecurity::kNone, DataSecurity::kAuth}) {
    Pair pair(security, 5000);
    const auto out = pattern(1 << 20, 6);
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < 3; ++i) pair.a->send({2, {}, out}, soon());
      pair.a->begin_send({2, {}, out});
      for (int i = 0; i < 100; ++i) ASSERT_FALSE(pair.a->step_send());
      std::vector<std::byte> got(out.size());
      for (int i = 0; i < 2; ++i) pair.b->recv({2, {}, got}, soon());
      while (!pair.a->step_send()) continue;
      for (int i = 0; i < 2; ++i) pair.b->recv({2, {}, got}, soon());
      EXPECT_EQ(got, out);
    }
  }
}

TEST(UcxEndpoint, OfShortMessagesTheNumberIsBounded) {
  Pair pair;
  int sent = 0;
  for (; sent < 10'000; ++sent) {
    pair.a->begin_send({2, {}, {}});
    if (!pair.a->step_send()) break;
  }
  EXPECT_GE(sent, 256);
  EXPECT_LE(sent, 512);
  for (int i = 0; i < sent; ++i) pair.b->recv({2, {}, {}}, soon());
  while (!pair.a->step_send()) continue;
  pair.b->recv({2, {}, {}}, soon());
}

// A message that waits for the receiver has not left. The receiver of an orderly end does not wait for it.
TEST(UcxEndpoint, AMessageThatWaitsForTheReceiverIsGivenUpAtOnce) {
  Pair pair(DataSecurity::kNone, 5000);
  const auto out = pattern(1 << 20, 6);
  for (int i = 0; i < 3; ++i) pair.a->send({2, {}, out}, soon());
  EXPECT_THROW(pair.a->send({2, {}, out}, deadline_in(milliseconds(30))), TimeoutError);
  pair.a.reset();
  std::vector<std::byte> got(out.size());
  for (int i = 0; i < 3; ++i) pair.b->recv({2, {}, got}, soon());
  EXPECT_THAT(error_of<CommError>([&] { pair.b->peek(soon()); }),
              HasSubstr("rank 0 (node-a): connection closed"));
}

TEST(UcxEndpoint, AfterADeathBetweenPortionsTheMemoryIsTheCallersAgain) {
  Pair pair(DataSecurity::kNone, 5000);
  const auto out = pattern(30'000, 5);
  pair.a->send({2, {}, out}, soon());
  std::vector<std::byte> got(out.size());
  pair.network.workers["there"]->lose_after(3);
  EXPECT_THROW(pair.b->recv({2, {}, got}, deadline_in(milliseconds(30))), CommError);
}

TEST(UcxEndpoint, SendsAndReceivesInTwoThreads) {
  Pair pair;
  const auto move = [](Endpoint& to, int from) {
    std::thread sender([&] {
      for (int i = 0; i < 50; ++i)
        to.send({static_cast<uint32_t>(i), {}, pattern(i % 2 == 0 ? 100 : 50'000, i + from)}, soon());
    });
    int right = 0;
    for (int i = 0; i < 50; ++i) {
      const MessageInfo info = to.peek(soon());
      std::vector<std::byte> got(info.bytes);
      to.recv({static_cast<uint32_t>(i), got, {}}, soon());
      if (got == pattern(info.bytes, i + 1 - from)) ++right;
    }
    sender.join();
    return right;
  };
  int there = 0;
  std::thread other([&] { there = move(*pair.b, 1); });
  EXPECT_EQ(move(*pair.a, 0), 50);
  other.join();
  EXPECT_EQ(there, 50);
}

TEST(UcxEndpoint, NamesBothSidesWhereAMessageDiffers) {
  Pair pair;
  pair.a->send({7, {}, pattern(100, 0)}, soon());
  std::vector<std::byte> got(90);
  EXPECT_THAT(error_of<CommError>([&] { pair.b->recv({7, {}, got}, soon()); }),
              HasSubstr("rank 0 (node-a) sent a data message of 100 bytes with tag 0x7 where"));
}

TEST(UcxEndpoint, AfterATimeoutTheMemoryIsTheCallersAgain) {
  Pair pair;
  {
    const auto large = pattern(500'000, 0);
    EXPECT_THAT(error_of<CommError>([&] { pair.a->send({7, {}, large}, deadline_in(milliseconds(30))); }),
                HasSubstr("rank 1 (node-b): 500000 bytes with tag 0x7 could not be sent in time"));
  }
  EXPECT_THAT(error_of<CommError>([&] { pair.a->send({7, {}, {}}, soon()); }),
              HasSubstr("the connection is unusable"));
}

// Fan has two endpoints of one worker, each to a rank on a worker of its own. The worker lets go of nothing
// before both are disconnected.
struct Fan {
  FakeNetwork network;
  FakeWorker* worker = nullptr;
  std::shared_ptr<UcxProgress> here;
  std::vector<std::unique_ptr<Endpoint>> theirs, mine;

  Fan() {
    const JobIdentity identity = test_identity("ucx");
    auto made = std::make_unique<FakeWorker>(network, "here");
    worker = made.get();
    here = std::make_shared<UcxProgress>(nullptr, std::move(made));
    for (const char* name : {"one", "two"}) {
      const auto there = std::make_shared<UcxProgress>(nullptr, std::make_unique<FakeWorker>(network, name));
      auto [one, two] = make_memory_endpoints();
      const UcxOffer a = make_ucx_offer(*here), b = make_ucx_offer(*there);
      mine.push_back(make_ucx_endpoint(here, std::move(one), a, b,
                                       ucx_keys(identity.key.bytes(), identity.security, a, b, true)));
      theirs.push_back(make_ucx_endpoint(there, std::move(two), b, a,
                                         ucx_keys(identity.key.bytes(), identity.security, b, a, false)));
    }
    worker->hold_until(2);
  }

  // The worker let go of all memory by itself: no endpoint waited for its time to end and gave the worker up.
  void expect_let_go() const {
    EXPECT_EQ(worker->disconnected(), 2u);
    EXPECT_EQ(worker->under_way(), 0u);
    const std::lock_guard lock(here->mutex());
    EXPECT_FALSE(here->given_up().has_value());
  }
};

// Cancelling one after the other would wait for the second in vain.
TEST(UcxEndpoint, SeveralAreGivenUpAtTheSameTime) {
  Fan fan;
  const auto large = pattern(500'000, 0);
  std::vector<Transfer> transfers(fan.mine.size());
  for (size_t i = 0; i < transfers.size(); ++i) {
    fan.mine[i]->begin_send({7, {}, large});
    transfers[i] = {fan.mine[i].get(), Outgoing{7, {}, large}, std::nullopt};
  }
  cancel_all(transfers);
  fan.expect_let_go();
}

TEST(UcxEndpoint, SeveralWithMessagesUnderWayEndAtTheSameTime) {
  Fan fan;
  const auto large = pattern(500'000, 0);
  for (const auto& endpoint : fan.mine) endpoint->begin_send({7, {}, large});
  EXPECT_EQ(fan.worker->under_way(), 2u);
  end_all(all_of(fan.mine));
  fan.expect_let_go();
  fan.mine.clear();
  std::vector<std::byte> got(large.size());
  for (const auto& endpoint : fan.theirs)
    EXPECT_THAT(error_of<CommError>([&] { endpoint->recv({7, {}, got}, soon()); }),
                HasSubstr("connection closed"));
}

TEST(UcxEndpoint, SeveralWhoseLastMessagesDoNotLeaveEndAtTheSameTime) {
  Fan fan;
  end_all(all_of(fan.mine));
  fan.expect_let_go();
  fan.mine.clear();
  for (const auto& endpoint : fan.theirs)
    EXPECT_THAT(error_of<CommError>([&] { endpoint->peek(soon()); }), HasSubstr("connection closed"));
}

TEST(UcxEndpoint, AWorkerThatKeepsMemoryIsGivenUp) {
  Fan fan;
  fan.worker->hold_until(1000);
  for (const auto& endpoint : fan.mine) endpoint->set_peer_rank(3, "node-b");
  const auto large = pattern(500'000, 0);
  fan.mine[0]->begin_send({7, {}, large});
  fan.mine[0]->cancel_send();
  EXPECT_THAT(error_of<CommError>([&] { fan.mine[1]->send({7, {}, large}, soon()); }),
              HasSubstr("rank 3 (node-b): UCX does not release the memory"));
  EXPECT_THROW(fan.mine[1]->peek(soon()), CommError);
  end_all(all_of(fan.mine));
  fan.mine.clear();
}

TEST(UcxEndpoint, WhatWasSentBeforeTheEndIsReceived) {
  Pair pair;
  for (int i = 0; i < 20; ++i) pair.a->send({1, {}, pattern(1000, i)}, soon());
  pair.a.reset();
  for (int i = 0; i < 20; ++i) {
    std::vector<std::byte> got(1000);
    pair.b->recv({1, {}, got}, soon());
    EXPECT_EQ(got, pattern(1000, i));
  }
  EXPECT_THAT(error_of<CommError>([&] { pair.b->peek(soon()); }),
              HasSubstr("rank 0 (node-a): connection closed"));
}

TEST(UcxEndpoint, ShutdownWakesBothEnds) {
  Pair pair;
  std::string there, here;
  std::thread waiting([&] { there = error_of<CommError>([&] { pair.b->peek(soon()); }); });
  std::thread sending([&] {
    const auto large = pattern(500'000, 0);
    here = error_of<CommError>([&] { pair.a->send({7, {}, large}, soon()); });
  });
  pair.a->shutdown();
  waiting.join();
  sending.join();
  EXPECT_THAT(here, HasSubstr("rank 1 (node-b)"));
  EXPECT_EQ(error_of<CommError>([&] { pair.b->recv({7, {}, {}}, soon()); }).substr(0, 15), "rank 0 (node-a)");
}

TEST(UcxEndpoint, RefusesAnotherJobsKey) {
  Pair pair;
  const UcxOffer mine = make_ucx_offer(*pair.here), theirs = make_ucx_offer(*pair.there);
  auto [one, two] = make_memory_endpoints();
  const JobIdentity stranger = test_identity("ucx", DataSecurity::kNone, 8);
  const auto c = make_ucx_endpoint(pair.here, std::move(one), mine, theirs,
                                   ucx_keys(stranger.key.bytes(), stranger.security, mine, theirs, true));
  const auto d =
      make_ucx_endpoint(pair.there, std::move(two), theirs, mine,
                        ucx_keys(pair.identity.key.bytes(), pair.identity.security, theirs, mine, false));
  c->send({1, {}, pattern(10, 0)}, soon());
  EXPECT_THAT(error_of<CommError>([&] { d->peek(soon()); }), HasSubstr("is not authentic"));
}

TEST(UcxEndpoint, SaysWhereNoWayLeads) {
  Pair pair;
  auto [one, two] = make_memory_endpoints();
  one->set_peer_rank(4, "node-d");
  UcxOffer mine = make_ucx_offer(*pair.here), theirs = mine;
  theirs.address = "nowhere";
  EXPECT_EQ(error_of<CommError>([&] { make_ucx_endpoint(pair.here, std::move(one), mine, theirs, {}); }),
            "rank 4 (node-d): UCX: Destination is unreachable; see UCX_TLS and UCX_NET_DEVICES");
}

TEST(UcxOffer, IsReadBack) {
  Pair pair(DataSecurity::kNone, 6000);
  UcxOffer offer = make_ucx_offer(*pair.here);
  const std::string text = encode_offer(offer);
  const UcxOffer read = decode_offer(std::as_bytes(std::span(text)), "rank 1");
  EXPECT_EQ(read.connection, offer.connection);
  EXPECT_EQ(read.portion, 6000u);
  EXPECT_EQ(read.nonce, offer.nonce);
  EXPECT_EQ(read.address, "here");
  EXPECT_THROW(decode_offer(std::as_bytes(std::span(text)).first(40), "rank 1"), CommError);
  offer.portion = 1;
  const std::string grains = encode_offer(offer);
  EXPECT_THROW(decode_offer(std::as_bytes(std::span(grains)), "rank 1"), CommError);
}

}  // namespace
}  // namespace starling
