// The commands about communication: bench comm and doctor --recorder.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "starling/base/error.h"
#include "starling/comm/recorder/flight_recorder_report.h"
#include "starling/commands/bench_comm.h"
#include "starling/commands/commands.h"
#include "starling/run/folder/tuning_file.h"
#include "starling/run/message/dry_run.h"
#include "starling/run/rank_program.h"
#include "starling/telemetry/output.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

// Returns the number of hosts as groups see them: ranks that do not share memory count as being on different
// hosts.
int hosts_of(Session& session) {
  Group& group = session.group();
  int64_t leader = group.local_ranks().front() == group.rank() ? 1 : 0;
  all_reduce(group, &leader, 1, DataType::kInt64, ReduceOp::kSum);
  return static_cast<int>(leader);
}

int bench_in_session(Session& session, const CommBenchOptions& bench, const CommandOptions& options) {
  const int hosts = hosts_of(session), ranks = session.group().size();
  const std::string link = session.link_name();
  int made = 0;
  const GroupMaker make = [&](Algorithm algorithm) {
    return session.make_group_by(algorithm, fmt::format("bench {}", made++));
  };
  const bool mpi = session.by_mpi();
  if (mpi && bench.tune)
    throw ConfigError("--tune",
                      "MPI selects its own algorithms, so --tune has no effect with comm.engine=mpi");
  const auto timings = bench_comm(make, {bench.smallest, bench.largest, bench.seconds, mpi});
  if (session.group().rank() != 0) return 0;
  print_line(options.json ? to_json(timings, ranks, hosts, link) : to_text(timings, ranks, hosts, link));
  uint64_t errors = 0;
  for (const CommTiming& timing : timings) errors += timing.errors;
  if (bench.tune && errors == 0) {
    const std::filesystem::path file = tuning_file();
    if (file.empty())
      throw ConfigError("--tune", "there is no folder for the result: set HOME or XDG_CACHE_HOME");
    Tuning tuning = read_tuning(file);
    tune(tuning, timings, ranks, hosts, link);
    write_tuning(file, tuning);
    std::fputs(fmt::format("starling: {}: {} entries, used by runs with --collective auto\n", file.string(),
                           tuning.entries().size())
                   .c_str(),
               stderr);
  }
  return errors == 0 ? 0 : 1;
}

std::string json_of(const std::vector<Recording>& recordings) {
  nlohmann::ordered_json out = {{"event", "recorder"}, {"waits", who_waits(recordings)}};
  for (const Recording& recording : recordings) {
    nlohmann::ordered_json operations = nlohmann::json::array();
    for (const Record& r : recording.records) {
      operations.push_back({{"what", describe(r)},
                            {"group", recording.groups[r.group]},
                            {"began_ns", r.began_ns},
                            {"ended_ns", r.ended_ns},
                            {"failed", r.state == RecordState::kFailed}});
    }
    out["ranks"].push_back({{"rank", recording.rank},
                            {"host", recording.host},
                            {"pid", recording.pid},
                            {"operations", std::move(operations)}});
  }
  return out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

int bench_comm_command(const RunSpec& spec, const CommBenchOptions& bench, const CommandOptions& options) {
  if (bench.smallest < 64 || bench.largest < bench.smallest)
    throw ConfigError("--smallest",
                      fmt::format("{} to {}: give two sizes of 64 bytes or more, the smaller first",
                                  bench.smallest, bench.largest));
  if (options.dry_run) {
    print_launch_warnings(spec, {options.json, options.verbosity, options.color});
    print_dry_run(
        fmt::format("would measure the collectives of {} with {} to {} bytes for about {:g} s",
                    ranks_text(spec.train.ranks), with_thousands(static_cast<int64_t>(bench.smallest)),
                    with_thousands(static_cast<int64_t>(bench.largest)), bench.seconds),
        options.json);
    return 0;
  }
  RankProgram program;
  program.argv = options.argv;
  program.forks = true;
  program.output = {options.json, options.verbosity, options.color};
  program.keep = false;
  return run_rank_program(spec, program,
                          [&](Session& session) { return bench_in_session(session, bench, options); });
}

int doctor_recorder_command(const std::string& folder, const CommandOptions& options) {
  // `folder` is the run's folder or the recorders' folder inside it.
  std::vector<Recording> recordings = read_recordings(recorder_folder(folder));
  if (recordings.empty()) recordings = read_recordings(folder);
  if (recordings.empty())
    throw ConfigError("--recorder", fmt::format("{} holds no recordings; give the folder of a run of several "
                                                "ranks (--run-dir)",
                                                folder));
  print_line(options.json ? json_of(recordings) : printable(recorder_report(recordings, 10)));
  return 0;
}

}  // namespace starling
