#include "starling/spec/batch_share.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "starling/base/error.h"

namespace starling {
namespace {

// The largest ratio of two parts. It keeps the products of parts and batches exact enough.
constexpr double kLargestRatio = 1e6;

[[noreturn]] void refuse_share(const std::string& text, const std::string& why) {
  throw ConfigError(
      "data.share",
      fmt::format("\"{}\" is no division of a step's samples: {}. Write auto, or one number above 0 for each "
                  "rank, such as 2,1",
                  text, why));
}

double parse_share_of_rank(const std::string& text, const std::string& part) {
  double value = 0;
  const char* end = part.data() + part.size();
  const auto [stop, error] = std::from_chars(part.data(), end, value);
  if (error != std::errc() || stop != end) refuse_share(text, "\"" + part + "\" is not a number");
  if (!std::isfinite(value) || value <= 0) refuse_share(text, "\"" + part + "\" is not a number above 0");
  return value;
}

}  // namespace

BatchShare parse_batch_share(const std::string& text) {
  BatchShare share;
  if (text.empty()) return share;
  if (text == "auto") {
    share.measured = true;
    return share;
  }
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    share.parts.push_back(parse_share_of_rank(text, text.substr(begin, comma - begin)));
    begin = comma + 1;
  }
  const auto [least, most] = std::minmax_element(share.parts.begin(), share.parts.end());
  if (*most > kLargestRatio * *least)
    refuse_share(text, "one part is more than 1,000,000 times as large as another");
  return share;
}

bool has_unequal_shares(const RunSpec& spec) {
  return !spec.data.share.empty();
}

int64_t least_samples(const RunSpec& spec) {
  const bool split = spec.train.threads_mode == ThreadsMode::kBatch;
  return spec.train.accumulate * (split ? std::max<int64_t>(1, spec.train.threads) : 1);
}

}  // namespace starling
