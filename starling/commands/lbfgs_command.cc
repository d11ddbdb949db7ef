#include "starling/commands/lbfgs_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "starling/base/atomic_file.h"
#include "starling/base/error.h"
#include "starling/commands/generated_options.h"
#include "starling/commands/interrupted_text.h"
#include "starling/commands/read_samples.h"
#include "starling/factor/npy.h"
#include "starling/lbfgs/gather_vector.h"
#include "starling/lbfgs/solve.h"
#include "starling/run/rank_program.h"
#include "starling/spec/emulation.h"
#include "starling/spec/strategy_table.h"
#include "starling/telemetry/output.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

constexpr int64_t kComparedIterations = 6;  // of each of the four runs that compare portions
constexpr double kComparedComputeS = 0.2;   // emulated time of an evaluation with equal shares
constexpr double kComparedSlowdown = 2;

LbfgsOptions lbfgs_options(const RunSpec& spec, const LbfgsSpec& what) {
  LbfgsOptions options;
  options.minimize.memory = what.memory;
  options.minimize.tolerance = what.tolerance;
  options.minimize.max_iterations = what.iterations;
  options.ridge = what.ridge;
  options.portions_per_rank = what.portions;
  options.backups = !what.no_backups;
  options.equal_portions = what.equal_portions;
  options.emulation = parse_emulation(spec.train.emulate);
  options.seed = spec.train.seed;
  options.checkpoint = what.checkpoint;
  options.checkpoint_every = what.checkpoint_every;
  return options;
}

const char* words_of(MinimizeEnd end) {
  switch (end) {
    case MinimizeEnd::kConverged:
      return "converged";
    case MinimizeEnd::kIterations:
      return "ended after the given number of iterations";
    case MinimizeEnd::kNoDecrease:
      return "ended because fp64 shows no further decrease";
    case MinimizeEnd::kNoStep:
      return "ended because no step decreases the objective";
    default:
      return "interrupted";
  }
}

std::string iteration_line(const MinimizeStep& step, bool json) {
  const MinimizeState& state = step.state;
  if (json) {
    return nlohmann::ordered_json{{"event", "iteration"},
                                  {"iteration", state.iterations},
                                  {"objective", state.objective},
                                  {"largest_gradient", state.largest_gradient},
                                  {"step", step.step},
                                  {"evaluations", state.evaluations}}
        .dump();
  }
  return fmt::format("iteration {:>4}  objective {:.10f}  largest gradient {:.1e}  step {:.3g}",
                     state.iterations, state.objective, state.largest_gradient, step.step);
}

std::string size_text(double bytes) {
  if (bytes < 1e6) return fmt::format("{:.1f} kB", bytes / 1e3);
  return fmt::format("{:.1f} MB", bytes / 1e6);
}

std::string result_text(const LbfgsResult& result) {
  const MinimizeState& state = result.state;
  std::string text =
      fmt::format("{}: objective {:.12g}, largest gradient {:.1e}, {}, {}, {:.2f} s\n", words_of(result.end),
                  state.objective, state.largest_gradient, counted(state.iterations, "iteration"),
                  counted(state.evaluations, "evaluation"), result.seconds);
  text += fmt::format(
      "the coordinator gave {} instructions, with {} of scalars; {} of weights and gradients "
      "went from rank to rank\n",
      result.instructions, size_text(result.bytes.scalars), size_text(result.bytes.vectors));
  text += fmt::format("portions by rank: {}; {} backup copies, of which {} were first",
                      fmt::join(result.portions.delivered, ", "), result.portions.copies,
                      result.portions.copies_first);
  return text;
}

// interrupted: a signal ended the run, or the comparison of portions after it.
std::string result_json(const LbfgsResult& result, const SampleTable& samples, int ranks, bool interrupted) {
  const MinimizeState& state = result.state;
  return nlohmann::ordered_json{{"event", "result"},
                                {"end", words_of(result.end)},
                                {"converged", result.end == MinimizeEnd::kConverged},
                                {"interrupted", interrupted},
                                {"ranks", ranks},
                                {"samples", samples.count()},
                                {"features", samples.features},
                                {"objective", state.objective},
                                {"largest_gradient", state.largest_gradient},
                                {"iterations", state.iterations},
                                {"evaluations", state.evaluations},
                                {"resumed_from", result.resumed_from},
                                {"wall_s", result.seconds},
                                {"instructions", result.instructions},
                                {"scalar_bytes", result.bytes.scalars},
                                {"portion_bytes", result.bytes.portions},
                                {"vector_bytes", result.bytes.vectors},
                                {"portions", result.portions.delivered},
                                {"copies", result.portions.copies},
                                {"copies_first", result.portions.copies_first}}
      .dump();
}

