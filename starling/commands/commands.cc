#include "starling/commands/commands.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "starling/base/error.h"
#include "starling/base/suggest.h"
#include "starling/commands/autoencoder_command.h"
#include "starling/commands/bench_layers.h"
#include "starling/commands/bench_scaling.h"
#include "starling/commands/data_serve.h"
#include "starling/commands/doctor.h"
#include "starling/commands/end_of_list.h"
#include "starling/commands/factorize_command.h"
#include "starling/commands/lasso_command.h"
#include "starling/commands/lbfgs_command.h"
#include "starling/commands/mcmc_command.h"
#include "starling/commands/place_command.h"
#include "starling/commands/place_policy.h"
#include "starling/commands/plan_memory.h"
#include "starling/commands/sample.h"
#include "starling/commands/tested_data.h"
#include "starling/commands/topics_command.h"
#include "starling/commands/verify.h"
#include "starling/commands/zoo_show.h"
#include "starling/data/formats/inspect.h"
#include "starling/data/generated/make_data.h"
#include "starling/data/source_factory.h"
#include "starling/launch/environment.h"
#include "starling/launch/fault.h"
#include "starling/nn/model.h"
#include "starling/run/message/dry_run.h"
#include "starling/run/rank_program.h"
#include "starling/run/strategies.h"
#include "starling/run/training.h"
#include "starling/spec/strategy_table.h"
#include "starling/telemetry/output.h"
#include "starling/telemetry/text_style.h"
#include "starling/train/evaluate.h"

