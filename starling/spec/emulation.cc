#include "starling/spec/emulation.h"

#include <fmt/format.h>

#include <cstdio>

#include "starling/base/error.h"

namespace starling {
namespace {

[[noreturn]] void refuse(const std::string& part) {
  throw ConfigError(
      "train.emulate",
      fmt::format(
          "\"{}\" is no emulation: write slow-rank=1:2x (rank 1 takes twice as long) or jitter=4x@10% "
          "(a step in ten takes four times as long), several between commas",
          part));
}

void parse_part(const std::string& part, Emulation& result) {
  int used = 0, rank = 0;
  double factor = 0, percent = 0;
  const auto whole = [&] { return used > 0 && static_cast<size_t>(used) == part.size(); };
  if (std::sscanf(part.c_str(), "slow-rank=%d:%lfx%n", &rank, &factor, &used) == 2 && whole()) {
    if (rank < 0 || !(factor >= 1)) refuse(part);
    result.slow_ranks.push_back({rank, factor});
    return;
  }
  used = 0;
  if (std::sscanf(part.c_str(), "jitter=%lfx@%lf%%%n", &factor, &percent, &used) == 2 && whole()) {
    if (!(factor >= 1) || !(percent > 0 && percent <= 100)) refuse(part);
    result.jitter_factor = factor;
    result.jitter_share = percent / 100;
    return;
  }
  refuse(part);
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