// One of the runs that compare portions.
struct ComparedPortions {
  std::string name;
  bool slow = false;
  bool equal = false;
  double seconds = 0;  // per evaluation
};

// Returns the time of all ranks together, relative to that of ranks with equal speeds.
double speed_bound(const Emulation& emulation, int ranks) {
  std::vector<double> speeds(static_cast<size_t>(ranks), 1);
  for (const Emulation::SlowRank& slow : emulation.slow_ranks)
    if (slow.rank < ranks) speeds[static_cast<size_t>(slow.rank)] /= slow.factor;
  return ranks / std::accumulate(speeds.begin(), speeds.end(), 0.0);
}

std::string compared_line(const ComparedPortions& run, double best, double bound, bool json) {
  if (!json) return fmt::format("  {:<30} {:.3f} s  {:.3f} x", run.name, run.seconds, run.seconds / best);
  return nlohmann::ordered_json{{"event", "portions"},
                                {"run", run.name},
                                {"seconds_per_evaluation", run.seconds},
                                {"ratio", run.seconds / best},
                                {"bound", run.slow ? bound : 1.0}}
      .dump();
}

// Returns what the emulation does to the ranks, as a sentence. `bound`: see speed_bound().
std::string emulation_text(const Emulation& emulation, double bound) {
  std::vector<std::string> slow;
  for (const Emulation::SlowRank& rank : emulation.slow_ranks)
    slow.push_back(
        fmt::format("Rank {} takes {:g} times as long as a rank of full speed", rank.rank, rank.factor));
  return fmt::format(
      "What a slow rank costs per evaluation, with an emulated computation of {:g} s. {}. The best possible "
      "time is {:.3f} x:",
      emulation.compute_s, fmt::join(slow, ". "), bound);
}

// Runs the loop with emulated computation, with and without slow ranks, with small and with equal portions.
// Prints the times per evaluation on rank 0, and their ratios to the best time of equal speeds. Returns false
// if a signal ended a run. No times are printed then. Collective.
bool compare_portions(LbfgsOptions options, const LbfgsParts& parts, bool json) {
  const int ranks = parts.group.size();
  Emulation emulation;  // without the jitter, which would hit some runs more than others
  emulation.slow_ranks = options.emulation.slow_ranks;
  emulation.compute_s = options.emulation.compute_s;
  if (emulation.slow_ranks.empty()) emulation.slow_ranks = {{ranks - 1, kComparedSlowdown}};
  if (emulation.compute_s <= 0) emulation.compute_s = kComparedComputeS;
  options.minimize.max_iterations = kComparedIterations;
  options.minimize.tolerance = 0;
  options.checkpoint.clear();
  LbfgsParts quiet = parts;
  quiet.on_iteration = {};
  quiet.on_resumed = {};
  std::vector<ComparedPortions> runs = {{"equal speeds, equal portions", false, true},
                                        {"equal speeds, small portions"},
                                        {"slow rank, small portions", true},
                                        {"slow rank, equal portions", true, true}};
  const bool speaks = parts.group.rank() == 0;
  const double bound = speed_bound(emulation, ranks);
  if (speaks && !json) print_line(emulation_text(emulation, bound));
  for (ComparedPortions& run : runs) {
    options.emulation = emulation;
    if (!run.slow) options.emulation.slow_ranks.clear();
    options.equal_portions = run.equal;
    const LbfgsResult result = solve_logistic(options, quiet);
    if (result.failed) return true;  // rank 0 reports the fault
    if (result.end == MinimizeEnd::kStopped) return false;
    run.seconds = result.seconds / static_cast<double>(std::max<int64_t>(1, result.evaluations));
  }
  const double best = std::min(runs[0].seconds, runs[1].seconds);
  if (!speaks) return true;
  for (const ComparedPortions& run : runs) print_line(compared_line(run, best, bound, json));
  return true;
}

// Without data and without other requests, the command shows an example.
bool is_example(const RunSpec& spec, const LbfgsSpec& what) {
  return what.data.empty() && what.checkpoint.empty() && what.save.empty() && spec.train.emulate.empty() &&
         !what.equal_portions;
}

// The file for the weights, which only rank 0 writes. It keeps its old content until commit().
class WeightsFile {
 public:
  // Makes a temporary file beside `path`, so that a wrong path ends the run at its start.
  WeightsFile(const std::string& path, bool writes) {
    if (!path.empty() && writes) file_.emplace(path);
  }
  // Writes the weights of a run. Does nothing on other ranks.
  void write(const std::vector<double>& weights) {
    if (!file_) return;
    const std::string bytes = npy_column(weights);
    file_->write(bytes.data(), bytes.size());
    file_->commit();
  }

