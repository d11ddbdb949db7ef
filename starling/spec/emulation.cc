#include "starling/spec/emulation.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <optional>

#include "starling/base/error.h"

namespace starling {
namespace {

[[noreturn]] void refuse(const std::string& part) {
  throw ConfigError(
      "train.emulate",
      fmt::format(
          "\"{}\" is not an emulation. Write slow-rank=1:2x (rank 1 takes twice as long), jitter=4x@10% "
          "(one step in ten takes four times as long), compute=20ms (forward and backward take at least 20 "
          "ms), bandwidth=1gbit (kbit, mbit, gbit), latency=5ms (us, ms, s) or loss=0.1%. Separate several "
          "with commas",
          part));
}

struct Unit {
  const char* name;
  double factor;
};

// Returns the value of "5ms" in the base of the units, or nothing if the text has another form or is not
// positive.
std::optional<double> measure(const std::string& text, std::initializer_list<Unit> units) {
  double number = 0;
  int used = 0;
  if (std::sscanf(text.c_str(), "%lf%n", &number, &used) != 1 || !(number > 0 && number < 1e12))
    return std::nullopt;
  for (const Unit& unit : units) {
    if (text.compare(static_cast<size_t>(used), std::string::npos, unit.name) == 0)
      return number * unit.factor;
  }
  return std::nullopt;
}

// Parses bandwidth=, latency=, loss= and compute=. Returns false for any other text.
bool parse_measured(const std::string& part, Emulation& result) {
  const size_t equals = part.find('=');
  if (equals == std::string::npos) return false;
  const std::string key = part.substr(0, equals), value = part.substr(equals + 1);
  std::optional<double> found;
  if (key == "bandwidth") {
    found = measure(value, {{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}});
    result.bandwidth = found.value_or(0);
  } else if (key == "latency") {
    found = measure(value, {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}});
    result.latency_s = found.value_or(0);
  } else if (key == "compute") {
    found = measure(value, {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}});
    result.compute_s = found.value_or(0);
  } else if (key == "loss") {
    found = measure(value, {{"%", 0.01}});
    result.loss = found.value_or(0);
    if (found && *found >= 1) refuse(part);
  }
  return found.has_value();
}

void parse_part(const std::string& part, Emulation& result) {
  int used = 0, rank = 0;
  double factor = 0, percent = 0;
  const auto whole = [&] { return used > 0 && static_cast<size_t>(used) == part.size(); };
  if (std::sscanf(part.c_str(), "slow-rank=%d:%lfx%n", &rank, &factor, &used) == 2 && whole()) {
    if (rank < 0 || !(factor >= 1) || !std::isfinite(factor)) refuse(part);
    result.slow_ranks.push_back({rank, factor});
    return;
  }
  used = 0;
  if (std::sscanf(part.c_str(), "jitter=%lfx@%lf%%%n", &factor, &percent, &used) == 2 && whole()) {
    if (!(factor >= 1) || !std::isfinite(factor) || !(percent > 0 && percent <= 100)) refuse(part);
    result.jitter_factor = factor;
    result.jitter_share = percent / 100;
    return;
  }
  if (!parse_measured(part, result)) refuse(part);
}

}  // namespace

Emulation parse_emulation(const std::string& text) {
  Emulation result;
  for (size_t begin = 0; begin < text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    parse_part(text.substr(begin, comma - begin), result);
    begin = comma + 1;
  }
  return result;
}

}  // namespace starling
