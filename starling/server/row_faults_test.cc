// Tests row tables whose workers or servers fail: every wait ends with an error that names who is late or
// lost. Threads stand for processes, with a store in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/net/store/store_server.h"
#include "starling/server/row_client.h"
#include "starling/server/row_host.h"
#include "starling/server/row_message.h"
#include "starling/server/row_serve.h"
#include "starling/server/row_shard.h"
#include "starling/testing/error_of.h"
#include "starling/testing/run_ranks.h"

namespace starling {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

constexpr milliseconds kLong{20'000};

ServerRendezvous rows_rendezvous(int workers) {
  ServerRendezvous m;
  m.name = "rows";
  m.workers = workers;
  m.server_timeout = kLong;
  m.idle_timeout = kLong;
  m.host_name = "node-a";
  return m;
}

RowTableOptions rows_options(int workers) {
  RowTableOptions options;
  options.width = 4;
  options.workers = workers;
  return options;
}

void push_one(RowClient& rows, int64_t key) {
  const std::vector<int32_t> index = {1}, change = {1};
  rows.push(std::vector<RowDelta>{{key, index, change}});
}

std::string pull_fault(RowClient& rows) {
  RowBatch read;
  return error_of([&] { rows.pull(std::vector<int64_t>{1, 2, 3}, read); });
}

TEST(RowFaults, AServerThatIsNotThereIsNamed) {
  run_ranks(1, [](const ThreadRank& at) {
    ServerRendezvous m = rows_rendezvous(2);
    m.server_timeout = milliseconds(50);
    EXPECT_THAT(error_of([&] { RowClient(*at.store, m, 0, rows_options(2)); }),
                AllOf(HasSubstr("server 0 (rank 2) is not there"), HasSubstr("within 50 ms")));
    at.store->put(lost_key(2), "killed by signal 9");
    m.server_timeout = kLong;
    EXPECT_THAT(error_of([&] { RowClient(*at.store, m, 0, rows_options(2)); }),
                HasSubstr("server 0 (rank 2) is lost: killed by signal 9"));
  });
}

// Worker 1 greets, sends something invalid and receives the reason. Worker 0 is told that worker 1 is lost.
std::string rows_refusal(const std::function<void(Link&)>& misbehave, bool greets = true) {
  std::string heard;
  run_ranks(3, [&](const ThreadRank& at) {
    const ServerRendezvous m = rows_rendezvous(2);
    if (at.rank == 2) {
      const RowServeReport report = serve_rows(*at.store, m, 0, rows_options(2), DataType::kInt32);
      ASSERT_EQ(report.lost.size(), 2u);
      EXPECT_EQ(report.lost[0].worker, 1);
      return;
    }
    if (at.rank == 0) {
      RowClient rows(*at.store, m, 0, rows_options(2));
      at.store->get("refused", kLong);
      EXPECT_THAT(pull_fault(rows), HasSubstr("worker 1 is lost"));
      return;
    }
    const auto link = meet_server(*at.store, m, 1, 0);
    if (greets) {
      const auto body = encode_row_hello(rows_options(2), DataType::kInt32);
      link->send({.code = MessageCode::kRowHello, .count = body.size()}, bytes_of(body));
      link->recv_head();
    }
    heard = error_of([&] {
      misbehave(*link);
      link->recv_head();
    });
    at.store->put("refused", heard);
  });
  return heard;
}

TEST(RowFaults, AWorkerThatSaysWhatItMustNotIsToldAndRetired) {
  const std::vector<std::byte> body = {std::byte{2}, std::byte{2}, std::byte{9}, std::byte{2}};
  const auto send = [&](ServerMessage head, std::span<const std::byte> bytes = {}) {
    return [=](Link& link) { link.send(head, bytes); };
  };
  EXPECT_THAT(rows_refusal(send({.code = MessageCode::kRowPull}), false),
              HasSubstr("worker 1 sent 'row pull' where 'row hello' was expected"));
  EXPECT_THAT(rows_refusal(send({.code = MessageCode::kRowHello, .count = kMaxElements}), false),
              HasSubstr("it must have 5"));
  EXPECT_THAT(rows_refusal(send({.code = MessageCode::kRowPush, .count = 1}, body)),
              HasSubstr("index 0 + 9; the table has 4 columns"));
  EXPECT_THAT(rows_refusal(send({.code = MessageCode::kRowPush, .count = kMaxElements}, body)),
              HasSubstr("it must have 65536"));
  const std::vector<std::byte> much(most_row_bytes<int32_t>(1, 4) + 1);
  EXPECT_THAT(rows_refusal(send({.code = MessageCode::kRowPush, .count = 1}, much)),
              HasSubstr("with a body of 32 bytes; 1 elements need 31"));
  EXPECT_THAT(rows_refusal(send({.code = MessageCode::kRowClock, .clock = 7})),
              HasSubstr("row clock of worker 1 at clock 7; it is at clock 0"));
  EXPECT_THAT(rows_refusal(send({.code = MessageCode::kRowPull, .count = 3}, body)),
              HasSubstr("bytes after the last row or key"));
  EXPECT_THAT(rows_refusal(send({.code = MessageCode::kRowScan, .count = 1}, body)),
              HasSubstr("'row scan' with a body of 4 bytes"));
  EXPECT_THAT(rows_refusal(send({.code = MessageCode::kRows})),
              HasSubstr("'rows', which is no request to a row table"));
}

TEST(RowFaults, AWorkerOfAnotherTableIsRefused) {
  RowTableOptions wide = rows_options(2);
  wide.width = 5;
  EXPECT_THAT(rows_refusal(
                  [&](Link& link) {
                    const auto body = encode_row_hello(wide, DataType::kInt32);
                    link.send({.code = MessageCode::kRowHello, .count = body.size()}, bytes_of(body));
                  },
                  false),
              HasSubstr("its width is 5, not 4"));
}

TEST(RowFaults, AReadThatWaitsTooLongNamesTheSlowestWorker) {
  RowShard<int32_t> shard(rows_options(2));
  shard.change([](RowTable<int32_t>& table) { table.end_clock(0, 0); });
  EXPECT_THAT(error_of<TimeoutError>(
                  [&] { shard.read(0, 1, milliseconds(20), [](RowTable<int32_t>&, int64_t) { return 0; }); }),
              HasSubstr("the row read of worker 0 at clock 1 waited 20 ms for worker 1, which is still at "
                        "clock 0"));
  try {
    shard.read(1, 0, kLong, [](RowTable<int32_t>&, int64_t) { return 0; });
    FAIL() << "a read after the fault was answered";
  } catch (const TimeoutError& error) {
    EXPECT_THAT(error.what(), HasSubstr("waited 20 ms for worker 1"));
    EXPECT_EQ(error.peer(), 1);
  }
}

// The server's wait ends before the reader's, so the reader's error names the slowest worker.
TEST(RowFaults, APullThatWaitsForASlowWorkerNamesThatWorker) {
  run_ranks(3, [](const ThreadRank& at) {
    ServerRendezvous m = rows_rendezvous(2);
    if (at.rank == 2) {
      m.group.timeout = milliseconds(100);  // on the server, only the reads' wait
      const RowServeReport report = serve_rows(*at.store, m, 0, rows_options(2), DataType::kInt32);
      ASSERT_FALSE(report.lost.empty());
      EXPECT_THAT(report.lost[0].reason, HasSubstr("waited 90 ms for worker 1"));
      return;
    }
    RowClient rows(*at.store, m, at.rank, rows_options(2));
    if (at.rank == 1) {
      at.store->get("late", kLong);
      EXPECT_THAT(pull_fault(rows), HasSubstr("waited 90 ms for worker 1, which is still at clock 0"));
      return;
    }
    rows.clock();
    EXPECT_THAT(pull_fault(rows), HasSubstr("waited 90 ms for worker 1, which is still at clock 0"));
    at.store->put("late", "");
  });
}

// The last goodbye adds up what is held. Nobody is there to get the error, so the report has it.
TEST(RowFaults, AnOverflowAtTheLastGoodbyeIsReported) {
  run_ranks(3, [](const ThreadRank& at) {
    const ServerRendezvous m = rows_rendezvous(2);
    if (at.rank == 2) {
      const RowServeReport report = serve_rows(*at.store, m, 0, rows_options(2), DataType::kInt32);
      ASSERT_EQ(report.lost.size(), 1u);
      EXPECT_THAT(report.lost[0].reason, HasSubstr("element 1 of row 5 would be 2147483647 + 1"));
      return;
    }
    RowClient rows(*at.store, m, at.rank, rows_options(2));
    const std::vector<int32_t> index = {1}, most = {std::numeric_limits<int32_t>::max()};
    if (at.rank == 0) rows.push(std::vector<RowDelta>{{5, index, most}});
    rows.clock();
    if (at.rank == 0) push_one(rows, 5);
    rows.goodbye();
  });
}

// A worker scans a server that answers with a slice. Returns the worker's error.
std::string scan_fault(const std::vector<int64_t>& keys, bool stop) {
  std::string fault;
  run_ranks(2, [&](const ThreadRank& at) {
    const ServerRendezvous m = rows_rendezvous(1);
    if (at.rank == 0) {
      RowClient rows(*at.store, m, 0, rows_options(1));
      fault = error_of<CommError>([&] { rows.scan(0, [](const RowBatch&) {}); });
      at.store->put("scanned", "");
      return;
    }
    announce_server(*at.store, m, 0);
    const auto link = meet_worker(*at.store, m, 0, 0);
    std::vector<uint64_t> hello(kRowHelloCount);
    link->recv_head();
    link->recv_body(writable_bytes_of(hello));
    link->send({.code = MessageCode::kWelcome});
    std::vector<int64_t> from(1);
    link->recv_head();
    link->recv_body(writable_bytes_of(from));
    RowWriter<int32_t> writer(4, true);
    RowBatch batch;
    for (const int64_t key : keys) {
      batch.begin_row(key);
      batch.add(1, 1);
      writer.append(batch.row(batch.size() - 1));
    }
    link->send({.code = MessageCode::kRows, .stop = stop, .count = writer.count()}, writer.body());
    at.store->get("scanned", kLong);
  });
  return fault;
}

TEST(RowFaults, AScanThatIsNotInOrderIsRefused) {
  EXPECT_EQ(scan_fault({-4, 3, std::numeric_limits<int64_t>::max()}, true), "");
  EXPECT_THAT(scan_fault({3, -4}, true), HasSubstr("sent row -4 out of order"));
  EXPECT_THAT(scan_fault({3, 3}, true), HasSubstr("sent row 3 out of order"));
  EXPECT_THAT(scan_fault({3, std::numeric_limits<int64_t>::max()}, false),
              HasSubstr("more rows after the row with the largest key"));
}

TEST(RowFaults, AGoodbyeBeforeAWaitIsRefused) {
  RowShard<int32_t> shard(rows_options(1));
  RowClient rows(shard);
  const uint64_t pull = rows.start_pull(std::vector<int64_t>{1});
  EXPECT_THAT(error_of<ConfigError>([&] { rows.goodbye(); }), HasSubstr("goodbye while a pull is started"));
  RowBatch read;
  rows.wait(pull, read);
  rows.goodbye();
}

TEST(RowFaults, APullThatIsNotAnsweredInTimeNamesTheServer) {
  run_ranks(3, [](const ThreadRank& at) {
    ServerRendezvous m = rows_rendezvous(2);
    if (at.rank == 2) {
      serve_rows(*at.store, m, 0, rows_options(2), DataType::kInt32);
      return;
    }
    if (at.rank == 0) m.group.timeout = milliseconds(5'000);
    RowClient rows(*at.store, m, at.rank, rows_options(2));
    at.store->put("met/" + std::to_string(at.rank), "");
    if (at.rank == 1) {
      at.store->get("late", kLong);
      return rows.goodbye();
    }
    at.store->get("met/1", kLong);
    rows.clock();
    RowBatch read;
    EXPECT_THAT(error_of<TimeoutError>([&] { rows.pull(std::vector<int64_t>{1, 2, 3}, read); }),
                HasSubstr("server 0 (rank 2) failed worker 0 in row pull at clock 1"));
    at.store->put("late", "");
  });
}

TEST(RowFaults, TheMemoryLimitReachesTheWorkers) {
  run_ranks(2, [](const ThreadRank& at) {
    const ServerRendezvous m = rows_rendezvous(1);
    RowTableOptions options = rows_options(1);
    options.memory_limit = 1000;
    if (at.rank == 1) {
      const RowServeReport report = serve_rows(*at.store, m, 0, options, DataType::kInt32);
      EXPECT_EQ(report.lost.size(), 1u);
      EXPECT_GT(report.stats.peak_bytes, 1000u);
      return;
    }
    RowClient rows(*at.store, m, 0, options);
    const std::string fault = error_of([&] {
      for (int64_t key = 0; key < 100; ++key) push_one(rows, key);
      throw CommError(pull_fault(rows));
    });
    EXPECT_THAT(fault, AllOf(HasSubstr("server 0 (rank 1) failed worker 0 in row pu"),
                             HasSubstr("more than its limit of 1000")));
  });
}

TEST(RowFaults, AHostThatEndsEarlyEndsTheWaitsOfTheOtherRanks) {
  run_ranks(2, [](const ThreadRank& at) {
    auto host = std::make_unique<RowHost>(*at.store, rows_rendezvous(2), at.rank, rows_options(2));
    push_one(host->rows(), 5);
    if (at.rank == 1) {
      at.store->get("clock", kLong);
      host.reset();  // without finish()
      at.store->put("gone", "");
      return;
    }
    host->rows().clock();
    at.store->put("clock", "");
    at.store->get("gone", kLong);
    EXPECT_THAT(pull_fault(host->rows()),
                testing::AnyOf(HasSubstr("worker 1 is lost"), HasSubstr("server 1")));
  });
}

TEST(RowFaults, AHostWhosePeersDoNotComeNamesThem) {
  run_ranks(1, [](const ThreadRank& at) {
    ServerRendezvous m = rows_rendezvous(2);
    m.server_timeout = m.group.timeout = milliseconds(50);
    m.idle_timeout = milliseconds(600'000);  // the threads of the host end without it
    EXPECT_THAT(error_of([&] { RowHost(*at.store, m, 0, rows_options(2)); }),
                AllOf(HasSubstr("server 1 (rank 1) is not there"), HasSubstr("every rank must start its")));
  });
}

TEST(RowFaults, OptionsThatCannotBeAreRefusedBeforeAnythingIsServed) {
  run_ranks(1, [](const ThreadRank& at) {
    const ServerRendezvous m = rows_rendezvous(2);
    EXPECT_THROW(serve_rows(*at.store, m, 0, rows_options(3), DataType::kInt32), ConfigError);
    EXPECT_THROW(serve_rows(*at.store, m, 0, rows_options(2), DataType::kBf16), ConfigError);
    EXPECT_THROW(RowClient(*at.store, m, 0, rows_options(3)), ConfigError);
    EXPECT_THROW(RowHost(*at.store, m, 0, rows_options(3)), ConfigError);
    for (const int rank : {-1, 2})
      EXPECT_THAT(error_of<ConfigError>([&] { RowHost(*at.store, m, rank, rows_options(2)); }),
                  HasSubstr("the job has the workers 0 … 1"));
    EXPECT_FALSE(at.store->try_get("server/rows/rows/0/server/0"));  // no shard was announced
  });
}

}  // namespace
}  // namespace starling
