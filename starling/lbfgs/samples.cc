#include "starling/lbfgs/samples.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <fstream>
#include <new>
#include <numbers>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/base/unopened_file.h"

namespace starling {
namespace {

// Numbers of a generated table. Every rank holds all of them.
constexpr int64_t kMostNumbers = int64_t{1} << 36;

constexpr std::string_view kBlanks = " \t\r";

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

// Returns the number that is the whole text, which may be NaN or infinite.
std::optional<double> number_of(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Returns the character between the fields of a line. A blank stands for any number of blanks.
char separator_of(std::string_view line) {
  for (const char c : {',', ';', '\t'})
    if (line.find(c) != std::string_view::npos) return c;
  return ' ';
}

// Returns the fields of a trimmed line, without the blanks around them.
std::vector<std::string_view> fields_of(std::string_view line, char separator) {
  std::vector<std::string_view> fields;
  for (;;) {
    const size_t end = line.find(separator);
    fields.push_back(trimmed(line.substr(0, end)));
    if (end == std::string_view::npos) return fields;
    line.remove_prefix(end + 1);
    if (separator == ' ') line = trimmed(line);
  }
}

const char* name_of(char separator) {
  return separator == ','    ? "commas"
         : separator == ';'  ? "semicolons"
         : separator == '\t' ? "tabs"
                             : "blanks";
}

// A line without any number is a heading.
bool is_heading(std::string_view line) {
  for (const std::string_view field : fields_of(line, separator_of(line)))
    if (number_of(field)) return false;
  return true;
}

// Reads the samples of a file line by line.
class CsvReader {
 public:
  CsvReader(const std::string& path, LabelColumn label) : label_(label) { table_.name = path; }

  // line: without the end of the line.
  void take(std::string_view line) {
    ++number_;
    if (number_ == 1 && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);  // byte order mark
    line = trimmed(line);
    if (line.empty()) return;
    if (std::exchange(first_, false) && is_heading(line)) return;
    if (table_.labels.empty()) separator_ = separator_of(line);
    read_numbers(line);
    const auto features = std::ssize(numbers_) - 1;
    if (table_.labels.empty()) table_.features = features;
    if (features < 1 || features != table_.features)
      throw DataError(fmt::format("{}: line {}: {} numbers, but a sample has {} features and a label",
                                  table_.name, number_, numbers_.size(),
                                  std::max<int64_t>(1, table_.features)));
    const auto where = label_ == LabelColumn::kFirst ? numbers_.begin() : numbers_.end() - 1;
    table_.labels.push_back(*where);
    numbers_.erase(where);
    table_.values.insert(table_.values.end(), numbers_.begin(), numbers_.end());
  }

  SampleTable table() { return std::move(table_); }

 private:
  void read_numbers(std::string_view line) {
    numbers_.clear();
    for (const std::string_view field : fields_of(line, separator_)) {
      const std::optional<double> value = number_of(field);
      if (value && std::isfinite(*value)) {
        numbers_.push_back(*value);
        continue;
      }
      throw DataError(fmt::format(
          "{}: line {}: column {} {}. The file has {} between its numbers, and a point in a number",
          table_.name, number_, numbers_.size() + 1,
          field.empty()        ? "is empty"
          : field.front() == 0 ? "has a zero byte"
                               : fmt::format("has \"{}\", which is no finite number",
                                             field.substr(0, std::min<size_t>(60, field.find('\0')))),
          name_of(separator_)));
    }
  }

  const LabelColumn label_;
  SampleTable table_;
  std::vector<double> numbers_;
  int64_t number_ = 0;  // of the line
  bool first_ = true;   // there was no line with text so far
  char separator_ = ',';
};

// Returns the first labels in increasing order, for a message.
std::string labels_text(const SampleTable& table) {
  constexpr size_t kMost = 10;
  const std::set<double> labels(table.labels.begin(), table.labels.end());
  std::vector<double> shown(labels.begin(), labels.end());
  shown.resize(std::min(kMost, shown.size()));
  return fmt::format("{}{}", fmt::join(shown, ", "), labels.size() > kMost ? ", …" : "");
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
  if (!file) throw unopened_file(path);
  CsvReader reader(path, label);
  for (std::string line; std::getline(file, line);) reader.take(line);
  if (file.bad()) throw DataError(fmt::format("{}: cannot be read to its end", path));
  return reader.table();
}

SampleTable make_samples(const GeneratedSamples& spec) {
  if (spec.count < 1 || spec.features < 1)
    throw ConfigError("--samples", fmt::format("{} samples with {} features: use at least 1 of each",
                                               spec.count, spec.features));
  if (spec.count > kMostNumbers / spec.features)
    throw ConfigError("--samples",
                      fmt::format("{} samples of {} features take more than {} GiB per rank; give "
                                  "smaller --samples or --features",
                                  spec.count, spec.features, kMostNumbers >> 27));
  SampleTable table;
  table.name = "generated samples";
  table.features = spec.features;
  try {
    table.values.reserve(static_cast<size_t>(spec.count * spec.features));
    table.labels.reserve(static_cast<size_t>(spec.count));
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::kMemory,
                fmt::format("{} samples of {} features do not fit into memory; give smaller --samples or "
                            "--features",
                            spec.count, spec.features));
  }
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
  if (positive && std::find(table.labels.begin(), table.labels.end(), *positive) == table.labels.end())
    throw DataError(fmt::format("{}: no sample has the label {} of --positive; labels are {}", table.name,
                                *positive, labels_text(table)));
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
