#include "starling/commands/compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

#include "starling/base/error.h"
#include "starling/commands/comparison_theory.h"
#include "starling/commands/exchange_measurement.h"
#include "starling/launch/environment.h"
#include "starling/report/html_report.h"
#include "starling/report/table.h"
#include "starling/run/message/dry_run.h"
#include "starling/run/message/exit_status.h"
#include "starling/run/session.h"
#include "starling/spec/read_keys.h"
#include "starling/spec/run_text.h"
#include "starling/spec/schema.h"
#include "starling/spec/validate.h"
#include "starling/spec/value.h"
#include "starling/telemetry/output.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

constexpr int64_t kEndless = 1'000'000'000;  // steps of a run with a budget of seconds

bool is_set(const Config& config, std::string_view key) {
  return is_given(config.origins, key);
}

void put_budget(Config& config, const Budget& budget) {
  RunSpec& spec = config.spec;
  if (budget.seconds > 0) {
    // The length of the run is unknown, so nothing of a recipe may depend on it.
    for (const char* key : {"schedule.name", "schedule.warmup_share"}) {
      if (is_given(config.origins, key)) continue;
      const SchemaEntry& entry = *find_entry(key);
      write(entry, spec, default_of(entry), key);
      config.origins[key] = {OriginKind::kSet, "--budget"};
    }
    if (spec.schedule.warmup_share > 0) {
      throw ConfigError("--budget",
                        "a budget of seconds does not fix the number of steps, on which "
                        "schedule.warmup_share depends; use --budget samples=N or schedule.warmup_steps");
    }
    if (spec.schedule.name == "cosine" || spec.schedule.name == "poly")
      throw ConfigError(
          "--budget",
          fmt::format("a budget of seconds does not fix the number of steps, on which the learning rate of "
                      "schedule.name = \"{}\" depends; use --budget samples=N or --lr-schedule constant",
                      spec.schedule.name));
    spec.train.steps = kEndless;
    return;
  }
  spec.train.steps = budget.samples / spec.train.global_batch;
  if (spec.train.steps < 1)
    throw ConfigError("--budget", fmt::format("samples={} is less than one step of {} samples",
                                              budget.samples, spec.train.global_batch));
}

void require_valid(const ComparedRun& run) {
  try {
    validate(run.config.spec, run.config.origins);
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("run {}", run.name), error.what());
  }
}

// Returns the name of a run's folder, such as "03-local-sgd-every-8".
std::string folder_name(size_t index, const std::string& name) {
  std::string plain;
  for (const char c : name) plain += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '-';
  return fmt::format("{:02}-{}", index, plain);
}

constexpr std::string_view kSettingsOf = "settings of ";

// Returns how the optimizer, schedule and batch of a run differ from those of the comparison, for example
// "optimizer.lr 0.2, optimizer.momentum 0.0". Recipes of exchanges and codecs cause such differences.
std::string other_settings(const RunSpec& run, const RunSpec& base) {
  std::vector<std::string> settings;
  for (const SchemaEntry& entry : schema()) {
    const std::string_view table = table_of(entry);
    if (table != "optimizer" && table != "schedule" && entry.key != "train.global_batch") continue;
    const std::string value = to_toml(read(entry, run));
    if (value != to_toml(read(entry, base))) settings.push_back(fmt::format("{} {}", entry.key, value));
  }
  return fmt::format("{}", fmt::join(settings, ", "));
}

