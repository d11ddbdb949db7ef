#include "starling/place/device_text.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <string_view>

#include "starling/base/error.h"

namespace starling {
namespace {

[[noreturn]] void refuse(const std::string& text, std::string_view part) {
  throw ConfigError(
      "--devices",
      fmt::format("\"{}\" in \"{}\" is no device; write speeds above 0 with optional memories, for "
                  "example 1:16GB,0.5",
                  part, text));
}

// Returns the number at the beginning of `part` and removes it. Returns 0 if there is none.
double take_number(std::string_view& part) {
  double number = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
  if (error != std::errc() || !std::isfinite(number)) return 0;
  part.remove_prefix(static_cast<size_t>(end - part.data()));
  return number;
}

double unit_of(std::string_view unit) {
  if (unit == "kB") return 1e3;
  if (unit == "MB") return 1e6;
  if (unit == "GB") return 1e9;
  return 0;
}

}  // namespace

std::vector<PlacementDevice> parse_devices(const std::string& text) {
  std::vector<PlacementDevice> devices;
  std::string_view left = text;
  while (true) {
    const size_t comma = left.find(',');
    const std::string_view part = left.substr(0, comma);
    std::string_view rest = part;
    PlacementDevice device{fmt::format("device {}", devices.size()), take_number(rest)};
    if (!(device.speed > 0)) refuse(text, part);
    if (!rest.empty()) {
      if (rest.front() != ':') refuse(text, part);
      rest.remove_prefix(1);
      const double number = take_number(rest);
      device.memory_bytes = number * unit_of(rest);
      if (!(device.memory_bytes > 0)) refuse(text, part);
    }
    devices.push_back(device);
    if (devices.size() > kMostDevices)
      throw ConfigError("--devices", fmt::format("names more than {} devices", kMostDevices));
    if (comma == std::string_view::npos) return devices;
    left.remove_prefix(comma + 1);
  }
}

}  // namespace starling
