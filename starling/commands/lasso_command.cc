#include "starling/commands/lasso_command.h"

#include <fmt/format.h>
#include <time.h>

#include <chrono>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "starling/base/atomic_file.h"
#include "starling/base/error.h"
#include "starling/commands/generated_options.h"
#include "starling/commands/interrupted_text.h"
#include "starling/factor/npy.h"
#include "starling/lasso/solve_lasso.h"
#include "starling/run/rank_program.h"
#include "starling/spec/strategy_table.h"
#include "starling/telemetry/output.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

constexpr const char* kComparedSchedules[] = {"strads", "active-set", "cyclic", "random", "unchecked"};
constexpr Nanoseconds kTableToldEvery = std::chrono::seconds(5);  // in the comparison of schedules

LassoOptions lasso_options(const RunSpec& spec, const LassoSpec& what) {
  LassoOptions options;
  options.schedule = parse_schedule(what.schedule);
  options.lambda = what.lambda;
  options.lambda_share = what.lambda_share;
  options.intercept = !what.no_intercept;
  options.tolerance = what.tolerance;
  options.target = what.target;
  options.max_updates = what.max_updates;
  options.updates = what.updates;
  options.limit = what.rho;
  options.exploration = what.exploration;
  options.seed = spec.train.seed;
  options.checkpoint = what.checkpoint;
  options.checkpoint_every = what.checkpoint_every;
  return options;
}

LassoData lasso_data_of(const LassoSpec& what, uint64_t seed, const Group& group) {
  if (!what.data.empty())
    return read_lasso_data(what.data, what.label == "first" ? LabelColumn::kFirst : LabelColumn::kLast,
                           group.rank(), group.size());
  return make_lasso_blocks({.samples = what.samples,
                            .features = what.features,
                            .block = what.block,
                            .correlation = what.correlation,
                            .nonzeros = what.nonzeros,
                            .noise = what.noise,
                            .seed = seed},
                           group.rank(), group.size());
}

const char* words_of_end(LassoEnd end) {
  switch (end) {
    case LassoEnd::kConverged:
      return "converged";
    case LassoEnd::kTarget:
      return "reached the target";
    case LassoEnd::kUpdates:
      return "ended after the given number of updates";
    case LassoEnd::kDiverged:
      return "diverged";
    default:
      return "interrupted";
  }
}

std::string pass_line(const LassoProgress& at, bool json) {
  if (json) {
    return nlohmann::ordered_json{
        {"event", "pass"}, {"updates", at.updates},   {"rounds", at.rounds},  {"objective", at.objective},
        {"gap", at.gap},   {"nonzeros", at.nonzeros}, {"seconds", at.seconds}}
        .dump();
  }
  return fmt::format("{:>9} updates  objective {:.10g}  gap {:.1e}  {}", at.updates, at.objective, at.gap,
                     counted(at.nonzeros, "nonzero weight"));
}

// bytes: that all ranks have sent.
nlohmann::ordered_json result_fields(const LassoResult& result, const LassoOptions& how, int ranks,
                                     uint64_t bytes) {
  return {{"schedule", word_of(how.schedule)},
          {"end", words_of_end(result.end)},
          {"converged", result.end == LassoEnd::kConverged},
          {"interrupted", result.end == LassoEnd::kStopped},
          {"ranks", ranks},
          {"lambda", result.lambda},
          {"lambda_max", result.lambda_max},
          {"objective", result.last.objective},
          {"gap", result.last.gap},
          {"objective_at_zero", result.objective_at_zero},
          {"nonzeros", result.last.nonzeros},
          {"intercept", result.intercept},
          {"updates", result.last.updates},
          {"rounds", result.last.rounds},
          {"passes", result.last.passes},
          {"looked", result.looked},
          {"pairs", result.pairs},
          {"resumed_from", result.resumed_from},
          {"wall_s", result.seconds},
          {"schedule_s", result.schedule_seconds},
          {"bytes_sent", bytes}};
}

