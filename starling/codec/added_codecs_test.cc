// The compressed all-reduce with codecs that a program may add and that Starling has not: codecs of which
// messages are added or collected, but differ in length or leave values out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "starling/base/error.h"
#include "starling/codec/codec_reference.h"
#include "starling/codec/coded_reduce_scatter.h"
#include "starling/codec/compressed_all_reduce.h"
#include "starling/codec/message_bytes.h"
#include "starling/spec/extensions.h"
#include "starling/testing/memory_ranks.h"

namespace starling {
namespace {

// Sends the values up to the last one that is not 0, without loss.
template <Combining kCombining>
class Trimmed : public Codec {
 public:
  std::string name() const override { return "trimmed"; }
  bool fixed_rate() const override { return false; }
  Combining combining() const override { return kCombining; }
  size_t encoded_bytes(size_t count) const override { return 4 * count; }
  size_t encode(std::span<const float> in, std::span<std::byte> out) override {
    size_t count = in.size();
    while (count > 0 && in[count - 1] == 0) --count;
    std::memcpy(out.data(), in.data(), 4 * count);
    return 4 * count;
  }
  void decode(std::span<const std::byte> in, std::span<float> out) const override {
    std::fill(out.begin(), out.end(), 0.0f);
    decode_add(in, out, 1);
  }
  void decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const override {
    if (in.size() > 4 * out.size() || in.size() % 4 != 0) throw CommError("trimmed: no whole message");
    for (size_t i = 0; i < in.size() / 4; ++i) out[i] += scale * load_value<float>(in.data() + 4 * i);
  }
};

// Sends the values with even indices.
template <Combining kCombining>
class Even final : public Codec {
 public:
  std::string name() const override { return "even"; }
  bool fixed_rate() const override { return true; }
  Combining combining() const override { return kCombining; }
  size_t encoded_bytes(size_t count) const override { return 4 * ((count + 1) / 2); }
  size_t encode(std::span<const float> in, std::span<std::byte> out) override {
    for (size_t i = 0; i < in.size(); i += 2) store_value(out.data() + 2 * i, in[i]);
    return encoded_bytes(in.size());
  }
  void decode(std::span<const std::byte> in, std::span<float> out) const override {
    std::fill(out.begin(), out.end(), 0.0f);
    decode_add(in, out, 1);
  }
  void decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const override {
    for (size_t i = 0; i < out.size(); i += 2) out[i] += scale * load_value<float>(in.data() + 2 * i);
  }
};

template <typename Added>
CodecSpec spec_of(bool error_feedback, bool momentum_correction) {
  CodecSpec spec;
  spec.kind = CodecKind::kAdded;
  spec.added = std::make_shared<AddedCodec>(AddedCodec{
      {.name = "added", .error_feedback = error_feedback, .momentum_correction = momentum_correction},
      [](const CodecSpec&, const std::vector<TensorShape>&) -> std::unique_ptr<Codec> {
        return std::make_unique<Added>();
      }});
  spec.error_feedback = error_feedback;
  spec.momentum_correction = momentum_correction;
  return spec;
}

// Every rank has zeros at the end of other parts, so messages of all lengths meet. The mean is exact.
template <Combining kCombining>
void expect_exact_means(bool error_feedback) {
  constexpr size_t kCount = 200;
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const bool one_host : {true, false}) {
      run_on_memory(ranks, one_host, [&](Group& group) {
        CompressedAllReduce exchange(group, spec_of<Trimmed<kCombining>>(error_feedback, false), {}, kCount);
        const auto value = [](int rank, size_t i) {
          return (i / 8 + static_cast<size_t>(rank)) % 3 == 0 ? 0.0f
                                                              : static_cast<float>(i % 16 + 16 * (rank + 1));
        };
        for (int step = 0; step < 2; ++step) {
          Values data(kCount);
          for (size_t i = 0; i < kCount; ++i) data[i] = value(group.rank(), i);
          exchange.apply(data);
          for (size_t i = 0; i < kCount; ++i) {
            float sum = 0;
            for (int r = 0; r < ranks; ++r) sum += value(r, i);
            ASSERT_FLOAT_EQ(data[i], sum / static_cast<float>(ranks)) << i << " of " << ranks << " ranks";
          }
        }
      });
    }
  }
}

TEST(AddedCodecs, MessagesOfAnyLengthAreAddedAndVotedOn) {
  for (const bool error_feedback : {false, true}) {
    expect_exact_means<Combining::kAdded>(error_feedback);
    expect_exact_means<Combining::kVoted>(error_feedback);
  }
}

// Momentum factor masking: u becomes 0 where a value was sent, so each step sends the gradient alone.
template <Combining kCombining>
void expect_masked() {
  run_on_memory(2, true, [](Group& group) {
    CompressedAllReduce exchange(group, spec_of<Even<kCombining>>(true, true), {}, 64, 0.9);
    for (int step = 0; step < 4; ++step) {
      Values data(64, 1.0f);
      exchange.apply(data);
      for (size_t i = 0; i < data.size(); ++i)
        ASSERT_EQ(data[i], i % 2 == 0 ? 1.0f : 0.0f) << i << " in step " << step;
    }
  });
}

TEST(AddedCodecs, TheMomentumOfSentValuesIsMasked) {
  expect_masked<Combining::kMerged>();
  expect_masked<Combining::kCollected>();
}

// Its rate depends on the shapes, which no codec may do.
class RateOfShapes final : public Trimmed<Combining::kAdded> {
 public:
  explicit RateOfShapes(bool fixed) : fixed_(fixed) {}
  bool fixed_rate() const override { return fixed_; }

 private:
  const bool fixed_;
};

// The whole range has two tensors, and each part has rows of one. All ranks refuse the codec by its name.
TEST(AddedCodecs, ARateThatDependsOnTheShapesIsRefused) {
  CodecSpec spec;
  spec.kind = CodecKind::kAdded;
  spec.added = std::make_shared<AddedCodec>(
      AddedCodec{{.name = "added"},
                 [](const CodecSpec&, const std::vector<TensorShape>& shapes) -> std::unique_ptr<Codec> {
                   return std::make_unique<RateOfShapes>(shapes.size() == 1);
                 }});
  const std::vector<TensorShape> shapes = {{2, 50, 0}, {2, 50, 0}};
  std::atomic<int> refused = 0;
  run_on_memory(4, false, [&](Group& group) {
    for (const bool reduce_scatter : {false, true}) {
      try {
        if (reduce_scatter)
          CodedReduceScatter(group, spec, shapes, 200, 0);
        else
          CompressedAllReduce(group, spec, shapes, 200);
      } catch (const ConfigError& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("codec trimmed: fixed_rate() differs"));
        ++refused;
      }
    }
  });
  EXPECT_EQ(refused, 8);
}

}  // namespace
}  // namespace starling
