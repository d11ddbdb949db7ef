#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "starling/base/error.h"
#include "starling/commands/commands.h"
#include "starling/commands/compress.h"
#include "starling/run/message/dry_run.h"
#include "starling/run/rank_program.h"
#include "starling/telemetry/output.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

using nlohmann::ordered_json;

// How many parts of a stage are reported.
constexpr int kProgressParts = 4;

std::string accuracy_text(const EvalDone& evaluation) {
  return evaluation.accuracy >= 0 ? fmt::format("{:.2f} %", 100 * evaluation.accuracy)
                                  : fmt::format("a loss of {}", significant(evaluation.loss));
}

std::string count_text(uint64_t value) {
  return with_thousands(static_cast<int64_t>(value));
}

// The table of the layers. The ratio of a layer is that of its weights in fp32 to its bytes in the file.
std::string layers_text(const CompressReport& report) {
  std::string text =
      fmt::format("{:<24} {:>11} {:>10} {:>8} {:>8} {:>7} {:>7} {:>10} {:>7}\n", "layer", "weights", "kept",
                  "density", "clusters", "index", "weight", "bytes", "ratio");
  for (const CompressedLayer& l : report.layers) {
    text += fmt::format("{:<24} {:>11} {:>10} {:>7.1f}% {:>8} {:>7.2f} {:>7.2f} {:>10} {:>7.1f}\n", l.name,
                        count_text(l.weights), count_text(l.kept),
                        100.0 * static_cast<double>(l.kept) / static_cast<double>(l.weights), l.clusters,
                        l.index_bits, l.cluster_bits, count_text(l.bytes),
                        4.0 * static_cast<double>(l.weights) / static_cast<double>(l.bytes));
  }
  return text + fmt::format("{:<24} {:>73}\n", "everything else", count_text(report.other_bytes));
}

std::string report_text(const CompressReport& report) {
  return layers_text(report) +
         fmt::format(
             "test accuracy {} before, {} after pruning, {} from the file\n"
             "{:.1f} times smaller: {} bytes of parameters in fp32, {} bytes in {}",
             accuracy_text(report.before), accuracy_text(report.pruned), accuracy_text(report.after),
             report.ratio(), count_text(4 * report.parameters), count_text(report.file_bytes), report.file);
}

ordered_json result_line(const RunSpec& spec, const CompressReport& report) {
  ordered_json layers = ordered_json::array();
  for (const CompressedLayer& l : report.layers) {
    layers.push_back({{"layer", l.name},
                      {"weights", l.weights},
                      {"kept", l.kept},
                      {"padding", l.padding},
                      {"clusters", l.clusters},
                      {"index_bits", l.index_bits},
                      {"weight_bits", l.cluster_bits},
                      {"bytes", l.bytes}});
  }
  ordered_json line = {{"event", "result"},
                       {"model", spec.model.name},
                       {"weights", spec.model.init},
                       {"file", report.file},
                       {"parameter_bytes", 4 * report.parameters},
                       {"file_bytes", report.file_bytes},
                       {"ratio", report.ratio()},
                       {"test_loss_before", report.before.loss},
                       {"test_loss", report.after.loss}};
  if (report.after.accuracy >= 0) {
    line["test_accuracy_before"] = report.before.accuracy;
    line["test_accuracy_pruned"] = report.pruned.accuracy;
    line["test_accuracy"] = report.after.accuracy;
  }
  line["layers"] = layers;
  return line;
}

// Prints a line at the beginning and after every quarter of a stage.
class PrintedProgress {
 public:
  // A stage 0 is work that is not reported.
  void show(int stage, double done) {
    const int part = kProgressParts * stage + static_cast<int>(done * kProgressParts);
    if (part <= reported_) return;
    reported_ = part;
    print_line(fmt::format("{} {:.0f} %", stage == 1 ? "pruning" : "training the shared values",
                           100.0 * (part % kProgressParts) / kProgressParts));
  }

 private:
  int reported_ = 0;
};

}  // namespace

int compress_command(const RunSpec& spec, const CompressOptions& compress_options,
                     const CommandOptions& options) {
  if (spec.train.ranks > 1) throw ConfigError("train.ranks", kOneProcess);
  check_output(spec, compress_options);
  if (options.dry_run) {
    print_dry_run(fmt::format("would compress {} ({}) into {}", spec.model.init, spec.model.name,
                              compress_options.file),
                  options.json);
    return 0;
  }
  RankProgram program;
  program.argv = options.argv;
  program.forks = true;
  program.output = {options.json, options.verbosity, options.color};
  program.keep = false;
  return run_rank_program(spec, program, [&](Session& session) {
    const bool shown = !options.json && options.verbosity >= 0;
    const ProcessServices process = session.run_environment().process;
    PrintedProgress printed;
    const auto progress = [&](int stage, double done) {
      if (shown) printed.show(stage, done);
      return !process.stop;
    };
    const CompressReport report = compress(session.spec(), compress_options, session.group(), progress);
    if (report.interrupted) return interrupted_status(session);
    print_line(options.json ? result_line(session.spec(), report).dump() : report_text(report));
    return 0;
  });
}

}  // namespace starling
