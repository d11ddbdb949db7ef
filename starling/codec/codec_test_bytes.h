// The bytes of an exchange of codecs by docs/reference/codecs.md, and their comparison with the bytes that a
// group counts.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/codec/codec_reference.h"
#include "starling/codec/compressed_all_reduce.h"
#include "starling/codec/make_codec.h"
#include "starling/testing/counted_bytes.h"

namespace starling {

// Returns where each part of a range begins, and its end: parts meet at multiples of 16 values.
inline std::vector<size_t> cuts_reference(size_t count, size_t ranks) {
  const size_t blocks = (count + 15) / 16;
  std::vector<size_t> cuts;
  for (size_t r = 0; r <= ranks; ++r) cuts.push_back(std::min(count, r * blocks / ranks * 16));
  return cuts;
}

// Returns the bytes that all ranks send by docs/reference/codecs.md.
inline uint64_t bytes_by_formula(const std::string& word, const std::vector<TensorShape>& shapes,
                                 size_t count, size_t p) {
  const CodecSpec spec = parse_codec(word);
  const auto whole = make_codec(spec, shapes);
  const auto cuts = cuts_reference(count, p);
  if (spec.kind == CodecKind::kNone || word.ends_with(":rank=4")) {
    // The values of P with the vectors, and of Q, each padded to a multiple of p: 2 (p - 1)/p b per rank.
    uint64_t values = (count + p - 1) / p * p;
    const uint64_t bytes = word.starts_with("lowrank+") ? 2 : 4;
    if (spec.kind == CodecKind::kLowRank)
      values = (4 * 200 + 500 + p - 1) / p * p + (4 * 300 + p - 1) / p * p;
    return 2 * (p - 1) * bytes * values;
  }
  if (!whole->fixed_rate()) {
    uint64_t longest = 0, parts = 0, longest_part = 0;
    for (size_t r = 0; r < p; ++r) {
      const Values x = test_values(count, static_cast<unsigned>(r));
      longest = std::max<uint64_t>(longest, message_of(*whole, x).size());
      for (size_t part = 0; part < p; ++part) {
        const auto of_part = std::span(x).subspan(cuts[part], cuts[part + 1] - cuts[part]);
        if (part != r) parts += message_of(*whole, of_part).size();
        longest_part = std::max<uint64_t>(longest_part, of_part.size());
      }
    }
    const uint64_t gathered = p * (p - 1) * (8 + longest);
    const bool scattered = 8 + longest / p + 4 * longest_part < longest;
    return scattered ? p * (p - 1) * (8 + 8 + 4 * longest_part) + parts : gathered;
  }
  if (p == 2 || spec.kind == CodecKind::kLowRank) return p * (p - 1) * whole->encoded_bytes(count);
  uint64_t all = 0, longest = 0;
  for (size_t part = 0; part < p; ++part) {
    const uint64_t b = make_codec(spec)->encoded_bytes(cuts[part + 1] - cuts[part]);
    all += b;
    longest = std::max(longest, b);
  }
  return (p - 1) * (all + p * longest);
}

// Exchanges `count` values by several codecs, among them each way in which messages travel. All ranks call
// it. Errors: CommError that names the first codec whose counted bytes are not those of the formula.
inline void check_codec_bytes(Group& group, size_t count) {
  const auto p = static_cast<size_t>(group.size());
  for (const std::string word : {"none", "fp16", "int8", "1bit", "prune", "prune:keep=0.5"}) {
    CompressedAllReduce exchange(group, parse_codec(word), {}, count);
    Values data = test_values(count, static_cast<unsigned>(group.rank()));
    const Counted counted = counted_bytes(group, word, [&] { exchange.apply(data); });
    const uint64_t formula = bytes_by_formula(word, {}, count, p);
    if (counted.sent != formula || exchange.sent() != counted.own)
      throw CommError(
          fmt::format("{} of {} values on {} ranks: all ranks count {} bytes, and the formula has "
                      "{}; this rank counts {}, and the exchange {}",
                      word, count, p, counted.sent, formula, counted.own, exchange.sent()));
  }
}

}  // namespace starling
