#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "starling/commands/ckpt.h"
#include "starling/commands/commands.h"
#include "starling/run/message/dry_run.h"
#include "starling/run/message/exit_status.h"
#include "starling/telemetry/output.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

using nlohmann::ordered_json;

std::string state_of(const CheckpointEntry& entry, bool hashes) {
  if (!entry.check.whole()) return entry.check.problem();
  return hashes ? "whole, all hashes match" : "complete";
}

int print_checkpoints(const std::string& path, bool hashes, const CommandOptions& options) {
  bool all = true;
  for (const CheckpointEntry& entry : checkpoints_at(path, hashes)) {
    all = all && entry.check.whole();
    if (options.json) {
      ordered_json line = {{"event", "checkpoint"},
                           {"step", entry.folder.step},
                           {"path", entry.folder.path.string()},
                           {"bytes", entry.bytes},
                           {"whole", entry.check.whole()}};
      if (!entry.check.whole()) line["problem"] = state_of(entry, hashes);
      print_line(line.dump());
    } else {
      print_line(fmt::format("step {:>9}  {:>9}  {}  {}", with_thousands(entry.folder.step),
                             bytes_text(entry.bytes), entry.folder.path.string(), state_of(entry, hashes)));
    }
  }
  if (options.json) print_line(ordered_json{{"event", "result"}, {"whole", all}}.dump());
  return all || !hashes ? kExitOk : kExitCheckpoint;
}

}  // namespace

int ckpt_ls_command(const std::string& path, const CommandOptions& options) {
  return print_checkpoints(path, /*hashes=*/false, options);
}

int ckpt_verify_command(const std::string& path, const CommandOptions& options) {
  return print_checkpoints(path, /*hashes=*/true, options);
}

int ckpt_diff_command(const std::string& a, const std::string& b, const CommandOptions& options) {
  const CheckpointDifference result = compare_checkpoints(a, b);
  for (const TensorDifference& d : result.different) {
    if (!options.json) {
      print_line(printable(fmt::format("{}: {}", d.name, d.text)));
      continue;
    }
    ordered_json line = {{"event", "difference"}, {"tensor", d.name}, {"text", d.text}};
    if (d.comparable) line["largest"] = d.largest;
    if (d.comparable) line["relative"] = d.relative;
    print_line(line.dump());
  }
  const auto different = static_cast<int64_t>(result.different.size());
  const int64_t equal = result.tensors - different;
  if (options.json) {
    print_line(ordered_json{{"event", "result"}, {"tensors", result.tensors}, {"equal", equal}}.dump());
  } else {
    print_line(fmt::format("{} of {} tensors are equal bit for bit", equal, result.tensors));
  }
  return different == 0 ? kExitOk : kExitOther;
}

int ckpt_export_command(const std::string& path, const std::string& file, bool force, bool averaged,
                        const CommandOptions& options) {
  if (options.dry_run) {
    print_dry_run(fmt::format("would write the model of {} to {}", path, file), options.json);
    return kExitOk;
  }
  const int64_t tensors = export_checkpoint(path, file, {force, averaged});
  if (options.json) {
    print_line(ordered_json{{"event", "result"}, {"file", file}, {"tensors", tensors}}.dump());
  } else {
    print_line(fmt::format("{} tensors in {}", tensors, file));
  }
  return kExitOk;
}

}  // namespace starling