namespace starling {
namespace {

constexpr int kTextColumns = 100;

OutputOptions output_of(const CommandOptions& options) {
  return {options.json, options.verbosity, options.color};
}

// Removes the backticks around names, which the manual needs.
std::string without_backticks(std::string_view text) {
  std::string plain(text);
  std::erase(plain, '`');
  return plain;
}

// Prints what the command would do, and the warning of a launcher that would start the ranks. Returns the
// exit status.
int planned(const RunSpec& spec, const CommandOptions& options, const std::string& text) {
  print_launch_warnings(spec, output_of(options));
  print_dry_run(text, options.json);
  return 0;
}

// Runs `work` on every rank and server of the job. If this process is a rank, or the job has only one
// process, `work` runs here. Otherwise it runs in the processes that the launcher starts.
int on_every_rank(const RunSpec& spec, const CommandOptions& options, bool keep,
                  const std::function<int(Session&)>& work) {
  check_codecs(spec);  // before any rank starts, so that only one message appears
  RankProgram program;
  program.argv = options.argv;
  program.forks = true;
  program.output = output_of(options);
  program.keep = keep;
  return run_rank_program(spec, program, work);
}

// Returns the word by which the row is asked for: "gossip", "mesh" of "--mesh stage=S", or "lbfgs" of
// "starling lbfgs".
std::string word_of(const StrategyRow& row) {
  std::string_view word = row.name;
  for (const std::string_view prefix : {"starling ", "--"}) {
    if (word.starts_with(prefix)) word.remove_prefix(prefix.size());
  }
  return std::string(word.substr(0, word.find(' ')));
}

[[noreturn]] void refuse_strategy(const std::string& name) {
  std::vector<std::string> words;
  for (const StrategyRow& row : strategy_rows()) {
    if (words.empty() || words.back() != word_of(row)) words.push_back(word_of(row));
  }
  const std::string near = nearest(name, words);
  throw ConfigError(name, fmt::format("unknown strategy{} The strategies are {}",
                                      near.empty() ? "." : fmt::format(": did you mean {}?", near),
                                      fmt::join(words, ", ")));
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

// Like workload(). Errors: ConfigError if the data has no test part.
Workload tested_workload(const RunSpec& spec) {
  Workload load;
  load.data = open_tested_data(spec);
  load.factory = zoo_factory(spec, load.data.train->info());
  return load;
}

// Returns "lenet5 (61,706 parameters)". Makes the model to count them.
std::string model_text(const RunSpec& spec, const Workload& load) {
  const Model model = load.factory(ModelHooks{}).operator()();
  int64_t params = 0;
  for (const auto& p : model.module->parameters()) params += p.numel();
  return fmt::format("{} ({} parameters)", spec.model.name, with_thousands(params));
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

// Returns the line that ends `eval --json`.
std::string result_of(const RunSpec& spec, const EvalDone& done) {
  nlohmann::ordered_json line = {{"event", "result"},          {"model", spec.model.name},
                                 {"weights", spec.model.init}, {"steps", done.step},
                                 {"samples", done.samples},    {"test_loss", done.loss}};
  if (done.accuracy >= 0) line["test_accuracy"] = done.accuracy;
  return line.dump();
}

std::string json_of(const VerifyReport& report) {
  nlohmann::json tensors = nlohmann::json::object();
  for (const Deviation& d : report.deviations)
    tensors[d.tensor] = {{"relative", d.relative}, {"step", d.step}};
  const double largest = report.deviations.empty() ? 0.0 : report.deviations.front().relative;
  return nlohmann::json{{"event", "result"},
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
    return planned(
        spec, options,
        fmt::format("would train {} on {} ({} samples) with {}, {} samples a step", model_text(spec, load),
                    spec.data.source, with_thousands(load.data.train->size()), processes_text(spec),
                    with_thousands(spec.train.global_batch)));
  }
  return on_every_rank(spec, options, /*keep=*/true, [](Session& session) {
    if (session.server() >= 0) return serve(session.spec(), session.server(), session.run_environment());
    const Workload load = workload(session.spec());
    const RunResult result = run_training(session.spec(), load.factory, load.data, session.run_environment(),
                                          zoo_options(load.data.train->info()));
    return result.interrupted ? interrupted_status(session.environment(), result) : 0;
  });
}

int eval_command(const RunSpec& spec, int64_t step, const CommandOptions& options) {
  CommandOptions shown = options;
  shown.verbosity = std::max(0, options.verbosity);  // -q does not hide the evaluation, which is the result
  if (options.dry_run) {
    const Workload load = tested_workload(spec);
    return planned(
        spec, options,
        fmt::format("would evaluate {} on {} ({} test samples) with {}", model_text(spec, load),
                    spec.data.source, with_thousands(load.data.test->size()), ranks_text(spec.train.ranks)));
  }
  return on_every_rank(spec, shown, /*keep=*/false, [&options, step](Session& session) {
    const RunSpec& own = session.spec();
    const Workload load = tested_workload(own);
    const at::ScalarType type = own.train.precision == Precision::kFp64 ? at::kDouble : at::kFloat;
    Replica replica = make_replica(load.factory(ModelHooks{}), type, own.train.seed);
    GroupGather rank_gather(session.group());
    const EvalDone done = evaluate(replica, *load.data.test, evaluation_batch(own),
                                   zoo_options(load.data.test->info()).metrics(), rank_gather, step,
                                   [&](int64_t samples, int64_t of) {
                                     session.sink().show_progress({step, samples, of});
                                     return true;
                                   });
    session.sink().emit(done);
    session.sink().flush();
    if (options.json && session.group().rank() == 0) print_line(result_of(own, done));
    if (!std::isfinite(done.loss))
      throw Error(
          ErrorCode::kNumeric,
          "the test loss is not finite; give the weights of a run that has not diverged, and test data "
          "whose numbers are finite");
    return 0;
  });
}

int sample_command(const RunSpec& spec, const std::string& vocabulary, const SampleOptions& sample,
                   const CommandOptions& options) {
  const std::string text = continued_text(spec, vocabulary, sample);
  if (options.json) {
    print_line(nlohmann::ordered_json{
        {"event", "result"}, {"model", spec.model.name}, {"prompt", sample.prompt}, {"text", text}}
                   .dump());
  } else {
    print_line(sample.prompt + text);
  }
  return 0;
}

int verify_command(const RunSpec& spec, const CommandOptions& options) {
  if (spec.exchange.codec != "none" || spec.exchange.pull_codec != "none" ||
      spec.pipeline.activations != "none") {
    throw ConfigError(
        "exchange.codec",
        "with compressed gradients, weights or activations the update differs from that of one process: "
        "verify without --codec, --pull-codec and pipeline.activations");
  }
  if (options.dry_run) {
    const Workload load = workload(spec);
    return planned(spec, options,
                   fmt::format("would compare {} of {} on {} with {} with those of one process, in fp64",
                               counted(spec.verify.steps, "step"), model_text(spec, load), spec.data.source,
                               processes_text(spec)));
  }
  RunSpec exact = spec;
  // In fp32, the order of summation alone makes two correct runs differ.
  exact.train.precision = Precision::kFp64;
  return on_every_rank(exact, options, /*keep=*/false, [&options](Session& session) {
    if (session.server() >= 0) return serve(session.spec(), session.server(), session.run_environment());
    const Workload load = workload(session.spec());
    const VerifyReport report = verify(session.spec(), load.factory, load.data, session.run_environment());
    if (session.group().rank() != 0) return 0;
    print_line(options.json ? json_of(report) : table_of(report));
    return report.passed() ? 0 : 1;
  });
}

int doctor_command(const CommandOptions& options) {
  const DoctorReport report = examine();
  const bool color = wants_color(::environ, options.color, STDOUT_FILENO);
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
  if (options.json) print_line(end_of_list(zoo().size()));
  return 0;
}

int strategies_command(const std::string& name, const CommandOptions& options) {
  size_t printed = 0;
  for (const StrategyRow& row : strategy_rows()) {
    if (!name.empty() && name != word_of(row)) continue;
    ++printed;
    const std::string statistics = without_backticks(row.statistics);
    if (options.json) {
      print_line(nlohmann::json{
          {"event", "strategy"},
          {"name", row.name},
          {"what", row.summary},
          {"use_when", row.use_when},
          {"statistics", statistics},
          {"page",
           row.page}}.dump());
    } else {
      std::string text = fmt::format("{} Use it when {}.", row.summary, row.use_when);
      if (!statistics.empty()) text += fmt::format(" It reports: {}.", statistics);
      print_line(fmt::format("{}\n    {}", row.name, wrapped(text, kTextColumns, 4, 4)));
    }
  }
  if (printed == 0) refuse_strategy(name);
  if (options.json) print_line(end_of_list(printed));
  return 0;
}

int zoo_show_command(const ModelSpec& spec, const ZooShowOptions& show, const CommandOptions& options) {
  print_line(zoo_show(spec, show, options.json));
  return 0;
}

int factorize_command(const RunSpec& spec, const FactorizeSpec& what, const CommandOptions& options) {
  check_factorize(spec, what);
  if (options.dry_run) {
    return planned(spec, options,
                   fmt::format("would factorize {} with {} on {}",
                               what.ratings.empty() ? "generated entries" : what.ratings,
                               counted(what.factors, "factor"), processes_text(spec)));
  }
  return on_every_rank(spec, options, /*keep=*/false,
                       [&](Session& session) { return factorize(what, options, session); });
}

int lbfgs_command(const RunSpec& spec, const LbfgsSpec& what, const CommandOptions& options) {
  check_lbfgs_command(spec, what);
  if (options.dry_run) {
    return planned(
        spec, options,
        fmt::format("would fit a logistic regression to {} on {}",
                    what.data.empty() ? "generated samples" : what.data, ranks_text(spec.train.ranks)));
  }
  return on_every_rank(spec, options, /*keep=*/false,
                       [&](Session& session) { return run_lbfgs(what, options, session); });
}

int mcmc_command(const RunSpec& spec, const McmcSpec& what, const CommandOptions& options) {
  check_mcmc_command(spec, what);
  if (options.dry_run) {
    return planned(
        spec, options,
        fmt::format("would sample the posterior of {} on {}",
                    what.data.empty() ? "generated samples" : what.data, ranks_text(spec.train.ranks)));
  }
  return on_every_rank(spec, options, /*keep=*/false,
                       [&](Session& session) { return run_mcmc(what, options, session); });
}

int lasso_command(const RunSpec& spec, const LassoSpec& what, const CommandOptions& options) {
  check_lasso_command(spec, what);
  if (options.dry_run) {
    return planned(
        spec, options,
        fmt::format("would fit a lasso to {} on {}", what.data.empty() ? "generated samples" : what.data,
                    ranks_text(spec.train.ranks)));
  }
  return on_every_rank(spec, options, /*keep=*/false,
                       [&](Session& session) { return run_lasso(what, options, session); });
}

int autoencoder_command(const RunSpec& spec, const AutoencoderSpec& what, const CommandOptions& options) {
  check_autoencoder_command(spec, what);
  if (options.dry_run) {
    check_autoencoder_run(spec, what);
    return planned(spec, options,
                   fmt::format("would train a locally connected autoencoder on {} with {}", spec.data.source,
                               ranks_text(spec.train.ranks)));
  }
  return on_every_rank(spec, options, /*keep=*/false,
                       [&](Session& session) { return run_autoencoder(what, options, session); });
}

int topics_command(const RunSpec& spec, const TopicsSpec& what, const CommandOptions& options) {
  check_topics_command(spec, what);
  if (options.dry_run) {
    return planned(
        spec, options,
        fmt::format("would find topics in {} on {}", what.data.empty() ? "a generated corpus" : what.data,
                    ranks_text(spec.train.ranks)));
  }
  return on_every_rank(spec, options, /*keep=*/false,
                       [&](Session& session) { return run_topics(what, options, session); });
}

int place_command(const RunSpec& spec, const PlaceSpec& what, const CommandOptions& options) {
  check_place(spec, what);
  if (options.dry_run) {
    return planned(policy_spec(spec), options, place_dry_run(spec, what));
  }
  return on_every_rank(policy_spec(spec), options, /*keep=*/false, [&](Session& session) {
    if (session.server() >= 0) return serve(session.spec(), session.server(), session.run_environment());
    return run_place(what, options, session);
  });
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
    print_dry_run(fmt::format("would time convolutions and fully connected layers for {:g} s", seconds),
                  options.json);
    return 0;
  }
  const std::vector<LayerTiming> timings = bench_layers(seconds);
  print_line(options.json ? to_json(timings) : to_text(timings));
  return 0;
}

int data_make_command(const RunSpec& spec, const std::string& out_dir, bool force,
                      const CommandOptions& options) {
  if (options.dry_run) {
    print_dry_run(fmt::format("would write {} into {}", spec.data.source, out_dir), options.json);
    return 0;
  }
  make_data(spec.data, spec.train.seed, out_dir, {.replace = force});
  if (options.json) {
    print_line(
        nlohmann::ordered_json{{"event", "result"}, {"source", spec.data.source}, {"dir", out_dir}}.dump());
  } else if (options.verbosity >= 0) {
    print_line(fmt::format("wrote {} into {}", spec.data.source, out_dir));
  }
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