 private:
  std::optional<AtomicFile> file_;
};

std::string opening_text(const SampleTable& samples, const LbfgsOptions& how, int ranks) {
  return fmt::format(
      "Ridge logistic regression by Sandblaster L-BFGS: {}, {} samples, {} features, {}, {} portions "
      "per evaluation",
      samples.name, samples.count(), samples.features, ranks_text(ranks),
      count_portions(portion_rules(how, ranks, samples.count())));
}

// Returns what solve_logistic() works with on this rank. Rank 0 prints, unless the command is quiet.
LbfgsParts parts_of(Session& session, const RunEnvironment& environment, const SampleTable& samples,
                    const LbfgsSpec& what, const CommandOptions& options) {
  LbfgsParts parts{.group = environment.group, .samples = samples, .clock = environment.process.clock};
  parts.timeout = std::chrono::milliseconds(static_cast<int64_t>(session.spec().comm.timeout_s * 1000));
  parts.stop = &environment.process.stop;
  parts.on_evaluation = [&session](int64_t number) { session.note_loop_step(number); };  // for messages
  if (environment.group.rank() != 0 || options.verbosity < 0) return parts;
  const bool json = options.json;
  parts.on_iteration = [json](const MinimizeStep& step) { print_line(iteration_line(step, json)); };
  if (!json)
    parts.on_resumed = [folder = what.checkpoint](int64_t iteration) {
      print_line(fmt::format("resumed after iteration {} of {}", iteration, folder));
    };
  return parts;
}

}  // namespace

void check_lbfgs_command(const RunSpec& spec, const LbfgsSpec& what) {
  check_lbfgs(lbfgs_options(spec, what));
  const std::string& name = spec.exchange.name;
  if (name != exchange_table().front().name)  // the first row is the default
    throw ConfigError("--exchange",
                      fmt::format("lbfgs has a loop of its own and no exchange; leave out \"{}\"", name));
  check_label_column(what.label);
  const LbfgsSpec usual;
  refuse_beside_data(
      what.data, "DATA",
      {{what.samples != usual.samples, "--samples"}, {what.features != usual.features, "--features"}});
  check_sample_source(what.data, "lbfgs");
  for (const Emulation::SlowRank& slow : parse_emulation(spec.train.emulate).slow_ranks) {
    if (slow.rank >= spec.train.ranks)
      throw ConfigError("train.emulate", fmt::format("names rank {}, but the last of {} ranks is rank {}",
                                                     slow.rank, spec.train.ranks, spec.train.ranks - 1));
  }
  if (what.compare_portions && spec.train.ranks < 2)
    throw ConfigError("--compare-portions", "needs at least two ranks; give -n 2 or more");
  if (what.compare_portions && what.equal_portions)
    throw ConfigError("--compare-portions", "includes equal portions; leave out --equal-portions");
}

int run_lbfgs(const LbfgsSpec& what, const CommandOptions& options, Session& session) {
  const RunSpec& spec = session.spec();
  const RunEnvironment environment = session.run_environment();
  const SampleTable samples =
      read_samples({.data = what.data, .label = what.label, .positive = what.positive},
                   {.count = what.samples, .features = what.features, .seed = spec.train.seed});
  const LbfgsOptions how = lbfgs_options(spec, what);
  const int ranks = environment.group.size();
  const bool speaks = environment.group.rank() == 0;
  const LbfgsParts parts = parts_of(session, environment, samples, what, options);
  WeightsFile file(what.save, speaks);
  if (speaks && options.verbosity >= 0 && !options.json) print_line(opening_text(samples, how, ranks));
  const LbfgsResult result = solve_logistic(how, parts);
  bool interrupted = result.end == MinimizeEnd::kStopped;
  if (!result.failed && !interrupted && !what.save.empty())
    file.write(gather_vector(environment.group, lbfgs_elements(samples), result.weights));
  if (result.unsaved) std::rethrow_exception(result.unsaved);
  if (result.failed) return 0;  // rank 0 reports its fault and has a status for it
  if (speaks && !options.json)
    print_line(interrupted ? interrupted_text({"iteration", result.state.iterations, 0, what.checkpoint})
                           : result_text(result));
  if (!interrupted && ranks > 1 && (what.compare_portions || is_example(spec, what))) {
    interrupted = !compare_portions(how, parts, options.json);
    if (interrupted && speaks && !options.json)
      print_line("interrupted; the comparison of portions is not complete");
  }
  if (speaks && options.json) print_line(result_json(result, samples, ranks, interrupted));
  return interrupted ? interrupted_status(session) : 0;
}

}  // namespace starling
