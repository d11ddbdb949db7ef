#include "starling/run/commands.h"

#include <fmt/format.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "starling/base/error.h"
#include "starling/data/factory.h"
#include "starling/data/inspect.h"
#include "starling/data/make_data.h"
#include "starling/launch/fault.h"
#include "starling/nn/model.h"
#include "starling/run/bench_layers.h"
#include "starling/run/bench_scaling.h"
#include "starling/run/data_serve.h"
#include "starling/run/doctor.h"
#include "starling/run/factorize.h"
#include "starling/run/plan_memory.h"
#include "starling/run/rank_program.h"
#include "starling/run/strategies.h"
#include "starling/run/training.h"
#include "starling/run/verify.h"
#include "starling/run/zoo_show.h"
#include "starling/telemetry/output.h"
#include "starling/train/evaluate.h"

namespace starling {
namespace {

OutputOptions output_of(const CommandOptions& options) {
  return {options.json, options.verbosity, options.color};
}

void print_line(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

// Carries `work` out on every rank of the job: here, if this process is a rank or the job has only one, else in
// spec.train.ranks processes that the launcher starts.
int on_every_rank(const RunSpec& spec, const CommandOptions& options, bool keep,
                  const std::function<int(Session&)>& work) {
  check_codecs(spec);  // before any rank starts: one message
  RankProgram program;
  program.argv = options.argv;
  program.output = output_of(options);
  program.keep = keep;
  return run_rank_program(spec, program, work);
}

struct Workload {
  DataSets data;
  SyncedModelFactory factory;
};

Workload workload(const RunSpec& spec) {
  Workload load;
  load.data = open_data(spec.data, spec.train.seed, spec.model.tokens, security_named(spec.comm.security));
  load.factory = zoo_factory(spec, load.data.train->info());
  return load;
}

std::string table_of(const VerifyReport& report) {
  std::string text = fmt::format("{:<44} {:>12} {:>6}\n", "parameter", "deviation", "step");
  for (const Deviation& d : report.deviations)
    text += fmt::format("{:<44} {:>12.2e} {:>6}\n", d.tensor, d.relative, d.step);
  return text + fmt::format(
                    "{}: largest deviation {:.2e}, tolerance {:.0e} (norm of the difference over norm of the "
                    "update)",
                    report.passed() ? "verified" : "NOT equal to one process",
                    report.deviations.empty() ? 0.0 : report.deviations.front().relative, report.tolerance);
}

std::string json_of(const VerifyReport& report) {
  nlohmann::json tensors = nlohmann::json::object();
  for (const Deviation& d : report.deviations)
    tensors[d.tensor] = {{"relative", d.relative}, {"step", d.step}};
  const double largest = report.deviations.empty() ? 0.0 : report.deviations.front().relative;
  return nlohmann::json{{"event", "verify"},
                        {"passed", report.passed()},
                        {"largest", largest},
                        {"tolerance", report.tolerance},
                        {"tensors", tensors}}
      .dump();
}

}  // namespace

int train_command(const RunSpec& spec, const CommandOptions& options) {
  if (options.dry_run) {
    const Workload load = workload(spec);
    const Model model = load.factory(ModelHooks{}).operator()();
    int64_t params = 0;
    for (const auto& p : model.module->parameters()) params += p.numel();
    print_line(fmt::format(
        "would train {} ({} parameters) on {} ({} samples) with {} ranks, {} samples a step", spec.model.name,
        params, spec.data.source, load.data.train->size(), spec.train.ranks, spec.train.global_batch));
    return 0;
  }
  return on_every_rank(spec, options, /*keep=*/true, [](Session& session) {
    if (session.server() >= 0) return serve(session.spec(), session.server(), session.surroundings());
    const Workload load = workload(session.spec());
    run_training(session.spec(), load.factory, load.data, session.surroundings());
    return 0;
  });
}

int eval_command(const RunSpec& spec, const CommandOptions& options) {
  CommandOptions shown = options;
  shown.verbosity = std::max(0, options.verbosity);  // the evaluation is the result: -q does not hide it
  return on_every_rank(spec, shown, /*keep=*/false, [](Session& session) {
    const Workload load = workload(session.spec());
    if (!load.data.test) {
      throw ConfigError("data.source", session.spec().data.source +
                                           " has no test part; name one by --set data.test_source=…");
    }
    Replica replica = make_replica(load.factory(ModelHooks{}), at::kFloat, session.spec().train.seed);
    const int64_t batch = session.spec().train.eval_batch > 0 ? session.spec().train.eval_batch : 64;
    GroupTally tally(session.group());
    session.sink().emit(evaluate(replica, *load.data.test, batch, tally, 0));
    session.sink().flush();
    return 0;
  });
}

int verify_command(const RunSpec& spec, const CommandOptions& options) {
  if (spec.exchange.codec != "none" || spec.exchange.pull_codec != "none" ||
      spec.pipeline.activations != "none") {
    throw ConfigError("exchange.codec",
                      "coded gradients, weights and activations make another update than one process does: "
                      "verify without --codec, --pull-codec and pipeline.activations");
  }
  RunSpec exact = spec;
  exact.train.precision = Precision::kFp64;  // in fp32 the order of summation alone parts two right runs
  return on_every_rank(exact, options, /*keep=*/false, [&options](Session& session) {
    if (session.server() >= 0) return serve(session.spec(), session.server(), session.surroundings());
    const Workload load = workload(session.spec());
    const VerifyReport report = verify(session.spec(), load.factory, load.data, session.surroundings());
    if (session.group().rank() != 0) return 0;
    print_line(options.json ? json_of(report) : table_of(report));
    return report.passed() ? 0 : 1;
  });
}

int doctor_command(const CommandOptions& options) {
  const DoctorReport report = examine();
  const bool color = options.color == "always" || (options.color == "auto" && ::isatty(1) == 1);
  const int columns = FdOutput(1).columns();
  print_line(options.json ? to_json(report) : to_text(report, color, columns > 0 ? columns : 80));
  return 0;
}

int zoo_ls_command(const CommandOptions& options) {
  for (const ZooEntry& entry : zoo()) {
    print_line(options.json
                   ? nlohmann::json{{"event", "model"}, {"name", entry.name}, {"what", entry.what}}.dump()
                   : fmt::format("{:<10} {}", entry.name, entry.what));
  }
  return 0;
}

int strategies_command(const CommandOptions& options) {
  for (const StrategyEntry& entry : strategies()) {
    print_line(options.json ? nlohmann::json{{"event", "strategy"},
                                             {"name", entry.name},
                                             {"what", entry.what},
                                             {"fingerprint", entry.fingerprint}}
                                  .dump()
                            : fmt::format("{:<18} {}\n{:<18} fingerprint: {}", entry.name, entry.what, "",
                                          entry.fingerprint));
  }
  return 0;
}

int zoo_show_command(const ModelSpec& spec, const ZooShowOptions& show, const CommandOptions& options) {
  print_line(zoo_show(spec, show, options.json));
  return 0;
}

int factorize_command(const RunSpec& spec, const FactorizeSpec& what, const CommandOptions& options) {
  check_factorize(spec, what);
  if (options.dry_run) {
    print_line(fmt::format("would factorise {} with {} factors on {} ranks",
                           what.ratings.empty() ? "made-up entries" : what.ratings, what.factors,
                           spec.train.ranks));
    return 0;
  }
  return on_every_rank(spec, options, /*keep=*/false,
                       [&](Session& session) { return factorize(what, options, session); });
}

int bench_scaling_command(const RunSpec& spec, const ScalingSpec& scaling, const CommandOptions& options) {
  return bench_scaling(spec, scaling, options);
}

int plan_memory_command(const Config& config, double params, const CommandOptions& options) {
  const MemoryPlan plan = plan_memory(config, params);
  print_line(options.json ? to_json(plan) : to_text(plan));
  return 0;
}

int bench_layers_command(double seconds, const CommandOptions& options) {
  if (options.dry_run) {
    print_line(fmt::format("would time convolutions and fully connected layers for {:g} s", seconds));
    return 0;
  }
  const std::vector<LayerTiming> timings = bench_layers(seconds);
  print_line(options.json ? to_json(timings) : to_text(timings));
  return 0;
}

int data_make_command(const RunSpec& spec, const std::string& out_dir, const CommandOptions& options) {
  if (options.dry_run) {
    print_line(fmt::format("would write {} into {}", spec.data.source, out_dir));
    return 0;
  }
  make_data(spec.data, spec.train.seed, out_dir);
  if (options.verbosity >= 0) print_line(fmt::format("wrote {} into {}", spec.data.source, out_dir));
  return 0;
}

int data_serve_command(const RunSpec& spec, const DataServeOptions& serve, const CommandOptions& options) {
  return serve_data(spec, serve, options);
}

int data_inspect_command(const RunSpec& spec, const CommandOptions& options) {
  const DataReport report =
      inspect_data(spec.data, spec.train.seed, spec.model.tokens, security_named(spec.comm.security));
  print_line(options.json ? to_json(report) : to_text(report));
  return 0;
}

}  // namespace starling
