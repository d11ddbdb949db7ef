#include "starling/lbfgs/samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cmath>
#include <fstream>
#include <numbers>
#include <string_view>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"

namespace starling {
namespace {

bool separates(char c) {
  return c == ',' || c == ';' || c == '\t' || c == ' ' || c == '\r';
}

// Appends the numbers of a line. Returns false if the line has something else.
bool take_numbers(std::string_view line, std::vector<double>& numbers) {
  const char* at = line.data();
  const char* const end = at + line.size();
  for (;;) {
    while (at != end && separates(*at)) ++at;
    if (at == end) return true;
    double value = 0;
    const auto [after, error] = std::from_chars(at, end, value);
    if (error != std::errc() || (after != end && !separates(*after)) || !std::isfinite(value)) return false;
    numbers.push_back(value);
    at = after;
  }
}

// A first line that begins with a number is a sample.
bool is_heading(std::string_view line) {
  const size_t first = line.find_first_not_of(",; \t\r");
  if (first == std::string_view::npos) return false;
  const char c = line[first];
  return std::isdigit(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '.';
}

// A standard normal number that is a function of the key (Box and Muller).
double normal_of(uint64_t seed, int64_t a, int64_t b) {
  const uint64_t bits = key_of(seed, static_cast<uint64_t>(a), static_cast<uint64_t>(b));
  const double u = uniform_of(bits), v = uniform_of(mix64(bits + kGolden));
  return std::sqrt(-2 * std::log1p(-u)) * std::cos(2 * std::numbers::pi * v);
}

}  // namespace

SampleTable read_csv_samples(const std::string& path, LabelColumn label) {
  std::ifstream file(path);
  if (!file) throw DataError(fmt::format("{}: cannot be opened; check the path and its permissions", path));
  SampleTable table;
  table.name = path;
  std::string line;
  std::vector<double> numbers;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    numbers.clear();
    const bool read = take_numbers(line, numbers);
    if (read && numbers.empty()) continue;
    if (!read && number == 1 && is_heading(line)) continue;
    if (!read)
      throw DataError(fmt::format("{}: line {}: \"{}\" has something that is not a finite number", path,
                                  number, line.substr(0, 60)));
    const auto features = static_cast<int64_t>(numbers.size()) - 1;
    if (table.labels.empty()) table.features = features;
    if (features < 1 || features != table.features)
      throw DataError(fmt::format("{}: line {}: {} numbers, but a sample has {} features and a label", path,
                                  number, numbers.size(), std::max<int64_t>(1, table.features)));
    const auto where = label == LabelColumn::kFirst ? numbers.begin() : numbers.end() - 1;
    table.labels.push_back(*where);
    numbers.erase(where);
    table.values.insert(table.values.end(), numbers.begin(), numbers.end());
  }
  if (file.bad()) throw DataError(fmt::format("{}: cannot be read to its end", path));
  return table;
}

SampleTable make_samples(const GeneratedSamples& spec) {
  if (spec.count < 1 || spec.features < 1)
    throw ConfigError("--samples", fmt::format("{} samples with {} features: use at least 1 of each",
                                               spec.count, spec.features));
  SampleTable table;
  table.name = "generated samples";
  table.features = spec.features;
  table.values.reserve(static_cast<size_t>(spec.count * spec.features));
  table.labels.reserve(static_cast<size_t>(spec.count));
  const double scale = 2 / std::sqrt(static_cast<double>(spec.features));
  for (int64_t i = 0; i < spec.count; ++i) {
    double z = 0;
    for (int64_t j = 0; j < spec.features; ++j) {
      // Features of unequal sizes make steepest descent slow, as in real data.
      const double size = 1 / (1 + 9.0 * static_cast<double>(j) / static_cast<double>(spec.features));
      const double x = size * normal_of(spec.seed, i + 1, j);
      table.values.push_back(x);
      z += scale * x / size * normal_of(spec.seed, 0, j);
    }
    const double draw = uniform_of(key_of(spec.seed ^ 0x1abe1, static_cast<uint64_t>(i), 0));
    table.labels.push_back(draw < 1 / (1 + std::exp(-z)) ? 1 : 0);
  }
  return table;
}

void make_binary(SampleTable& table, std::optional<double> positive) {
  if (table.labels.empty() || table.features < 1)
    throw DataError(fmt::format("{}: no samples; give at least two with different labels", table.name));
  int64_t ones = 0;
  for (size_t i = 0; i < table.labels.size(); ++i) {
    double& label = table.labels[i];
    if (positive) label = label == *positive ? 1 : 0;
    if (label != 0 && label != 1)
      throw DataError(
          fmt::format("{}: sample {} has the label {}, which is neither 0 nor 1; --positive K makes "
                      "1 of the label K and 0 of all other labels",
                      table.name, i + 1, label));
    ones += label == 1 ? 1 : 0;
  }
  if (ones == 0 || ones == table.count())
    throw DataError(fmt::format("{}: all {} labels are {}; both labels must occur", table.name, table.count(),
                                ones == 0 ? 0 : 1));
  for (size_t i = 0; i < table.values.size(); ++i) {
    if (!std::isfinite(table.values[i]))
      throw DataError(fmt::format("{}: sample {} has a feature that is not finite", table.name,
                                  static_cast<int64_t>(i) / table.features + 1));
  }
}

uint64_t hash_of(const SampleTable& table) {
  uint64_t hash = mix64(static_cast<uint64_t>(table.features) + kGolden);
  for (const auto* numbers : {&table.values, &table.labels})
    for (const double x : *numbers) hash = mix64(hash + kGolden + std::bit_cast<uint64_t>(x));
  return hash;
}

}  // namespace starling
