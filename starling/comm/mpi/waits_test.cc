// Tests what Starling adds to MPI's operations, over transfers in memory: waits that end, the roll call, and
// sends that do not block.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>

#include "starling/base/error.h"
#include "starling/comm/mpi/patience.h"
#include "starling/comm/mpi/roll_call.h"
#include "starling/comm/mpi/send_queue.h"

namespace starling {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// MemoryPost carries messages between ranks of one process. A message is delivered when its receiver takes
// it, or at once if it is `eager`.
class MemoryPost {
 public:
  struct Message {
    int from, to, tag;
    const std::byte* data;
    size_t bytes;
    std::vector<std::byte> copy;
    std::shared_ptr<std::atomic<bool>> gone = std::make_shared<std::atomic<bool>>(false);
  };

  explicit MemoryPost(bool eager) : eager_(eager) {}

  std::shared_ptr<std::atomic<bool>> put(int from, int to, int tag, const void* data, size_t bytes) {
    const std::lock_guard lock(mutex_);
    Message message{from, to, tag, static_cast<const std::byte*>(data), bytes, {}};
    if (eager_) {
      message.copy.assign(message.data, message.data + bytes);
      *message.gone = true;
    }
    messages_.push_back(message);
    return message.gone;
  }

  // A `from` of -1 stands for any rank.
  int find(int to, int from, int tag) {
    const std::lock_guard lock(mutex_);
    for (const Message& m : messages_)
      if (m.to == to && m.tag == tag && (from < 0 || m.from == from)) return m.from;
    return -1;
  }

  bool take(int to, int from, int tag, void* data, size_t& bytes) {
    const std::lock_guard lock(mutex_);
    for (auto m = messages_.begin(); m != messages_.end(); ++m) {
      if (m->to != to || m->tag != tag || m->from != from) continue;
      std::memcpy(data, eager_ ? m->copy.data() : m->data, m->bytes);
      bytes = m->bytes;
      *m->gone = true;
      messages_.erase(m);
      return true;
    }
    return false;
  }

 private:
  const bool eager_;
  std::mutex mutex_;
  std::deque<Message> messages_;
};

class FunctionTransfer final : public MpiTransfer {
 public:
  explicit FunctionTransfer(std::function<bool(size_t&)> ended, const std::string& fault = "")
      : ended_(std::move(ended)), fault_at_end_(fault) {}
  bool test() override {
    if (done_ || !ended_(bytes_)) return done_;
    fault_ = fault_at_end_;
    return done_ = true;
  }

 private:
  const std::function<bool(size_t&)> ended_;
  const std::string fault_at_end_;
  bool done_ = false;
};

// MemoryMessages has only messages. Its collectives fail the test.
class MemoryMessages final : public MpiCommunicator {
 public:
  MemoryMessages(MemoryPost& post, int rank) : post_(post), rank_(rank) {}
  MpiStarted broadcast(void*, size_t, DataType, int) override { return unexpected(); }
  MpiStarted all_reduce(void*, size_t, DataType, ReduceOp) override { return unexpected(); }
  MpiStarted reduce_scatter(const void*, void*, size_t, DataType, ReduceOp) override { return unexpected(); }
  MpiStarted all_gather(const void*, void*, size_t, DataType) override { return unexpected(); }
  MpiStarted all_to_all(const void*, std::span<const int>, std::span<const int>, void*, std::span<const int>,
                        std::span<const int>, DataType) override {
    return unexpected();
  }
  MpiStarted send(const void* data, size_t bytes, int peer, int tag) override {
    return std::make_unique<FunctionTransfer>(
        [gone = post_.put(rank_, peer, tag, data, bytes)](size_t&) { return gone->load(); });
  }
  MpiStarted receive(void* data, size_t, int peer, int tag) override {
    return std::make_unique<FunctionTransfer>(
        [this, data, peer, tag](size_t& bytes) { return post_.take(rank_, peer, tag, data, bytes); });
  }
  int probe(int peer, int tag) override { return post_.find(rank_, peer, tag); }

 private:
  MpiStarted unexpected() {
    ADD_FAILURE() << "a collective";
    return nullptr;
  }

