#include "starling/codec/compressed_all_reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "starling/base/error.h"

namespace starling {
namespace {

size_t all_reduce_mean(Group& group, AveragingCodec& codec, ErrorFeedback* feedback, std::span<float> data,
                       ExchangeBuffers& buffers) {
  size_t elements = 0;
  const auto mean = [&](std::span<float> part) {
    elements += part.size();
    group.all_reduce(part.data(), part.size(), DataType::kFp32, ReduceOp::kAvg);
  };
  if (feedback == nullptr) {
    codec.average(data, {}, mean);
    return 4 * elements;
  }
  feedback->begin(data);
  buffers.contributed.resize(data.size());
  codec.average(data, buffers.contributed, mean);
  feedback->end(buffers.contributed);
  return 4 * elements;
}

// The length of each rank's message, checked against the most it can be.
std::vector<uint64_t> gather_sizes(Group& group, const Codec& codec, size_t bytes, size_t count) {
  const uint64_t own = bytes;
  std::vector<uint64_t> sizes(static_cast<size_t>(group.size()));
  group.all_gather(&own, sizes.data(), 1, DataType::kInt64);
  const size_t most = codec.encoded_bytes(count);
  for (int r = 0; r < group.size(); ++r) {
    if (sizes[static_cast<size_t>(r)] <= most) continue;
    throw CommError(
        fmt::format("codec {}: rank {} ({}) announces a message of {} bytes for {} values, which "
                    "has at most {}; all ranks need the same --codec",
                    codec.name(), r, group.host_of(r), sizes[static_cast<size_t>(r)], count, most),
        r);
  }
  return sizes;
}

// decode, with the sender's name in its error.
template <typename Decode>
void decode_of(int rank, const Decode& decode) {
  try {
    decode();
  } catch (const CommError& error) {
    throw CommError(fmt::format("from rank {}: {}", rank, error.what()), rank);
  }
}

}  // namespace

size_t compressed_all_reduce(Group& group, Codec& codec, ErrorFeedback* feedback, std::span<float> data,
                             ExchangeBuffers* buffers) {
  ExchangeBuffers temporary;
  if (buffers == nullptr) buffers = &temporary;
  if (AveragingCodec* averaging = codec.averaging(); averaging != nullptr)
    return all_reduce_mean(group, *averaging, feedback, data, *buffers);

  const auto p = static_cast<size_t>(group.size());
  buffers->own.resize(codec.encoded_bytes(data.size()));
  const size_t bytes =
      feedback != nullptr ? feedback->encode(codec, data, buffers->own) : codec.encode(data, buffers->own);
  std::vector<uint64_t> sizes(p, bytes);
  if (!codec.fixed_rate()) sizes = gather_sizes(group, codec, bytes, data.size());
  const size_t longest = *std::max_element(sizes.begin(), sizes.end());
  buffers->all.resize(p * longest);
  group.all_gather(buffers->own.data(), buffers->all.data(), longest, DataType::kUint8);

  const auto message = [&](size_t r) {
    return std::span<const std::byte>(buffers->all).subspan(r * longest, sizes[r]);
  };
  decode_of(0, [&] { codec.decode(message(0), data); });
  for (size_t r = 1; r < p; ++r) decode_of(static_cast<int>(r), [&] { codec.decode_add(message(r), data); });
  if (p > 1) {
    const auto divisor = static_cast<float>(p);
    for (float& x : data) x /= divisor;
  }
  return bytes;
}

}  // namespace starling