std::vector<std::pair<std::string, std::string>> facts_of(const ComparisonPlan& plan,
                                                          const RunRecord& first) {
  const RunSpec& spec = plan.base.spec;
  std::vector<std::pair<std::string, std::string>> facts = {
      {"model", fmt::format("{}, {} parameters", spec.model.name, with_thousands(first.started.params))},
      {"data", spec.data.source},
      {"samples per step", with_thousands(spec.train.global_batch)},
      {"each run", plan.budget.text()},
      {"optimizer", fmt::format("{}, lr {:g}", spec.optimizer.name, spec.optimizer.lr)},
      {"seed", fmt::format("{}", spec.train.seed)},
      {"threads per rank", fmt::format("{}", spec.train.threads)}};
  if (first.started.local_cores > 0)
    facts.emplace_back("cores", fmt::format("{}", first.started.local_cores));
  if (plan.target.any()) facts.emplace_back("target", target_text(plan.target));
  for (const ComparedRun& run : plan.runs) {
    const std::string settings = other_settings(run.config.spec, spec);
    if (!settings.empty()) facts.emplace_back(fmt::format("{}{}", kSettingsOf, run.name), settings);
  }
  return facts;
}

void print_results(const Comparison& comparison, const std::string& report, bool json) {
  if (!json) {
    print_line(to_text(comparison));
    for (const auto& [name, value] : comparison.facts)
      if (name.starts_with(kSettingsOf)) print_line(fmt::format("{}: {}", name, value));
    print_line("report: " + report);
    return;
  }
  for (const Compared& run : compared(comparison)) print_line(to_json(run));
  print_line(nlohmann::json{{"event", "result"}, {"report", report}}.dump());
}

void print_dry(const ComparisonPlan& plan, bool json) {
  std::vector<std::string> lines;
  for (const ComparedRun& run : plan.runs)
    lines.push_back(fmt::format("would train {} with {} for {}", run.name, processes_text(run.config.spec),
                                plan.budget.text()));
  print_dry_run(fmt::format("{}", fmt::join(lines, "\n")), json);
}

std::string program_of(const CommandOptions& options) {
  return options.argv.empty() ? "starling" : options.argv.front();
}

// Trains the runs one after the other and reports progress on standard error. Returns true after a signal
// that asks to end; the remaining runs are then not started.
bool train_all(const ComparisonPlan& plan, const std::string& folder, const CommandOptions& options,
               Comparison& comparison) {
  bool interrupted = false;
  const auto say = [&](const std::string& text) {
    if (options.verbosity >= 0) fmt::print(stderr, "starling: {}\n", text);
  };
  for (size_t i = 0; i < plan.runs.size(); ++i) {
    const ComparedRun& run = plan.runs[i];
    TrainingEnd end;
    end.record.name = run.name;
    end.record.error = "not started: the comparison was interrupted";
    if (!interrupted) {
      say(fmt::format("{}/{} {}", i + 1, plan.runs.size(), run.name));
      end = run_child_training(run, folder + "/" + folder_name(i, run.name), plan.budget.seconds,
                               program_of(options));
      if (!end.record.finished) say(fmt::format("{} failed: {}", run.name, end.record.error));
    }
    interrupted = interrupted || end.interrupted;
    comparison.runs.push_back(std::move(end.record));
  }
  return interrupted;
}

}  // namespace

std::string Budget::text() const {
  return seconds > 0 ? fmt::format("{:g} seconds", seconds) : with_thousands(samples) + " samples";
}

Budget parse_budget(const std::string& text) {
  const size_t equals = text.find('=');
  const std::string kind = text.substr(0, equals);
  double value = 0;
  if (equals != std::string::npos) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + equals + 1, end, value);
    if (error != std::errc() || stop != end) value = 0;
  }
  if ((kind != "samples" && kind != "seconds") || !(value > 0 && value <= 1e12))
    throw ConfigError("--budget", fmt::format("\"{}\" is not a budget; write samples=N or seconds=S", text));
  return kind == "samples" ? Budget{static_cast<int64_t>(value), 0} : Budget{0, value};
}

namespace {

// The settings of the comparison hold for the runs that read them. If a run does not read a key and has its
// value from the comparison, the key gets its default.
void leave_out_unread(Config& config, const Config& base) {
  for (const SchemaEntry& entry : schema()) {
    if (reads_key(config.spec, entry) || read(entry, config.spec) != read(entry, base.spec)) continue;
    write(entry, config.spec, default_of(entry), std::string(entry.key));
    config.origins.erase(std::string(entry.key));
  }
}

}  // namespace