  MemoryPost& post_;
  const int rank_;
};

TEST(RollCall, WhoHasEnteredAnswersAndWhoHasNotIsAbsent) {
  MemoryPost post(true);
  MemoryMessages a(post, 0), b(post, 1), c(post, 2);
  RollCall of_a(a, 0, 3), of_b(b, 1, 3), of_c(c, 2, 3);
  of_a.enter(7);
  of_b.enter(6);
  of_c.enter(7);
  of_c.look(false);  // no rank has asked yet
  of_a.look(true);
  EXPECT_THAT(of_a.absent(), ElementsAre(1, 2));
  of_c.look(false);  // hears rank 0 and answers
  of_b.look(false);  // is in another collective
  of_a.look(true);
  EXPECT_THAT(of_a.absent(), ElementsAre(1));
  EXPECT_THAT(of_c.absent(), ElementsAre(1));
  of_b.enter(7);
  of_b.look(false);
  EXPECT_THAT(of_b.absent(), IsEmpty());
  of_a.look(true);
  EXPECT_THAT(of_a.absent(), IsEmpty());
  of_a.enter(8);  // notes about the previous collective do not count
  EXPECT_THAT(of_a.absent(), ElementsAre(1, 2));
}

TEST(MpiOutbox, ASenderGoesOnBeforeItsMessageIsTaken) {
  MemoryPost post(false);
  MemoryMessages a(post, 0), b(post, 1);
  std::atomic<int> faults = 0;
  MpiOutbox outbox(a, [&](const std::string&) { ++faults; });
  for (uint8_t i = 0; i < 3; ++i) {
    const std::vector<std::byte> bytes(100, std::byte{i});  // does not outlive the call
    outbox.send(bytes.data(), bytes.size(), 1, 5);
  }
  EXPECT_FALSE(outbox.drain(milliseconds(1)));
  for (uint8_t i = 0; i < 3; ++i) {
    std::vector<std::byte> got(100);
    const MpiStarted part = b.receive(got.data(), got.size(), 0, 5);
    EXPECT_TRUE(part->test());
    EXPECT_EQ(part->bytes(), 100u);
    EXPECT_EQ(got, std::vector<std::byte>(100, std::byte{i}));
  }
  EXPECT_TRUE(outbox.drain(milliseconds(60'000)));
  EXPECT_EQ(faults, 0);
}

TEST(MpiOutbox, GoesWithMessagesThatNobodyTakes) {
  MemoryPost post(false);
  MemoryMessages a(post, 0);
  MpiOutbox outbox(a, [](const std::string&) {});
  outbox.send(nullptr, 0, 1, 5);
  EXPECT_FALSE(outbox.drain(milliseconds(1)));
}

struct Waiting {
  std::vector<std::string> warnings;
  GroupOptions options;
  MpiPatience patience{options};
  Waiting() {
    options.timeout = milliseconds(100);
    options.warn = [this](const std::string& text) { warnings.push_back(text); };
  }
  std::string fault_of(MpiTransfer& transfer) {
    try {
      patience.wait(transfer, "barrier #3",
                    {.late = [] { return Lateness{"rank 2 (node-b) did not enter barrier #3", 2}; }});
    } catch (const TimeoutError& error) {
      EXPECT_EQ(error.peer(), 2);
      return std::string("late: ") + error.what();
    } catch (const CommError& error) {
      return error.what();
    }
    return "none";
  }
};

TEST(MpiPatience, NamesWhoIsLateAfterTheTimeoutAndEndsAllLaterWaits) {
  Waiting waiting;
  FunctionTransfer never([](size_t&) { return false; }), over([](size_t&) { return true; });
  EXPECT_EQ(waiting.fault_of(over), "none");
  const std::string said = waiting.fault_of(never);
  EXPECT_THAT(said, HasSubstr("late: rank 2 (node-b) did not enter barrier #3 within 100 ms"));
  ASSERT_EQ(waiting.warnings.size(), 1u);
  EXPECT_THAT(waiting.warnings[0], HasSubstr("rank 2 (node-b) did not enter barrier #3 within 0.01 s"));
  EXPECT_TRUE(waiting.patience.failed());
  EXPECT_EQ(waiting.fault_of(over), said);
}

TEST(MpiPatience, SaysWhatMpiSays) {
  Waiting waiting;
  FunctionTransfer bad([](size_t&) { return true; }, "message truncated");
  EXPECT_EQ(waiting.fault_of(bad), "barrier #3 over MPI: message truncated");
}

TEST(MpiPatience, AFailureMeanwhileEndsAWait) {
  Waiting waiting;
  waiting.options.timeout = milliseconds(60'000);
  int turns = 0;
  FunctionTransfer never([&](size_t&) {
    if (++turns == 1000) waiting.patience.fail({"group aborted by rank 0: enough", -1, false});
    return false;
  });
  EXPECT_EQ(waiting.fault_of(never), "group aborted by rank 0: enough");
}

}  // namespace
}  // namespace starling
