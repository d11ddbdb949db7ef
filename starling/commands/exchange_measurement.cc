#include "starling/commands/exchange_measurement.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "starling/base/clock.h"
#include "starling/launch/child_program.h"

namespace starling {
namespace {

constexpr int kExchangeRanks[] = {2, 4, 8};
// The emulated link. It is slow enough for two cores to keep eight links busy. Of 1514 bytes on the wire,
// 1448 are data.
constexpr const char* kExchangeLink = "bandwidth=100mbit";
constexpr double kGoodput = 100e6 / 8 * 1448 / 1514;

struct ShownCurve {
  const char* algorithm;
  const char* name;
};
constexpr ShownCurve kShownCurves[] = {{"star", "star"}, {"binomial-tree", "tree"}, {"ring", "ring"}};

// Returns the seconds of an exchange by algorithm.
std::map<std::string, double> exchange_seconds(int ranks, double bytes, const std::string& program) {
  std::map<std::string, double> seconds;
  const std::string size = fmt::format("{}", std::max<int64_t>(4096, std::llround(bytes)));
  ChildProgram child;
  child.argv = {program,      "bench", "comm",      "--json", "-q",        "-n", std::to_string(ranks),
                "--smallest", size,    "--largest", size,     "--seconds", "3",  "--emulate",
                kExchangeLink};
  child.environment = ::environ;
  child.on_line = [&](const std::string& line) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.value("event", "") == "collective_timing" &&
        json.value("collective", "") == "all-reduce" && json.value("errors", 1) == 0)
      seconds[json.value("algorithm", "")] = json.value("median_us", 0.0) * 1e-6;
    return true;
  };
  const SystemClock clock;
  run_child(child, clock);
  return seconds;
}

}  // namespace

void measure_exchanges(Comparison& comparison, double bytes, const std::string& program) {
  comparison.exchange_bytes = bytes;
  comparison.exchange_bytes_per_s = kGoodput;
  std::map<std::string, ExchangeCurve> curves;
  for (const int ranks : kExchangeRanks) {
    for (const auto& [algorithm, seconds] : exchange_seconds(ranks, bytes, program)) {
      if (seconds > 0) curves[algorithm].seconds.emplace_back(ranks, seconds);
    }
  }
  for (const ShownCurve& shown : kShownCurves) {
    const auto curve = curves.find(shown.algorithm);
    if (curve == curves.end()) continue;
    curve->second.name = shown.name;
    comparison.exchanges.push_back(curve->second);
  }
}

}  // namespace starling