std::string result_words(const LassoResult& result, uint64_t bytes) {
  return fmt::format(
      "{}: objective {:.12g}, gap {:.1e}, {}\n{} in {}, {}, which computed the progress of features {}, {}, "
      "{:.2f} s, of which {:.2f} s for the schedule, {} sent",
      words_of_end(result.end), result.last.objective, result.last.gap,
      counted(result.last.nonzeros, "nonzero weight"), counted(result.last.updates, "update"),
      counted(result.last.rounds, "round"),
      result.last.passes == 1 ? "1 pass" : fmt::format("{} passes", result.last.passes),
      counted(result.looked, "time"), counted(result.pairs, "correlation"), result.seconds,
      result.schedule_seconds, bytes_text(bytes));
}

// Returns the bytes that all ranks have sent since each had sent `before`. Collective.
uint64_t bytes_sent_since(Group& group, uint64_t before) {
  const uint64_t own = group.traffic().sent() - before;
  std::vector<uint64_t> all(static_cast<size_t>(group.size()));
  all_gather(group, &own, all.data(), sizeof(own), DataType::kUint8);
  return std::accumulate(all.begin(), all.end(), uint64_t{0});
}

// Returns the processor seconds of all threads of this process so far.
double seconds_of_cpu() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Solves the problem by each schedule, and prints what each needs to come as close to the minimum. Returns
// false if a signal ended a run. Collective. options: of the run before, whose objective all schedules reach.
bool compare_schedules(LassoOptions options, const LassoData& data, const LassoParts& parts, double objective,
                       bool json) {
  options.target = objective * (1 + options.tolerance);
  options.tolerance = 0;
  options.checkpoint.clear();
  options.max_updates = 200 * data.features;
  const bool speaks = parts.group.rank() == 0;
  if (speaks && !json)
    print_line(fmt::format("Updates that each schedule needs to the objective {:.10g}, of at most {}:",
                           *options.target, options.max_updates));
  Nanoseconds shown{};  // when the last line was printed
  for (size_t i = 0; i < std::size(kComparedSchedules); ++i) {
    const char* word = kComparedSchedules[i];
    if (speaks && !json)
      print_line(fmt::format("  {} of {}: {} …", i + 1, std::size(kComparedSchedules), word));
    shown = parts.clock.now();
    options.schedule = parse_schedule(word);
    LassoData copy = data;
    LassoParts own{.group = parts.group, .data = copy, .clock = parts.clock, .stop = parts.stop};
    if (!json)
      own.on_pass = [&](const LassoProgress& at) {
        if (parts.clock.now() - shown < kTableToldEvery) return;
        shown = parts.clock.now();
        print_line(fmt::format("  {:<11} {:>9} updates so far", word, at.updates));
      };
    const LassoResult result = solve_lasso(options, own);
    if (result.end == LassoEnd::kStopped) return false;
    if (!speaks) continue;
    if (json) {
      nlohmann::ordered_json fields{{"event", "schedule"}};
      fields.update(result_fields(result, options, parts.group.size(), 0));
      fields.erase("bytes_sent");
      print_line(fields.dump());
    } else {
      print_line(fmt::format("  {:<11} {:>9} updates  {:.2f} s  {}", word, result.last.updates,
                             result.seconds, words_of_end(result.end)));
    }
  }
  return true;
}

// Without any option of its own, the command compares the schedules.
bool compares(const LassoSpec& what) {
  const LassoSpec usual;
  const auto numbers = [](const LassoSpec& s) {
    return std::tuple(s.lambda, s.lambda_share, s.no_intercept, s.tolerance, s.updates, s.rho, s.exploration,
                      s.max_updates, s.checkpoint_every, s.samples, s.features, s.block, s.nonzeros,
                      s.correlation, s.noise);
  };
  return what.data.empty() && what.checkpoint.empty() && what.save.empty() && !what.target &&
         what.label == usual.label && what.schedule == usual.schedule && numbers(what) == numbers(usual);
}