void complete_plan(ComparisonPlan& plan) {
  if (!is_set(plan.base, "train.threads")) plan.base.spec.train.threads = 1;
  for (ComparedRun& run : plan.runs) {
    leave_out_unread(run.config, plan.base);
    if (run.config.spec.train.threads == 0) run.config.spec.train.threads = 1;
    put_budget(run.config, plan.budget);
    require_valid(run);
  }
}

Config one_rank(Config config) {
  RunSpec& spec = config.spec;
  const ExchangeSpec plain;
  spec.train.ranks = 1;
  spec.train.mesh.clear();
  spec.train.shard = Shard::kNone;
  spec.train.hybrid = "none";
  spec.train.emulate.clear();
  spec.train.threads_mode = ThreadsMode::kOp;
  spec.data.partition = "none";
  spec.data.share.clear();
  spec.model.batch_norm = BatchNorm::kLocal;
  spec.exchange = plain;
  return config;
}

ComparisonPlan make_plan(const Config& base, const std::vector<std::string>& files,
                         const CompareOptions& options) {
  ComparisonPlan plan;
  plan.title = fmt::format("{} on {}, trained in several ways", base.spec.model.name, base.spec.data.source);
  plan.lead = "Every run trains the same model from the same weights on the same samples in the same order.";
  plan.base = base;
  plan.budget = parse_budget(options.budget);
  plan.target = {options.target_accuracy, options.target_loss};
  plan.measure_exchange = options.measure_exchange;
  if (plan.target.accuracy >= 0 && plan.target.loss >= 0)
    throw ConfigError("--target-accuracy", "cannot be combined with --target-loss; give one of them");
  plan.runs.push_back({"one rank", one_rank(base)});
  for (const std::string& text : split_runs(options.runs))
    plan.runs.push_back({text, config_of_run(base, files, text)});
  Picture all{"All runs", "", {}};
  for (size_t i = 0; i < plan.runs.size(); ++i) all.runs.push_back(i);
  plan.pictures.push_back(all);
  complete_plan(plan);
  return plan;
}

int carry_out(const ComparisonPlan& plan, const CommandOptions& options) {
  const Environment environment = read_environment(::environ);
  if (environment.identity.origin != ProcessOrigin::kAlone)
    throw ConfigError("compare", fmt::format("starts its own ranks; start it without {}",
                                             name_of(environment.identity.origin)));
  if (options.dry_run) {
    print_dry(plan, options.json);
    return kExitOk;
  }
  const bool named = !plan.base.spec.run.dir.empty();
  const std::string folder = run_folder_of(plan.base.spec, environment) + (named ? "" : "-compare");
  make_run_folder(folder);
  Comparison comparison;
  comparison.title = plan.title;
  comparison.lead = plan.lead;
  comparison.target = plan.target;
  comparison.pictures = plan.pictures;
  const bool interrupted = train_all(plan, folder, options, comparison);
  comparison.facts = facts_of(plan, comparison.runs.front());
  add_theory(comparison, plan.base, plan.runs);
  if (plan.measure_exchange && !interrupted)
    measure_exchanges(comparison, 4.0 * static_cast<double>(comparison.runs.front().started.params),
                      program_of(options));
  const std::string report = folder + "/index.html";
  write_report(report, comparison);
  print_results(comparison, report, options.json);
  const bool failed = std::any_of(comparison.runs.begin(), comparison.runs.end(),
                                  [](const RunRecord& run) { return !run.finished; });
  return interrupted ? kExitInterrupted : failed ? kExitOther : kExitOk;
}

int compare_command(const Config& base, const std::vector<std::string>& files, const CompareOptions& compare,
                    const CommandOptions& options) {
  return carry_out(make_plan(base, files, compare), options);
}

}  // namespace starling
