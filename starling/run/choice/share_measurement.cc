#include "starling/run/choice/share_measurement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <utility>

#include "starling/base/error.h"
#include "starling/data/divide_samples.h"
#include "starling/run/ranks/broadcast_text.h"
#include "starling/spec/batch_share.h"

namespace starling {
namespace {

// The clock may show no time for a very small step.
constexpr double kLeastSeconds = 1e-9;
// The largest number of ranks that a message lists.
constexpr size_t kListed = 8;

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<double> speeds_of(const std::vector<int64_t>& shares, const std::vector<double>& seconds) {
  std::vector<double> speeds;
  speeds.reserve(shares.size());
  for (size_t r = 0; r < shares.size(); ++r)
    speeds.push_back(static_cast<double>(shares[r]) / std::max(kLeastSeconds, seconds[r]));
  return speeds;
}

}  // namespace

std::vector<int64_t> shares_by_speed(const std::vector<int64_t>& shares, const std::vector<double>& seconds,
                                     int64_t least) {
  const int64_t batch = std::accumulate(shares.begin(), shares.end(), int64_t{0});
  std::vector<double> speeds = speeds_of(shares, seconds);
  const auto [slowest, fastest] = std::minmax_element(speeds.begin(), speeds.end());
  if (*fastest < ShareMeasurement::kEqual * *slowest) speeds.assign(speeds.size(), 1);
  return divide_samples(batch, speeds, least);
}

ShareMeasurement::ShareMeasurement(std::vector<int64_t> shares, int64_t least, Group& group)
    : shares_(std::move(shares)), least_(least), group_(group) {}

bool ShareMeasurement::add(double compute_s) {
  if (++steps_ > kSkipped) seconds_.push_back(compute_s);
  if (std::ssize(seconds_) < kMeasured) return false;
  const double own = median(std::move(seconds_));
  std::vector<double> all(shares_.size(), own);
  if (group_.size() > 1) all_gather(group_, &own, all.data(), 1, DataType::kFp64);
  speeds_ = speeds_of(shares_, all);
  shares_ = shares_by_speed(shares_, all, least_);
  seconds_.clear();
  steps_ = 0;
  ++rounds_;
  return true;
}

Message ShareMeasurement::begins() {
  return {Severity::kInfo, -1,
          fmt::format("share: the ranks measure their computation in the next {} steps", kSteps)};
}

Message ShareMeasurement::message() const {
  const auto [slowest, fastest] = std::minmax_element(speeds_.begin(), speeds_.end());
  const std::string ratio =
      fmt::format("rank {} computes {:.2f} times as many samples per second as rank {}",
                  fastest - speeds_.begin(), *fastest / *slowest, slowest - speeds_.begin());
  const auto [least, most] = std::minmax_element(shares_.begin(), shares_.end());
  const std::string shares = shares_.size() <= kListed
                                 ? fmt::format("{} samples of a step by rank", fmt::join(shares_, ", "))
                                 : fmt::format("{} (rank {}) to {} (rank {}) samples of a step", *least,
                                               least - shares_.begin(), *most, most - shares_.begin());
  return {Severity::kInfo, -1,
          fmt::format("share: {}; the ranks {} {}", ratio, done() ? "keep" : "measure again with", shares)};
}

bool measures_shares(const RunSpec& spec, const Choices& choices, const Group& group) {
  return parse_batch_share(spec.data.share).measured && choices.count("share") == 0 && group.size() > 1;
}

std::vector<double> known_parts(const RunSpec& spec, const Choices& choices) {
  const BatchShare share = parse_batch_share(spec.data.share);
  if (!share.measured) {
    const auto given = std::ssize(share.parts);
    if (given != 0 && given != spec.train.ranks)
      throw ConfigError("data.share", fmt::format("{} parts for {} ranks: give one number for each rank",
                                                  given, spec.train.ranks));
    return share.parts;
  }
  const auto chosen = choices.find("share");
  if (chosen == choices.end()) return {};
  std::vector<double> parts;
  std::istringstream words(chosen->second);
  for (std::string word; std::getline(words, word, ',');) parts.push_back(std::strtod(word.c_str(), nullptr));
  // A rank that was lost before the checkpoint has 0 samples there.
  const bool fits =
      std::ssize(parts) == spec.train.ranks && *std::min_element(parts.begin(), parts.end()) > 0;
  return fits ? parts : std::vector<double>();
}

void agree_on_shares(const RunSpec& spec, Group& group, Choices& choices, std::vector<double>& parts) {
  if (!parse_batch_share(spec.data.share).measured) return;
  const auto chosen = choices.find("share");
  nlohmann::json own = {{"chosen", chosen == choices.end() ? "" : chosen->second}, {"parts", parts}};
  const auto agreed = nlohmann::json::parse(broadcast_text(group, own.dump()));
  parts = agreed.at("parts").get<std::vector<double>>();
  choices.erase("share");
  const auto text = agreed.at("chosen").get<std::string>();
  if (!text.empty()) choices["share"] = text;
}

std::vector<double> parts_of_remaining(const std::vector<double>& parts, const std::vector<int>& remaining) {
  std::vector<double> own;
  if (parts.empty()) return own;
  own.reserve(remaining.size());
  for (const int rank : remaining) own.push_back(parts.at(static_cast<size_t>(rank)));
  return own;
}

std::vector<int64_t> shares_of_remaining(const RunSpec& spec, const std::vector<double>& parts,
                                         const std::vector<int>& remaining) {
  std::vector<double> own = parts_of_remaining(parts, remaining);
  if (own.empty()) own.assign(remaining.size(), 1);
  return divide_samples(spec.train.global_batch, own, least_samples(spec));
}

std::vector<int64_t> shares_of_ranks(const RunSpec& spec, const std::vector<int64_t>& shares,
                                     const std::vector<int>& remaining) {
  std::vector<int64_t> all(static_cast<size_t>(spec.train.ranks));
  for (size_t i = 0; i < remaining.size(); ++i) all.at(static_cast<size_t>(remaining[i])) = shares[i];
  return all;
}

std::vector<int64_t> shares_of_run(const RunSpec& spec, const std::vector<double>& parts,
                                   const std::vector<int>& remaining) {
  if (parts.empty()) return {};
  return shares_of_ranks(spec, shares_of_remaining(spec, parts, remaining), remaining);
}

std::string shares_text(const std::vector<int64_t>& shares) {
  return fmt::format("{}", fmt::join(shares, ","));
}

}  // namespace starling
