#include "starling/telemetry/summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

std::string where_time_went(const RunResult& r) {
  const double known = r.compute_s + r.exposed_comm_s + r.data_wait_s;
  const double wall = std::max(r.wall_s, known);
  if (!(wall > 0)) return {};
  const bool waits = r.ranks > 1 || r.exposed_comm_s > 0;  // one rank waits for servers only
  return fmt::format("compute {}, {}data {}, other {}", percent(r.compute_s / wall),
                     waits ? fmt::format("waiting for ranks {}, ", percent(r.exposed_comm_s / wall)) : "",
                     percent(r.data_wait_s / wall), percent((wall - known) / wall));
}

std::string memory_text(const RunResult& result) {
  const std::vector<double>& mb = result.peak_rss_mb;
  // The ranks keep their first numbers if one is lost, and the list has only those that are left.
  const auto rank = [&](size_t i) {
    return result.rank_times.size() == mb.size() ? result.rank_times[i].rank : static_cast<int64_t>(i);
  };
  const auto text = [](double value) { return bytes_text(static_cast<uint64_t>(value * 1e6)); };
  if (mb.size() == 1) return text(mb[0]);
  if (mb.size() <= 4) {
    std::string all;
    for (size_t i = 0; i < mb.size(); ++i)
      all += fmt::format("{}rank {}: {}", i ? ", " : "", rank(i), text(mb[i]));
    return all;
  }
  const auto [least, most] = std::minmax_element(mb.begin(), mb.end());
  return fmt::format("{} to {} per rank, most on rank {}", text(*least), text(*most),
                     rank(static_cast<size_t>(most - mb.begin())));
}

// Returns the samples of each rank in a step, or nothing if all ranks have equally many.
std::string shares_text(const std::vector<int64_t>& share) {
  if (share.empty()) return {};
  if (share.size() <= 8) return fmt::format("{} by rank", fmt::join(share, ", "));
  const auto [least, most] = std::minmax_element(share.begin(), share.end());
  return fmt::format("{} (rank {}) to {} (rank {})", *least, least - share.begin(), *most,
                     most - share.begin());
}

// Returns the first line of the summary.
std::string opening(const RunResult& r) {
  if (!r.interrupted && r.stopped) return "Finished early, as the program or SIGUSR2 asked";
  if (!r.interrupted) return r.first_step > 0 && r.steps == r.first_step ? "Nothing was trained" : "Finished";
  if (r.resume.command.empty()) return "Interrupted. The state is not saved";
  if (r.resume.launcher.empty()) return "Interrupted. The state is saved. This command resumes the run:";
  return fmt::format("Interrupted. The state is saved. The run resumes if {} starts this command:",
                     r.resume.launcher);
}

}  // namespace

std::string summary(const RunResult& r, bool color) {
  std::string out;
  const auto row = [&](const std::string& name, const std::string& value, Color c = Color::kPlain) {
    if (!value.empty())
      out += fmt::format("  {} {}\n", paint(color, Color::kDim, fmt::format("{:<16}", name)),
                         paint(color, c, value));
  };
  out += paint(color, Color::kBold, opening(r)) + '\n';
  if (r.interrupted && !r.resume.command.empty()) out += fmt::format("  {}\n", r.resume.command);
  row("model", fmt::format("{}, {} parameters, {}", r.model, with_thousands(r.params), ranks_text(r.ranks)));
  const bool resumed = r.first_step > 0 && r.steps > r.first_step;
  const std::string since = resumed ? " since the run resumed" : "";
  row("steps",
      with_thousands(r.steps) +
          (resumed ? fmt::format(", {} of them{}", with_thousands(r.steps - r.first_step), since) : ""));
  if (!r.lost_ranks.empty())
    row("lost ranks",
        fmt::format("{}; {} until the remaining ranks continued", fmt::join(r.lost_ranks, ", "),
                    duration(r.recovery_s)),
        Color::kYellow);
  if (r.samples_per_s > 0)
    row("speed",
        fmt::format("{} samples/s{} (median)", significant(r.samples_per_s),
                    r.ranks > 1 ? " over all ranks" : ""),
        Color::kBold);
  row("samples a step", shares_text(r.share));
  if (!std::isnan(r.train_loss))
    row("train loss", significant(r.train_loss), std::isfinite(r.train_loss) ? Color::kPlain : Color::kRed);
  if (r.test_loss != -1) row("test loss", significant(r.test_loss));
  if (r.test_accuracy != -1)
    row("test accuracy", fmt::format("{:.2f} %", 100 * r.test_accuracy), Color::kGreen);
  for (const auto& [name, value] : r.test_metrics) row("test " + name, significant(value));
  row("wall time", duration(r.wall_s) + since);
  row("time spent", where_time_went(r));
  if (r.ranks > 1) row("bytes sent", bytes_text(r.bytes_sent) + " by all ranks" + since);
  if (!r.peak_rss_mb.empty()) row("peak memory", memory_text(r));
  return out;
}

}  // namespace starling
