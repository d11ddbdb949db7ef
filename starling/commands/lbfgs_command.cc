#include "starling/commands/lbfgs_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/data/formats/cifar.h"
#include "starling/data/formats/idx.h"
#include "starling/factor/npy.h"
#include "starling/lbfgs/solve.h"
#include "starling/run/rank_program.h"
#include "starling/spec/emulation.h"
#include "starling/spec/strategy_table.h"
#include "starling/telemetry/output.h"

namespace starling {
namespace {

constexpr int64_t kComparedIterations = 6;  // of each of the three runs that compare portions
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

// Returns images as samples with one feature per pixel and channel, from 0 to 1.
SampleTable samples_of_images(const ImageStore& images, const std::string& name) {
  SampleTable table;
  table.name = name;
  const size_t pixels = images.shape().bytes();
  table.features = static_cast<int64_t>(pixels);
  table.values.reserve(pixels * static_cast<size_t>(images.size()));
  std::vector<uint8_t> bytes(pixels);
  for (int64_t i = 0; i < images.size(); ++i) {
    const int64_t index[1] = {i};
    images.decode(index, bytes.data());
    for (const uint8_t byte : bytes) table.values.push_back(byte / 255.0);
    table.labels.push_back(static_cast<double>(images.label(i)));
  }
  return table;
}

SampleTable samples_for(const LbfgsSpec& what, uint64_t seed) {
  SampleTable table;
  if (what.data.empty()) {
    table = make_samples({.count = what.samples, .features = what.features, .seed = seed});
  } else if (what.data.starts_with("idx:")) {
    table = samples_of_images(*open_idx(what.data.substr(4)).train, what.data);
  } else if (what.data.starts_with("cifar-bin:")) {
    table = samples_of_images(*open_cifar(what.data.substr(10)).train, what.data);
  } else {
    table = read_csv_samples(what.data, what.label == "first" ? LabelColumn::kFirst : LabelColumn::kLast);
  }
  make_binary(table, what.positive);
  return table;
}

const char* words_of(MinimizeEnd end) {
  switch (end) {
    case MinimizeEnd::kConverged:
      return "converged";
    case MinimizeEnd::kIterations:
      return "ended after the given number of iterations";
    case MinimizeEnd::kNoDecrease:
      return "ended because fp64 shows no further decrease";
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
      fmt::format("{}: objective {:.12g}, largest gradient {:.1e}, {} iterations, {} evaluations, {:.2f} s\n",
                  words_of(result.end), state.objective, state.largest_gradient, state.iterations,
                  state.evaluations, result.seconds);
  text += fmt::format(
      "the coordinator gave {} instructions, with {} of scalars; {} of weights and gradients "
      "went from rank to rank\n",
      result.instructions, size_text(result.bytes.scalars), size_text(result.bytes.vectors));
  text += fmt::format("portions by rank: {}; {} backup copies, of which {} were first",
                      fmt::join(result.portions.delivered, ", "), result.portions.copies,
                      result.portions.copies_first);
  return text;
}

std::string result_json(const LbfgsResult& result, const SampleTable& samples, int ranks) {
  const MinimizeState& state = result.state;
  return nlohmann::ordered_json{{"event", "result"},
                                {"end", words_of(result.end)},
                                {"converged", result.end == MinimizeEnd::kConverged},
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

// Runs the loop with emulated computation, with and without a slow rank, with small and with equal portions.
// Prints the times per evaluation on rank 0, and their ratios to the best time of equal speeds. Collective.
void compare_portions(LbfgsOptions options, const LbfgsParts& parts, bool json) {
  Emulation emulation = options.emulation;
  const int ranks = parts.group.size();
  if (emulation.slow_ranks.empty()) emulation.slow_ranks = {{ranks - 1, kComparedSlowdown}};
  if (emulation.compute_s <= 0) emulation.compute_s = kComparedComputeS;
  options.minimize.max_iterations = kComparedIterations;
  options.minimize.tolerance = 0;
  options.checkpoint.clear();
  LbfgsParts quiet = parts;
  quiet.on_iteration = {};
  std::vector<ComparedPortions> runs = {{"equal speeds, equal portions", false, true},
                                        {"equal speeds, small portions"},
                                        {"slow rank, small portions", true},
                                        {"slow rank, equal portions", true, true}};
  const bool speaks = parts.group.rank() == 0;
  const double bound = speed_bound(emulation, ranks);
  if (speaks && !json) {
    const Emulation::SlowRank& slow = emulation.slow_ranks.front();
    print_line(
        fmt::format("What a slow rank costs per evaluation, with an emulated computation of {:g} s. Rank {} "
                    "takes {:g} times "
                    "as long as the other ranks, so the best possible time is {:.3f} x:",
                    emulation.compute_s, slow.rank, slow.factor, bound));
  }
  for (ComparedPortions& run : runs) {
    options.emulation = emulation;
    if (!run.slow) options.emulation.slow_ranks.clear();
    options.equal_portions = run.equal;
    const LbfgsResult result = solve_logistic(options, quiet);
    run.seconds = result.seconds / static_cast<double>(std::max<int64_t>(1, result.evaluations));
  }
  const double best = std::min(runs[0].seconds, runs[1].seconds);
  if (!speaks) return;
  for (const ComparedPortions& run : runs) print_line(compared_line(run, best, bound, json));
}

// Without data and without other requests, the command shows an example.
bool is_example(const RunSpec& spec, const LbfgsSpec& what) {
  return what.data.empty() && what.checkpoint.empty() && what.save.empty() && spec.train.emulate.empty() &&
         !what.equal_portions;
}

}  // namespace

void check_lbfgs_command(const RunSpec& spec, const LbfgsSpec& what) {
  check_lbfgs(lbfgs_options(spec, what));
  const std::string& name = spec.exchange.name;
  if (name != exchange_table().front().name)  // the first row is the default
    throw ConfigError("--exchange",
                      fmt::format("lbfgs has a loop of its own and no exchange; leave out \"{}\"", name));
  if (what.label != "first" && what.label != "last")
    throw ConfigError("--label", fmt::format("\"{}\" is no column; write first or last", what.label));
  const size_t colon = what.data.find(':');
  const std::string kind = colon == std::string::npos ? "" : what.data.substr(0, colon);
  for (const char* other : {"images", "text", "served"}) {
    if (kind == other)
      throw ConfigError("DATA",
                        fmt::format("lbfgs reads a CSV file, idx:DIR or cifar-bin:DIR, not {}", what.data));
  }
  if (what.compare_portions && spec.train.ranks < 2)
    throw ConfigError("--compare-portions", "needs at least two ranks; give -n 2 or more");
  if (what.compare_portions && what.equal_portions)
    throw ConfigError("--compare-portions", "includes equal portions; leave out --equal-portions");
}

int run_lbfgs(const LbfgsSpec& what, const CommandOptions& options, Session& session) {
  const RunSpec& spec = session.spec();
  const RunEnvironment environment = session.run_environment();
  const SampleTable samples = samples_for(what, spec.train.seed);
  const LbfgsOptions how = lbfgs_options(spec, what);
  const int ranks = environment.group.size();
  const bool speaks = environment.group.rank() == 0;
  LbfgsParts parts{.group = environment.group, .samples = samples, .clock = environment.process.clock};
  parts.timeout = std::chrono::milliseconds(static_cast<int64_t>(spec.comm.timeout_s * 1000));
  parts.stop = &environment.process.stop;
  if (speaks && options.verbosity >= 0)
    parts.on_iteration = [&](const MinimizeStep& step) { print_line(iteration_line(step, options.json)); };
  if (speaks && options.verbosity >= 0 && !options.json)
    print_line(
        fmt::format("Ridge logistic regression by Sandblaster L-BFGS: {}, {} samples, {} features, {} "
                    "rank{}, {} portions per "
                    "evaluation",
                    samples.name, samples.count(), samples.features, ranks, ranks == 1 ? "" : "s",
                    how.equal_portions ? ranks : ranks * how.portions_per_rank));
  const LbfgsResult result = solve_logistic(how, parts);
  if (speaks && !options.json) {
    if (result.resumed_from >= 0)
      print_line(fmt::format("resumed after iteration {} of {}", result.resumed_from, what.checkpoint));
    print_line(result_text(result));
  }
  if (speaks && result.end == MinimizeEnd::kStopped) return interrupted_status(session.environment(), {});
  if (!what.save.empty()) {
    write_npy_rows(what.save, lbfgs_elements(samples), 1, result.slice.begin,
                   std::span<const double>(result.weights));
    if (ranks > 1) barrier(environment.group);  // now all parts of the file are written
  }
  if (ranks > 1 && (what.compare_portions || is_example(spec, what)))
    compare_portions(how, parts, options.json);
  if (speaks && options.json) print_line(result_json(result, samples, ranks));
  return 0;
}

}  // namespace starling
