#include "starling/report/why.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "starling/base/error.h"
#include "starling/spec/config.h"
#include "starling/spec/emulation.h"
#include "starling/spec/mesh.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr int kBeside = 32;  // the column at which explanations begin
// A smaller share is not worth a line of its own in the text.
constexpr double kShown = 0.0005;
constexpr double kLateShown = 0.02;

// Reads the configuration of a run folder. Returns nothing if there is none, or if it cannot be used.
std::optional<RunSpec> configuration_of(const fs::path& folder) {
  const fs::path file = folder / "config.toml";
  std::error_code none;
  if (!fs::is_regular_file(file, none)) return std::nullopt;  // a pipe would block the reader
  try {
    Config config;
    apply_toml_file(config, file.string());
    parse_mesh(config.spec.train.mesh, config.spec.train.ranks);
    parse_emulation(config.spec.train.emulate);
    return config.spec;
  } catch (const Error&) {  // of another version, or edited; the answer says what is missing
    return std::nullopt;
  }
}

std::string plural(int64_t count, const char* one) {
  return fmt::format("{} {}{}", with_thousands(count), one, count == 1 ? "" : "s");
}

std::string first_line(const RunAnswer& answer) {
  const TimeAccount& a = answer.account;
  std::string text = fmt::format("{}: {} in {} on {}", answer.folder, plural(a.steps, "step"),
                                 duration(a.wall_s), plural(a.started.ranks, "rank"));
  if (a.hosts > 1) text += fmt::format(" of {}", plural(a.hosts, "host"));
  if (a.starts > 1) text += fmt::format(", {}", plural(a.starts, "start"));
  if (!a.ended) return text + ". The run is still training, or its processes were killed.";
  return text + (a.interrupted ? ". The run was interrupted." : "");
}

std::string late_text(const LateRank& late) {
  const std::string who = fmt::format("rank {}{}", late.rank, late.host.empty() ? "" : " on " + late.host);
  const std::string times =
      late.slowness > 0 ? fmt::format(" ({:.1f} times as long as another rank)", late.slowness) : "";
  return fmt::format("for {}, which {}{}", who, late.by_data ? "waits for its data" : "computes longer",
                     times);
}

std::string phases_text(const TimeAccount& a) {
  if (!a.phases_known) return "its phases are unknown";
  std::string text;
  for (const auto& [phase, seconds] : a.phases) {
    if (seconds < kShown * a.wall_s) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", phase, percent(seconds / a.wall_s));
  }
  if (!text.empty() && a.of(TimeUse::kWaiting) > 0) text = "waiting included: " + text;
  return text;
}

// Returns what stands beside the seconds of a category.
std::string beside(const TimeAccount& a, TimeUse use) {
  switch (use) {
    case TimeUse::kWaiting:
      return a.late && a.late->share >= kLateShown ? late_text(*a.late) : "";
    case TimeUse::kExchange:
      return phases_text(a);
    case TimeUse::kOther:
      return "what the run did not measure";
    default:
      return "";
  }
}

std::string one_process_text(const TimeAccount& a) {
  if (!a.one_process_s) return a.one_process_why;
  const std::string times =
      a.wall_s > 0 ? fmt::format(", {:.2f} times as long as this run", *a.one_process_s / a.wall_s) : "";
  return fmt::format("about {}{}. {}", duration(*a.one_process_s), times, a.one_process_why);
}

}  // namespace

RunAnswer why(const std::string& folder) {
  const RunTimes times = read_run_times(folder);
  RunAnswer answer{folder, account_of(times, configuration_of(folder)), {}};
  if (answer.account.spec) answer.account.spec->run.dir = folder;
  answer.advice = choose_advice(answer.account);
  return answer;
}

std::string to_text(const RunAnswer& answer, bool color, int columns) {
  const TimeAccount& a = answer.account;
  std::string out = paint(color, Color::kBold, printable(first_line(answer))) + "\n";
  for (int i = 0; i < kTimeUses; ++i) {
    const auto use = static_cast<TimeUse>(i);
    if (a.share(use) < kShown) continue;
    const std::string numbers = fmt::format("{:>8} {:>8}", percent(a.share(use)), duration(a.of(use)));
    out += "  " + paint(color, Color::kDim, fmt::format("{:<11}", name_of(use))) + numbers + "  ";
    out += wrapped(printable(beside(a, use)), columns, kBeside, kBeside);
    out.erase(out.find_last_not_of(' ') + 1);
    out += "\n";
  }
  // The leading rank is the one that the other ranks wait for.
  if (a.late && a.late->share >= kLateShown && a.share(TimeUse::kWaiting) < kShown)
    out += "  " +
           wrapped(printable(fmt::format("The other ranks wait {} of the time {}.", percent(a.late->share),
                                         late_text(*a.late))),
                   columns, 2, 2) +
           "\n";
  const auto paragraph = [&](const std::string& title, const std::string& text) {
    const int used = static_cast<int>(title.size()) + 2;
    out += paint(color, Color::kBold, title + ":") + " " + wrapped(printable(text), columns, used, 2) + "\n";
  };
  paragraph("One process", one_process_text(a));
  if (answer.advice.rule.empty()) {
    paragraph("Try first", "nothing: no rule applies to this run.");
  } else {
    const Advice& advice = answer.advice.advice;
    out += paint(color, Color::kBold, "Try first:") + " " +
           paint(color, Color::kGreen, printable(advice.what)) + "\n  " +
           wrapped(printable(advice.why), columns, 2, 2) + "\n";
  }
  for (const std::string& text : a.missing) paragraph("Note", text);
  return out;
}

std::string to_json(const RunAnswer& answer) {
  const TimeAccount& a = answer.account;
  OrderedJson out = {{"event", "why"},           {"run_dir", answer.folder}, {"model", a.started.model},
                     {"ranks", a.started.ranks}, {"hosts", a.hosts},         {"starts", a.starts},
                     {"steps", a.steps},         {"ended", a.ended},         {"interrupted", a.interrupted},
                     {"wall_s", a.wall_s}};
  OrderedJson& time = out["time"] = OrderedJson::object();
  for (int i = 0; i < kTimeUses; ++i) time[key_of(static_cast<TimeUse>(i))] = a.seconds[i];
  out["phases"] = a.phases_known ? OrderedJson(a.phases) : OrderedJson(nullptr);
  if (a.late) {
    out["late_rank"] = {{"rank", a.late->rank},
                        {"share", a.late->share},
                        {"cause", a.late->by_data ? "data" : "computation"}};
    if (a.late->slowness > 0) out["late_rank"]["slowness"] = a.late->slowness;
    if (!a.late->host.empty()) out["late_rank"]["host"] = a.late->host;
  }
  OrderedJson& one = out["one_process"] = OrderedJson::object();
  if (a.one_process_s) one["seconds"] = *a.one_process_s;
  one["how"] = a.one_process_why;
  if (!answer.advice.rule.empty()) {
    const Advice& advice = answer.advice.advice;
    out["advice"] = {
        {"rule", answer.advice.rule}, {"share", advice.gain}, {"try", advice.what}, {"why", advice.why}};
  }
  out["missing"] = a.missing;
  return out.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace starling
