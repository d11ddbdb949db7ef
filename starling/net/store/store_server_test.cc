// Tests the store over TCP and Unix sockets. Both run the same tests.
#include "starling/net/store/store_server.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <map>
#include <thread>
#include <vector>

#include "starling/base/error.h"
#include "starling/net/store/store_client.h"
#include "starling/net/store/store_protocol.h"
#include "starling/net/stream/control_frame.h"
#include "starling/net/stream/socket.h"
#include "starling/net/stream/stream_endpoint.h"
#include "starling/testing/error_of.h"
#include "starling/testing/test_identity.h"

namespace starling {
namespace {

constexpr Milliseconds kLong(60'000);

JobIdentity job(int key = 9) {
  return test_identity("store-test", DataSecurity::kNone, key);
}

class Stores : public testing::TestWithParam<std::string> {
 protected:
  Stores() { restart({}); }
  void restart(StoreServerOptions options) {
    server_.reset();
    const std::string name = fmt::format("@starling-store-{}-{}", ::getpid(), fmt::ptr(this));
    server_ = std::make_unique<StoreServer>(
        std::vector<std::string>{GetParam() == "tcp" ? "127.0.0.1:0" : name}, job(), options);
    address_ = server_->addresses()[0];
  }
  UniqueFd connect_raw() { return connect_to(parse_address(address_), deadline_in(kLong)); }
  std::unique_ptr<StoreServer> server_;
  std::string address_;
};
INSTANTIATE_TEST_SUITE_P(Net, Stores, testing::Values("tcp", "unix"),
                         [](const auto& info) { return info.param; });

TEST_P(Stores, PutGetAdd) {
  StoreClient a(address_, job()), b(address_, job());
  a.put("x", "1");
  a.put("x", "2");
  EXPECT_EQ(b.get("x", kLong), "2");
  EXPECT_EQ(b.try_get("y"), std::nullopt);
  EXPECT_EQ(b.add("n", 5), 5);
  EXPECT_EQ(a.add("n", -7), -2);
  EXPECT_EQ(a.try_get("n"), "-2");
  a.put("empty", "");
  EXPECT_EQ(b.get("empty", kLong), "");
  EXPECT_NE(error_of([&] { a.put("x", "word"), a.add("x", 1); }).find("x does not hold a number"),
            std::string::npos);
  EXPECT_EQ(a.get("x", kLong), "word");  // the connection survives a refusal
}

TEST_P(Stores, LargestValuePassesAndALargerOneIsRefused) {
  StoreClient client(address_, job());
  const std::string largest(kMaxStoreValueBytes, 'v');
  client.put("k", largest);
  EXPECT_EQ(client.get("k", kLong), largest);
  EXPECT_NE(error_of([&] { client.put("k", largest + "v"); }).find("at most 65536"), std::string::npos);
}

TEST_P(Stores, GetWaitsForAnotherClientAndForAnotherThreadOfTheSame) {
  StoreClient a(address_, job()), b(address_, job());
  auto other = std::async(std::launch::async, [&] { return a.get("late", kLong); });
  auto same = std::async(std::launch::async, [&] { return b.get("late", kLong); });
  b.put("late", "here");
  EXPECT_EQ(other.get(), "here");
  EXPECT_EQ(same.get(), "here");
}

TEST_P(Stores, TimeoutNamesTheKeyAndTheClientGoesOn) {
  StoreClient client(address_, job());
  try {
    client.get("never", Milliseconds(5));
    FAIL() << "nobody put it";
  } catch (const TimeoutError& e) {
    EXPECT_NE(std::string(e.what()).find("key never was not set within 5 ms"), std::string::npos) << e.what();
  }
  client.put("x", "1");
  EXPECT_EQ(client.get("x", Milliseconds(0)), "1");
}

TEST_P(Stores, ManyThreadsCount) {
  StoreClient shared(address_, job());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      StoreClient own(address_, job());
      for (int i = 0; i < 50; ++i) (t % 2 ? own : shared).add("count", 1);
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(shared.add("count", 0), 200);
}

TEST_P(Stores, DescriptorsPassOverUnixSockets) {
  StoreClient a(address_, job()), b(address_, job());
  const UniqueFd memory(::memfd_create("store test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(memory.get(), 8192), 0);
  if (GetParam() == "tcp") {
    EXPECT_NE(error_of([&] { a.put_fd("w", memory.get(), 0); }).find("Unix sockets only"), std::string::npos);
    return;
  }
  auto waiting = std::async(std::launch::async, [&] { return b.get_fd("w", kLong); });
  a.put_fd("w", memory.get(), 0);
  EXPECT_EQ(::lseek(waiting.get().get(), 0, SEEK_END), 8192);
  EXPECT_EQ(::lseek(a.get_fd("w", kLong).get(), 0, SEEK_END), 8192);
  EXPECT_THROW(a.get_fd("none", Milliseconds(1)), TimeoutError);
  EXPECT_THROW(a.put_fd("bad", -1, 0), CommError);
}

TEST_P(Stores, OfSeveralValuesTheFirstIsKeptAndAllLearnIt) {
  StoreClient a(address_, job()), b(address_, job());
  EXPECT_EQ(a.put_if_absent("list", "0 1"), "0 1");
  EXPECT_EQ(b.put_if_absent("list", "1 2"), "0 1");
  std::vector<std::string> kept(8);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kept.size(); ++t)
    threads.emplace_back(
        [&, t] { kept[t] = StoreClient(address_, job()).put_if_absent("race", std::to_string(t)); });
  for (auto& t : threads) t.join();
  for (const std::string& value : kept) EXPECT_EQ(value, a.get("race", kLong));
  auto waiting = std::async(std::launch::async, [&] { return b.get("later", kLong); });
  a.put_if_absent("later", "now");
  EXPECT_EQ(waiting.get(), "now");
}

TEST_P(Stores, EraseRemovesWhatBeginsWithThePrefix) {
  StoreClient a(address_, job());
  for (const char* key : {"comm/1/x", "comm/1/y/z", "comm/12/x", "other"}) a.put(key, "1");
  a.erase("comm/1/");
  EXPECT_FALSE(a.try_get("comm/1/x"));
  EXPECT_FALSE(a.try_get("comm/1/y/z"));
  EXPECT_TRUE(a.try_get("comm/12/x"));
  EXPECT_TRUE(a.try_get("other"));
}

TEST_P(Stores, AGatherReturnsAllValuesAndNamesTheFirstAbsentOne) {
  constexpr int kValues = 20;
  StoreClient a(address_, job()), b(address_, job());
  const auto value_of = [](int i) { return std::string(10'000, static_cast<char>('a' + i)); };
  for (int i = kValues - 1; i > 0; --i) a.put(fmt::format("at/{}", i), value_of(i));
  auto gathered = std::async(std::launch::async, [&] { return b.gather("at/", kValues, kLong); });
  try {
    a.gather("at/", kValues, Milliseconds(1));
    ADD_FAILURE() << "a value that nobody has put";
  } catch (const TimeoutError& error) {
    EXPECT_EQ(error.peer(), 0);
    EXPECT_NE(std::string(error.what()).find("key at/0 was not set"), std::string::npos) << error.what();
  }
  a.put("at/0", value_of(0));
  const std::vector<std::string> values = gathered.get();  // more than one answer has room for
  ASSERT_EQ(values.size(), static_cast<size_t>(kValues));
  for (int i = 0; i < kValues; ++i) EXPECT_EQ(values[static_cast<size_t>(i)], value_of(i));
  try {
    a.gather("at/", kValues + 2, Milliseconds(1));
    ADD_FAILURE() << "values that nobody has put";
  } catch (const TimeoutError& error) {
    EXPECT_EQ(error.peer(), kValues);
  }
}

TEST_P(Stores, AListHasTheKeysThatBeginWithThePrefix) {
  StoreClient client(address_, job());
  std::map<std::string, std::string> put;
  for (int i = 0; i < 30; ++i)
    put[fmt::format("list/{}", i)] = std::string(5'000, static_cast<char>('a' + i));
  put["list/largest"] = std::string(kMaxStoreValueBytes, 'v');
  for (const auto& [key, value] : put) client.put(key, value);
  client.put("lisp", "before");
  client.put("list", "before");
  client.put("list0", "behind");
  EXPECT_EQ(client.list("list/"), put);
  EXPECT_TRUE(client.list("lists").empty());
}

// Descriptors pass over Unix sockets only.
class StoresWithDescriptors : public Stores {};
INSTANTIATE_TEST_SUITE_P(Net, StoresWithDescriptors, testing::Values("unix"),
                         [](const auto& info) { return info.param; });

TEST_P(StoresWithDescriptors, ADescriptorIsClosedAfterItsLastReader) {
  StoreClient a(address_, job());
  const UniqueFd memory(::memfd_create("store test", MFD_CLOEXEC));
  a.put_fd("w", memory.get(), 2);
  a.put_fd("erased/w", memory.get(), 2);
  for (int reader = 0; reader < 2; ++reader) EXPECT_TRUE(a.get_fd("w", kLong).valid());
  EXPECT_THROW(a.get_fd("w", Milliseconds(1)), TimeoutError);
  a.erase("erased/");
  EXPECT_THROW(a.get_fd("erased/w", Milliseconds(1)), TimeoutError);
}

TEST_P(Stores, ALostRankIsRecordedAndAnOrderlyOneIsNot) {
  StoreClient watcher(address_, job());
  auto lost = std::async(std::launch::async, [&] { return watcher.get(lost_key(2), kLong); });
  {
    StoreClient orderly(address_, job()), killed(address_, job());
    orderly.announce(1);
    killed.announce(2);
    orderly.put("x", "1");
    orderly.goodbye();
  }
  EXPECT_NE(lost.get().find("ended or was killed"), std::string::npos);
  EXPECT_TRUE(watcher.try_get(dead_key(2)));
  EXPECT_EQ(watcher.try_get(lost_key(1)), std::nullopt);
  EXPECT_EQ(watcher.get(kFirstLostKey, kLong), "2");
}

TEST_P(Stores, WrongKeyAndAnotherJobAreNamed) {
  EXPECT_NE(error_of([&] { StoreClient(address_, job(8)); }).find("wrong job key"), std::string::npos);
  JobIdentity other = job();
  other.job_id = "other";
  EXPECT_NE(error_of([&] { StoreClient(address_, other); }), "");
  StoreClient right(address_, job());
  EXPECT_EQ(right.add("n", 1), 1);
}

TEST_P(Stores, SilentStrangersUpToTheCapAreDroppedInTime) {
  restart({{Milliseconds(100), 4}});
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 10; ++i) strangers.push_back(connect_raw());
  std::unique_ptr<StoreClient> client;
  while (!client) {
    try {
      client = std::make_unique<StoreClient>(address_, job());
    } catch (const CommError&) {
      continue;  // the machine was so busy that this client's own handshake took too long
    }
  }
  client->put("x", "1");
  EXPECT_EQ(client->get("x", kLong), "1");
}

TEST_P(Stores, GarbageAfterTheHandshakeEndsThatConnectionOnly) {
  StoreClient client(address_, job());
  const UniqueFd raw = connect_raw();
  greet(raw.get(), job(), store_parties(), "test", deadline_in(kLong));
  const std::string garbage(100, 'x');
  ASSERT_EQ(::write(raw.get(), garbage.data(), garbage.size()), 100);
  ASSERT_TRUE(wait_for(raw.get(), POLLIN, deadline_in(kLong)));
  char byte;
  EXPECT_LE(::recv(raw.get(), &byte, 1, 0), 0);  // the connection is closed or reset
  client.put("x", "1");
  EXPECT_EQ(client.get("x", kLong), "1");
}

TEST_P(Stores, AReplayedRequestEndsThatConnection) {
  const UniqueFd raw = connect_raw();
  const ConnectionKeys keys = greet(raw.get(), job(), store_parties(), "test", deadline_in(kLong));
  Gcm sealing(keys.sending, Gcm::Use::kSeal);
  const std::string body = encode_request_body({StoreOp::kAdd, 0, "n", "1"});
  const std::string frame =
      seal_control_frame(sealing, keys.security, static_cast<uint32_t>(StoreOp::kAdd), body);
  ASSERT_EQ(::write(raw.get(), frame.data(), frame.size()), static_cast<ssize_t>(frame.size()));
  std::string input;
  ControlFrameReader answers(keys);
  std::optional<OpenedFrame> answer;
  while (!(answer = answers.next(input, "store"))) {
    ASSERT_TRUE(wait_for(raw.get(), POLLIN, deadline_in(kLong)));
    char byte;
    ASSERT_EQ(::recv(raw.get(), &byte, 1, 0), 1);
    input += byte;
  }
  EXPECT_EQ(answer->body, "1");
  ASSERT_EQ(::write(raw.get(), frame.data(), frame.size()), static_cast<ssize_t>(frame.size()));
  ASSERT_TRUE(wait_for(raw.get(), POLLIN, deadline_in(kLong)));
  char byte;
  EXPECT_LE(::recv(raw.get(), &byte, 1, 0), 0);
  StoreClient client(address_, job());
  EXPECT_EQ(client.get("n", kLong), "1");
}

TEST_P(Stores, AFullStoreRefusesNewKeysOnly) {
  restart({{}, 100, 2});
  StoreClient client(address_, job());
  client.put("a", "1");
  client.put("b", "1");
  EXPECT_NE(error_of([&] { client.put("c", "1"); }).find("full (2 keys)"), std::string::npos);
  client.put("a", "2");
  EXPECT_EQ(client.get("a", kLong), "2");
}

TEST_P(Stores, TheEndOfTheServerAndShutdownWakeWaiters) {
  StoreClient a(address_, job()), b(address_, job());
  auto waits = [](StoreClient& client) { return error_of([&] { client.get("never", kLong); }); };
  auto first = std::async(std::launch::async, waits, std::ref(a));
  b.shutdown();
  EXPECT_NE(waits(b), "");
  server_.reset();
  EXPECT_NE(first.get(), "");
}

TEST(StoreClient, WaitsForAServerThatStartsLaterAndGivesUpInTime) {
  const std::string name = fmt::format("@starling-later-{}", ::getpid());
  const std::string error = error_of([&] { StoreClient(name, job(), {Milliseconds(20), Milliseconds(20)}); });
  EXPECT_NE(error.find("no server within 20 ms"), std::string::npos) << error;
  auto client = std::async(std::launch::async, [&] { return StoreClient(name, job()).add("n", 1); });
  StoreServer server({name, "127.0.0.1:0"}, job());
  EXPECT_EQ(client.get(), 1);
  StoreClient over_tcp(server.addresses()[1], job());
  EXPECT_EQ(over_tcp.add("n", 1), 2);
}

TEST(StoreServer, RefusesEveryInterfaceAndAPortInUse) {
  EXPECT_NE(error_of([&] { StoreServer({"0.0.0.0:0"}, job()); }).find("every interface"), std::string::npos);
  StoreServer server({"127.0.0.1:0"}, job());
  EXPECT_NE(error_of([&] { StoreServer({server.addresses()[0]}, job()); }).find("is in use"),
            std::string::npos);
}

}  // namespace
}  // namespace starling
