#include "starling/commands/compared_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "starling/base/clock.h"
#include "starling/base/error.h"
#include "starling/launch/child_program.h"
#include "starling/run/session.h"
#include "starling/spec/print.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

void write_config(const std::string& path, const Config& config) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << config_to_toml(config);
  file.close();
  if (!file) throw ConfigError("--run-dir", path + " cannot be written. Is the disk full?");
}

// Returns the last error message that the child wrote to standard error, without the program's name.
std::string last_words(const ChildEnd& end) {
  for (auto line = end.errors.rbegin(); line != end.errors.rend(); ++line) {
    const size_t at = line->find("error: ");
    if (at != std::string::npos) return line->substr(at + 7);
  }
  return end.errors.empty() ? fmt::format("the process ended with status {}", end.status) : end.errors.back();
}

}  // namespace

TrainingEnd run_child_training(const ComparedRun& run, const std::string& folder, double seconds,
                               const std::string& program) {
  make_run_folder(folder);
  Config config = run.config;
  config.spec.run.dir = folder;
  config.spec.run.resume = "never";
  const std::string file = folder + "/config.toml";
  write_config(file, config);

  TrainingEnd out;
  RunRecord& record = out.record;
  record.name = run.name;
  record.command = "starling train -c " + file;
  ChildProgram child;
  child.argv = {program, "train", "-c", file, "--json", "-q"};
  child.environment = ::environ;
  child.on_line = [&](const std::string& line) {
    record.add_line(line);
    return seconds <= 0 || record.step_seconds() < seconds;
  };
  const SystemClock clock;
  const ChildEnd end = run_child(child, clock);
  out.interrupted = end.interrupted;
  if (!record.finished && record.error.empty()) record.error = last_words(end);
  const std::string timeline = folder + "/timeline.json";
  if (record.finished && fs::exists(timeline)) record.timeline = read_timeline(timeline);
  return out;
}

}  // namespace starling
