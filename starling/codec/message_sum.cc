#include "starling/codec/message_sum.h"

#include <fmt/format.h>

#include "starling/base/error.h"

namespace starling {
namespace {

// Calls `decode` and adds the sender to its error.
template <typename Decode>
void decode_of(size_t rank, const Decode& decode) {
  try {
    decode();
  } catch (const CommError& error) {
    throw CommError(fmt::format("from rank {}: {}", rank, error.what()), static_cast<int>(rank));
  }
}

void divide_by(std::span<float> values, size_t ranks) {
  if (ranks == 1) return;
  const auto divisor = static_cast<float>(ranks);
  for (float& x : values) x /= divisor;
}

}  // namespace

void mean_of_messages(const Codec& codec, std::span<const std::byte> messages, std::span<const size_t> bytes,
                      size_t stride, std::span<float> out) {
  size_t at = 0;
  for (size_t r = 0; r < bytes.size(); ++r) {
    const auto message = messages.subspan(at, bytes[r]);
    decode_of(r, [&] { r == 0 ? codec.decode(message, out) : codec.decode_add(message, out); });
    at += stride > 0 ? stride : bytes[r];
  }
  divide_by(out, bytes.size());
}

void decode_from(int rank, const Codec& codec, std::span<const std::byte> message, std::span<float> out) {
  decode_of(static_cast<size_t>(rank), [&] { codec.decode(message, out); });
}

void check_announced(const Codec& codec, int rank, const std::string& host, size_t bytes, size_t count) {
  const size_t most = codec.encoded_bytes(count);
  if (bytes <= most) return;
  throw CommError(fmt::format("codec {}: rank {} ({}) announces a message of {} bytes for {} values, which "
                              "has at most {}; all ranks need the same --codec",
                              codec.name(), rank, host, bytes, count, most),
                  rank);
}

void require_same_decisions(const Codec& whole, const Codec& part) {
  const char* function = nullptr;
  if (part.combining() != whole.combining()) function = "combining()";
  if (part.fixed_rate() != whole.fixed_rate()) function = "fixed_rate()";
  if (part.elementwise() != whole.elementwise()) function = "elementwise()";
  if (function == nullptr) return;
  throw ConfigError("exchange.codec",
                    fmt::format("codec {}: {} differs between the whole range and a part of it; it must not "
                                "depend on the shapes of the tensors",
                                whole.name(), function));
}

std::vector<size_t> exchange_lengths(Group& group, const Codec& codec, size_t count,
                                     std::span<const size_t> sent) {
  const std::vector<uint64_t> out(sent.begin(), sent.end());
  std::vector<uint64_t> in(sent.size());
  const std::vector<size_t> ones(sent.size(), 1);
  all_to_all(group, out.data(), ones, in.data(), ones, DataType::kInt64);
  for (int r = 0; r < group.size(); ++r)
    check_announced(codec, r, group.host_of(r), in[static_cast<size_t>(r)], count);
  return {in.begin(), in.end()};
}

}  // namespace starling