// Writes the weights and the intercept.
void write_weights(AtomicFile& file, const LassoResult& result) {
  std::vector<double> numbers = result.weights;
  numbers.push_back(result.intercept);
  const std::string bytes = npy_column(numbers);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

// Refuses options that would have no effect beside others.
void check_lasso_effects(const LassoSpec& what) {
  const LassoSpec usual;
  refuse_beside_data(what.data, "DATA",
                     {{what.samples != usual.samples, "--samples"},
                      {what.features != usual.features, "--features"},
                      {what.block != usual.block, "--block"},
                      {what.correlation != usual.correlation, "--correlation"},
                      {what.nonzeros != usual.nonzeros, "--nonzeros"},
                      {what.noise != usual.noise, "--noise"}});
  if (what.lambda > 0 && what.lambda_share != usual.lambda_share)
    throw ConfigError("--lambda-share", "--lambda gives the penalty; leave out one of the two");
}

std::string opening_words(const LassoData& data, const LassoOptions& how, int ranks) {
  return fmt::format("Lasso, schedule {}: {}, {}, {}, {}, {} per round", word_of(how.schedule), data.name,
                     counted(data.samples, "sample"), counted(data.features, "feature"),
                     counted(ranks, "rank"), counted(how.updates, "update"));
}

}  // namespace

void check_lasso_command(const RunSpec& spec, const LassoSpec& what) {
  check_lasso(lasso_options(spec, what));
  const std::string& name = spec.exchange.name;
  if (name != exchange_table().front().name)  // the first row is the default
    throw ConfigError("--exchange",
                      fmt::format("lasso has a loop of its own and no exchange; leave out \"{}\"", name));
  check_lasso_effects(what);
  if (what.data.empty() && what.nonzeros > what.features)
    throw ConfigError("--nonzeros", fmt::format("{} of {} features: give at most the number of --features",
                                                what.nonzeros, what.features));
  if (what.label != "first" && what.label != "last")
    throw ConfigError("--label", fmt::format("\"{}\" is no column; write first or last", what.label));
}

int run_lasso(const LassoSpec& what, const CommandOptions& options, Session& session) {
  const RunSpec& spec = session.spec();
  const RunEnvironment environment = session.run_environment();
  Group& group = environment.group;
  const LassoOptions how = lasso_options(spec, what);
  LassoData data = lasso_data_of(what, spec.train.seed, group);
  const bool speaks = group.rank() == 0, prints = speaks && options.verbosity >= 0;
  const std::optional<LassoData> original = compares(what) ? std::optional(data) : std::nullopt;
  std::optional<AtomicFile> file;  // made at the start, so that a wrong path ends the run there
  if (speaks && !what.save.empty()) file.emplace(what.save);
  LassoParts parts{.group = group, .data = data, .clock = environment.process.clock};
  parts.stop = &environment.process.stop;
  if (prints) parts.on_pass = [&](const LassoProgress& at) { print_line(pass_line(at, options.json)); };
  if (prints && !options.json)
    parts.on_resumed = [&](int64_t round) {
      print_line(fmt::format("resumed after round {} of {}", round, what.checkpoint));
    };
  if (prints && !options.json) print_line(opening_words(data, how, group.size()));
  const uint64_t before = group.traffic().sent();
  const double cpu_before = seconds_of_cpu();
  const LassoResult result = solve_lasso(how, parts);
  const double used = seconds_of_cpu() - cpu_before;
  const uint64_t bytes = bytes_sent_since(group, before);
  if (result.end == LassoEnd::kDiverged)
    throw Error(
        ErrorCode::kNumeric,
        fmt::format("the objective diverged after {} updates; use --schedule strads, or a smaller --rho "
                    "or --updates",
                    result.last.updates));
  bool interrupted = result.end == LassoEnd::kStopped;
  if (file && !interrupted) write_weights(*file, result);
  if (speaks && !options.json)
    print_line(interrupted ? interrupted_text({"round", result.last.rounds, 0, what.checkpoint})
                           : result_words(result, bytes));
  if (original && result.end == LassoEnd::kConverged) {
    interrupted = !compare_schedules(how, *original, parts, result.last.objective, options.json);
    if (interrupted && speaks && !options.json)
      print_line("interrupted; the table of schedules is not complete");
  }
  if (speaks && options.json) {
    nlohmann::ordered_json fields{{"event", "result"}};
    fields.update(result_fields(result, how, group.size(), bytes));
    fields["cpu_s"] = used;
    fields["samples"] = data.samples;
    fields["features"] = data.features;
    fields["interrupted"] = interrupted;
    print_line(fields.dump());
  }
  return interrupted ? interrupted_status(session) : 0;
}

}  // namespace starling
