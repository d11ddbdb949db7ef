// Tests servers that do not exist and workers that send invalid messages. Threads stand for processes, with a
// store in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "starling/base/error.h"
#include "starling/net/store/store_server.h"
#include "starling/server/client.h"
#include "starling/server/serve.h"
#include "starling/testing/run_ranks.h"

namespace starling {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

ServerRendezvous rendezvous_of(int workers) {
  ServerRendezvous m;
  m.workers = workers;
  m.server_timeout = milliseconds(20'000);
  m.host_name = "node-a";
  return m;
}

ServerOptions options_of(int workers) {
  ServerOptions options;
  options.workers = workers;
  options.staleness.reset();
  options.optimizer.momentum = 0;
  options.lambda.assign(static_cast<size_t>(workers), 1.0 / workers);  // also after a loss
  return options;
}

std::string fault_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const CommError& error) {
    return error.what();
  }
  return "";
}

ClientLayout at_zero() {
  ClientLayout layout;
  layout.offset = {0};
  return layout;
}

const Partitioning kOne = make_partitioning({4}, 8, 1);

TEST(ServerFaults, AServerThatIsNotThereIsNamed) {
  run_ranks(1, [](const ThreadRank& at) {
    ServerRendezvous m = rendezvous_of(2);
    m.server_timeout = milliseconds(50);
    EXPECT_THAT(fault_of([&] { ServerClient<double>(*at.store, m, 0, kOne, at_zero()); }),
                testing::AllOf(HasSubstr("server 0 (rank 2) is not there"), HasSubstr("within 50 ms")));
    m.server_timeout = milliseconds(20'000);
    at.store->put(lost_key(2), "killed by signal 9");
    EXPECT_THAT(fault_of([&] { ServerClient<double>(*at.store, m, 0, kOne, at_zero()); }),
                HasSubstr("server 0 (rank 2) is lost: killed by signal 9"));
  });
}

// Worker 1 greets, sends something invalid and receives the reason. Worker 0 trains to the end.
std::string refusal_of(const std::function<void(Link&)>& misbehave) {
  std::string heard;
  run_ranks(3, [&](const ThreadRank& at) {
    const ServerRendezvous m = rendezvous_of(2);
    if (at.rank == 2) {
      const ServeReport report = serve_shard(*at.store, m, 0, options_of(2), DataType::kFp64);
      ASSERT_EQ(report.lost.size(), 1u);
      EXPECT_EQ(report.lost[0].worker, 1);
      EXPECT_EQ(report.stats.updates, 3u);
      return;
    }
    if (at.rank == 0) {
      ServerClient<double> client(*at.store, m, 0, kOne, at_zero());
      std::vector<double> x(4, 1.0);
      client.load(x.data(), {}, 0);
      for (int i = 0; i < 3; ++i) {
        client.push(x.data(), {.lr = 0.5});
        client.pull(x.data());
      }
      EXPECT_NEAR(x[2], 0.75 * 0.75 * 0.75, 1e-15);  // x ← x − lr λ x with λ = 1/2
      client.goodbye();
      return;
    }
    const auto link = meet_server(*at.store, m, 1, 0);
    heard = fault_of([&] {
      misbehave(*link);
      link->recv_head();
    });
  });
  return heard;
}

void greet(Link& link, const ServerHello& hello) {
  const auto body = encode_hello(hello);
  link.send({.code = MessageCode::kHello, .count = body.size()}, bytes_of(body));
  link.recv_head();
}

TEST(ServerFaults, AWorkerThatSaysWhatItMustNotIsToldAndRetired) {
  const std::vector<double> four(4);
  EXPECT_THAT(refusal_of([&](Link& link) { link.send({.code = MessageCode::kPull}); }),
              HasSubstr("worker 1 sent 'pull' where 'hello' was expected"));
  EXPECT_THAT(
      refusal_of([&](Link& link) { link.send({.code = MessageCode::kHello, .count = kMaxElements}); }),
      HasSubstr("'hello' with"));
  EXPECT_THAT(refusal_of([&](Link& link) { greet(link, {8, {{1, 4}}, {1}}); }),
              HasSubstr("claims partition 1 of 1"));
  EXPECT_THAT(refusal_of([&](Link& link) {
                greet(link, {8, {{1, 4}}, {0}});
                link.send({.code = MessageCode::kPush, .count = kMaxElements}, bytes_of(four));
              }),
              HasSubstr("it must have 4"));
  EXPECT_THAT(refusal_of([&](Link& link) {
                greet(link, {8, {{1, 4}}, {0}});
                link.send({.code = MessageCode::kPush, .clock = 9, .count = 4}, bytes_of(four));
              }),
              HasSubstr("push of worker 1 at clock 9; it is at clock 0"));
  EXPECT_THAT(refusal_of([&](Link& link) {
                greet(link, {8, {{1, 4}}, {0}});
                link.send({.code = MessageCode::kWelcome});
              }),
              HasSubstr("'welcome', which is no request to a server"));
}

TEST(ServerFaults, AWorkerWithAnotherModelIsRefused) {
  run_ranks(3, [](const ThreadRank& at) {
    const ServerRendezvous m = rendezvous_of(2);
    if (at.rank == 2) {
      const ServeReport report = serve_shard(*at.store, m, 0, options_of(2), DataType::kFp64);
      EXPECT_EQ(report.lost.size(), 1u);
      return;
    }
    if (at.rank == 0) {
      ServerClient<double> client(*at.store, m, 0, kOne, at_zero());
      at.store->put("first", "joined");
      at.store->get("second", milliseconds(20'000));
      client.goodbye();
      return;
    }
    at.store->get("first", milliseconds(20'000));
    EXPECT_THAT(
        fault_of([&] { ServerClient<double>(*at.store, m, 1, make_partitioning({5}, 8, 1), at_zero()); }),
        HasSubstr("another model"));
    at.store->put("second", "refused");
  });
}

TEST(ServerFaults, OptionsThatCannotBeAreRefusedBeforeAnythingIsServed) {
  run_ranks(1, [](const ThreadRank& at) {
    EXPECT_THROW(serve_shard(*at.store, rendezvous_of(2), 0, options_of(3), DataType::kFp64), ConfigError);
    EXPECT_THROW(serve_shard(*at.store, rendezvous_of(2), 0, options_of(2), DataType::kBf16), ConfigError);
  });
}

}  // namespace
}  // namespace starling
