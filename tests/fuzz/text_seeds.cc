// The first inputs of the fuzzers of lines and messages, made by our writers.
#include <nlohmann/json.hpp>

#include "starling/base/error.h"
#include "starling/comm/choice/tuning.h"
#include "starling/comm/host/numa.h"
#include "starling/comm/network/failure_notes.h"
#include "starling/launch/fault.h"
#include "starling/launch/host_lines.h"
#include "starling/net/ucx/ucx_offer.h"
#include "starling/report/timeline.h"
#include "starling/server/protocol.h"
#include "starling/server/row_message.h"
#include "starling/spec/config.h"
#include "starling/spec/print.h"
#include "starling/telemetry/to_json.h"
#include "starling/testing/test_identity.h"
#include "tests/fuzz/corpus.h"

namespace starling {
namespace {

void config_seeds(Corpus corpus) {
  corpus.add(bytes_of({0}) +
             "[model]\nname = \"mlp\"\nwidths = [784, 64, 10]\n\n[optimizer]\nlr = 5e-2  # rate\n"
             "[train]\nranks = 2\nepochs = 1.5\n[runs.fast]\noptimizer.lr = 0.1\n");
  corpus.add(bytes_of({0}) +
             "data.source = 'digits'\ndata.augment = true\n[runs.a]\n[runs.b.train]\nsteps = 3\n");
  for (const char* assignment :
       {"optimizer.lr=0.1", "model.widths=[784,10]", "data.source=\"digits\"", "train.precision=bf16"})
    corpus.add(bytes_of({1}) + assignment);
  corpus.add(bytes_of({0}) + "{ó");  // found
  corpus.add(bytes_of({2}) + spec_to_json(RunSpec{}).dump());
  corpus.add(bytes_of({2}) + R"({"optimizer":{"lr":0.5,"name":"adam"},"train":{"ranks":4}})");
}

void server_seeds(Corpus corpus) {
  for (const ServerMessage& message :
       {ServerMessage{.code = MessageCode::kHello, .count = 7, .bytes = 56},
        ServerMessage{.code = MessageCode::kPush,
                      .stop = true,
                      .clock = 3,
                      .count = 9,
                      .bytes = 36,
                      .rate = 0.1,
                      .loss = 2.3,
                      .extra = 8},
        ServerMessage{
            .code = MessageCode::kParameters, .lost = 2, .clock = 3, .count = 9, .bytes = 36, .loss = 2.3},
        ServerMessage{.code = MessageCode::kSnapshot, .want = SnapshotWant::kWhole}}) {
    const HeadBytes head = encode(message);
    corpus.add(bytes_of({0}) + text_of(std::vector<std::byte>(head.begin(), head.end())));
  }
  const auto add = [&](int kind, const auto& body) {
    corpus.add(bytes_of({kind}) + std::string(reinterpret_cast<const char*>(body.data()), body.size() * 8));
  };
  add(1, encode_hello({4, {{2, 3}, {1, 5}}, {0, 1}}));
  ServerTableStats stats;
  stats.reads = 5;
  stats.pushes = {3, 4};
  stats.lost = {1};
  stats.staleness[2] = 7;
  add(2, encode_stats(stats));
  add(3, encode_events({{ServerTableAction::kPush, 1, 2, 3}, {ServerTableAction::kRetire, 0, 5, 1}}));
}

// Two rows of a table with 10 columns: a sparse and a dense one.
template <typename T>
std::string rows_body() {
  BasicRowBatch<T> batch;
  batch.begin_row(-5);
  batch.add(7, 100);
  batch.begin_row(int64_t{1} << 40);
  for (int32_t i = 0; i < 10; ++i) batch.add(i, static_cast<T>(3 - 2 * i));
  RowWriter<T> writer(10, true);
  for (size_t i = 0; i < batch.size(); ++i) writer.append(batch.row(i));
  return text_of(std::vector<std::byte>(writer.body().begin(), writer.body().end()));
}

void rows_seeds(Corpus corpus) {
  corpus.add(bytes_of({0, 2, 9, 0}) + rows_body<int32_t>());  // kind, number of rows, width − 1
  corpus.add(bytes_of({1, 2, 9, 0}) + rows_body<int64_t>());
  corpus.add(bytes_of({2, 2, 9, 0}) + rows_body<float>());
  corpus.add(bytes_of({3, 2, 9, 0}) + rows_body<double>());
  const std::vector<int64_t> keys = {3, -200, int64_t{1} << 50};
  corpus.add(bytes_of({4, 3, 0, 0}) + text_of(encode_row_keys(keys)));
  RowTableOptions options;
  options.width = 7;
  const std::vector<uint64_t> hello = encode_row_hello(options, DataType::kInt32);
  corpus.add(bytes_of({5}) + std::string(reinterpret_cast<const char*>(hello.data()), 8 * hello.size()));
}

void agent_seeds(Corpus corpus) {
  corpus.add("Welcome to node-b\n" + to_line(HostHello{kHostProtocol, "1.0", "id", "node-b"}) +
             "\nlistening 29500 10.0.0.1:5 [fd00::1]:7\nreached 10.0.0.1:5\nout 3 step 1\nstep 3 17\nexit 3 "
             "0\nrefuse 5 no\n");
  HostJob job{"job", test_identity("fuzz").key};
  job.argv = {"train", "-n", "2"};
  job.environment = {"A=b"};
  job.world = 2;
  corpus.add(to_line(job) + "\nreach 10.0.0.1:5\ngo 29500 10.0.0.1:5\nsignal 15 0\nalive\n");
  corpus.add(to_line(HostHello{}) + "\nrefuse 999 no\n" + R"({"message":"x","peer":3e42})");  // found
  corpus.add(stuck_line(1, {0, "rank 0 does not answer"}));
  corpus.add(fault_line(3, CommError("rank 1 does not answer", 1)) +
             fault_line(2, Error(ErrorCode::kNumeric, "the loss is nan")));
}

void tuning_seeds(Corpus corpus) {
  Tuning tuning;
  tuning.set({CollectiveKind::kAllReduce, 1 << 20, 4, 2, "tcp", Algorithm::kAuto, 512.3});
  corpus.add(tuning.text());
  corpus.add(
      "# made by hand\n\nall-reduce 1048576 4 2 tcp direct 512.3\nbroadcast 64 2 2 loopback auto 1e3\n");
  corpus.add("all-gather 4096 4 2 1e+08bit/s,0.01s,0 ring 12\n");
}

void event_seeds(Corpus corpus) {
  RunStarted start;
  start.model = "mlp";
  start.ranks = 2;
  start.global_batch = 16;
  start.choices = {{"gemm", "mkl"}};
  StepDone step;
  step.step = 1;
  step.loss = 2.3;
  step.step_s = 0.01;
  RunResult result;
  result.model = "mlp";
  result.steps = 1;
  result.strategy = {{"step_bytes", 1e6}};
  result.peak_rss_mb = {100, 101};
  result.wall_s = 2;
  result.rank_times = {{0, 1, 0.5, 0.1}, {1, 1.4, 0.1, 0.1}};
  corpus.add(to_json(start) + "\n" + to_json(step) + "\n" + to_json(EvalDone{1, 2.1, 0.5, 100}) + "\n" +
             to_json(result) + "\n");
  corpus.add(R"({"event":1})"
             "\n"
             R"({"event":"step","step":1e300})"
             "\n"
             R"({"event":"run","choices":[1]})");  // found
  corpus.add(to_json(CheckpointDone{}) + "\n" + to_json(Message{Severity::kWarning, 1, "slow"}) + "\n" +
             R"({"event":"error","code":"comm","message":"gone"})" + "\n");
}

// Inputs of ucx_fuzz.cc: security, then sizes, bytes and damages of each message; or 3 and an offer.
void ucx_seeds(Corpus corpus) {
  UcxOffer offer{.connection = 3, .portion = 8192, .nonce = {}, .address = "address of a worker"};
  for (const uint32_t portion : {8192U, 0U, 1U}) {
    offer.portion = portion;
    corpus.add(bytes_of({3}) + encode_offer(offer));
  }
  const std::string none = bytes_of({4}) + "head" + bytes_of({6, 0}) + "bodies" + bytes_of({1, 0, 9, 0});
  for (const int security : {0, 1, 2}) {
    corpus.add(bytes_of({security}) + none + bytes_of({0, 4, 0, 0}) + none + bytes_of({0, 4, 0, 0}));
    corpus.add(bytes_of({security}) + none + bytes_of({1, 40, 0, 3}));  // flips a bit of the first part
    corpus.add(bytes_of({security}) + bytes_of({0, 0, 0, 0, 255, 255, 0, 9, 0}) +
               bytes_of({0, 4, 1, 7, 0, 1, 0}));
  }
}

std::string file_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

void hosts_seeds(Corpus corpus) {
  corpus.add(bytes_of({0}) + "node-a:4,me@10.0.0.1:2,[fe80::1]:8");
  corpus.add(bytes_of({1}) + "# hosts\nnode-a slots=4\nnode-b slots=2 max_slots=8\nnode-c:3\n\n");
  corpus.add(bytes_of({2}) + "gpu[07-12,20],login");
  corpus.add(bytes_of({3}) + "2(x3),1,16(x2)");
  corpus.add(bytes_of({4}) +
             "STARLING_STORE=127.0.0.1:1\nRANK=1\nWORLD_SIZE=4\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=2\n"
             "STARLING_KEY_FD=4\nSTARLING_JOB_ID=7\nOMP_NUM_THREADS=4,2\nCOLUMNS=80\n");
  corpus.add(bytes_of({4}) +
             "RANK=0\nWORLD_SIZE=2\nMASTER_ADDR=node-a\nMASTER_PORT=29500\nTERM=dumb\nCI=1\n");
  corpus.add(bytes_of({4}) + "PMI_RANK=1\nPMI_SIZE=2\nMPI_LOCALRANKID=0\nMPI_LOCALNRANKS=1\n");
  corpus.add(bytes_of({4}) +
             "SLURM_PROCID=1\nSLURM_STEP_NUM_TASKS=4\nSLURM_STEP_ID=0\nSLURM_LOCALID=1\n"
             "SLURM_STEP_TASKS_PER_NODE=2(x2)\nSLURM_NODEID=0\nSLURM_STEP_NODELIST=gpu[1-2]\n"
             "SLURM_JOB_ID=123\n");
}

void peers_seeds(Corpus corpus) {
  corpus.add(bytes_of({0}) + failure_text({"rank 1 does not answer\nfor 4 s", 1, true}));
  corpus.add(bytes_of({0}) + failure_text({"closed", -1, false}));
  corpus.add(bytes_of({1}) + cpu_list_text({0, 1, 2, 3, 8, 10, 11}));
}

void schedule_seeds(Corpus corpus) {
  corpus.add(
      "# two ranks\nschedule own\nranks 2\nmicro-batches 2\n"
      "rank 0: F0 SA0 F1 SA1\n  RG0 B0 RG1 B1\nrank 1: RA0 F0 B0 SG0 RA1 F1 B1 SG1\n");
  corpus.add("schedule one\nranks 1\nchunks 2\nmicro-batches 1\nrank 0: F0.0 F0.1 B0.1 B0.0\n");
}

void timeline_seeds(const std::filesystem::path& root) {
  Corpus corpus(root, "timeline");
  const std::string path = (root / "timeline.json").string();
  StepTimeline timeline{.schedule = "gpipe", .ranks = 2, .chunks = 1, .micro_batches = 1, .actions = {}};
  const auto add = [&](int rank, ActionKind kind, double begin) {
    timeline.actions.push_back({rank, {.kind = kind}, begin, begin + 0.001});
  };
  add(0, ActionKind::kForward, 0);
  add(0, ActionKind::kSendActivation, 0.001);
  add(0, ActionKind::kRecvGradient, 0.004);
  add(0, ActionKind::kBackward, 0.005);
  add(1, ActionKind::kRecvActivation, 0.001);
  add(1, ActionKind::kForward, 0.002);
  add(1, ActionKind::kBackward, 0.003);
  add(1, ActionKind::kSendGradient, 0.004);
  write_timeline(path, timeline);
  corpus.add(file_text(path));
  timeline = {.schedule = "one", .ranks = 1, .chunks = 1, .micro_batches = 1, .actions = {}};
  add(0, ActionKind::kForward, 0);
  add(0, ActionKind::kBackward, 0.5);
  write_timeline(path, timeline);
  corpus.add(file_text(path));
  std::filesystem::remove(path);
}

void graph_seeds(Corpus corpus) {
  corpus.add(
      R"({"groups":[{"name":"stem","kind":"conv","forward_s":0.002,"backward_s":0.004,"output_bytes":4e6},)"
      R"({"name":"left","forward_s":0.001,"inputs":["stem"]}],)"
      R"("devices":[{"name":"a","speed":1,"memory_bytes":1e9},)"
      R"({"name":"b","speed":0.5}],"link":{"latency_s":1e-4,"bytes_per_s":1e9}})");
  corpus.add(R"({"groups":[{"name":"a"},{"name":"b","inputs":["a","a"]}]})");
}

void ratings_seeds(Corpus corpus) {
  corpus.add("userId,movieId,rating,timestamp\n1,31,2.5,1260759144\n2,10,4,835355493\n");
  corpus.add("0 1 5\n3 2 1e-1\n\n7\t0\t-3\n");
  corpus.add("1::1193::5::978300760\n1::661::3::978302109\n");
}

void text_seeds(const std::filesystem::path& root) {
  config_seeds({root, "config"});
  server_seeds({root, "server"});
  rows_seeds({root, "rows"});
  agent_seeds({root, "agent"});
  hosts_seeds({root, "hosts"});
  peers_seeds({root, "peers"});
  schedule_seeds({root, "schedule"});
  timeline_seeds(root);
  graph_seeds({root, "graph"});
  ratings_seeds({root, "ratings"});
  tuning_seeds({root, "tuning"});
  event_seeds({root, "events"});
  ucx_seeds({root, "ucx"});
}

}  // namespace starling
