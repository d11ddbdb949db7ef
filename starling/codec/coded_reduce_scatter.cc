#include "starling/codec/coded_reduce_scatter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/message_sum.h"
#include "starling/codec/random_codec.h"

namespace starling {
namespace {

constexpr size_t kCodedHead = 3;                   // ranks, and both halves of the number of values
constexpr size_t kHalfOfCount = size_t{1} << 24;   // floats hold all whole numbers up to this one
constexpr double kLengthBytes = sizeof(uint64_t);  // of the length of a message

// Returns whether messages of parts lead to the mean. The state of a stepped codec is its step, which
// set_step() sets.
bool has_messages_of_parts(Codec& codec) {
  const bool divisible = codec.state().empty() || codec.stepped() != nullptr;
  return divisible && codec.combining() != Combining::kCollected;
}

// Returns the bytes that a rank sends for a mean of whole messages.
double whole_bytes(const Codec& codec, size_t count, double ranks) {
  const auto bytes = static_cast<double>(codec.encoded_bytes(count));
  if (codec.combining() == Combining::kAveraged) return 2 * (ranks - 1) / ranks * bytes;
  return (ranks - 1) * (bytes + (codec.fixed_rate() ? 0 : kLengthBytes));
}

double squares_of_residual(const std::optional<ErrorFeedback>& feedback) {
  if (!feedback) return 0;
  const std::span<const float> r = feedback->residual();
  return std::accumulate(r.begin(), r.end(), 0.0,
                         [](double sum, float x) { return sum + static_cast<double>(x) * x; });
}

}  // namespace

CodedReduceScatter::CodedReduceScatter(Group& group, const CodecSpec& spec,
                                       const std::vector<TensorShape>& shapes, size_t count, uint64_t range)
    : group_(group), count_(count), share_(count / static_cast<size_t>(group.size())) {
  STARLING_CHECK(share_ * ranks() == count, "{} values cannot be divided among {} ranks", count, ranks());
  CodecSpec own = spec;
  own.momentum_correction = false;
  const auto seed_of = [&](size_t part) { return key_of(spec.seed, range, part); };
  own.seed = seed_of(ranks());
  const std::unique_ptr<Codec> example = make_codec(own, shapes);
  name_ = example->name();
  if (!has_messages_of_parts(*example)) {
    whole_ = std::make_unique<CompressedAllReduce>(group, own, shapes, count);
    whole_formula_ = whole_bytes(*example, count, group.size());
    return;
  }
  for (size_t r = 0; r < ranks(); ++r) {
    own.seed = seed_of(r);
    parts_.push_back(make_codec(own, shapes_between(shapes, r * share_, (r + 1) * share_)));
    require_same_decisions(*example, *parts_.back());
  }
  if (spec.error_feedback) feedback_.emplace(count);
  if (example->combining() != Combining::kVoted) return;
  own.seed = seed_of(this->own());
  vote_ = make_codec(own, shapes_between(shapes, this->own() * share_, (this->own() + 1) * share_));
  if (spec.error_feedback) second_feedback_.emplace(share_);
}

void CodedReduceScatter::set_step(Codec& codec, uint64_t step, uint64_t stream) const {
  if (RandomCodec* random = codec.random()) return random->set_key(step, stream);
  if (SteppedCodec* stepped = codec.stepped()) stepped->set_step(step);
}

void CodedReduceScatter::apply(uint64_t step, std::span<float> data, std::span<float> mean) {
  STARLING_CHECK(data.size() == count_ && mean.size() == share_, "{} values for {}, but the range has {}",
                 data.size(), mean.size(), count_);
  const uint64_t before = group_.traffic().sent();
  ++times_;
  if (whole_) {
    whole_->apply(data);
    std::ranges::copy(part_of(data, own()), mean.begin());
  } else {
    const std::vector<size_t> sent = encode_parts(step, data), expected = lengths_for_own_part(sent);
    all_.resize(std::accumulate(expected.begin(), expected.end(), size_t{0}));
    if (ranks() == 1) {
      all_ = own_;
    } else {
      all_to_all(group_, own_.data(), sent, all_.data(), expected, DataType::kUint8);
    }
    mean_of_messages(*parts_[own()], all_, expected, 0, mean);
    if (vote_) vote(step, mean);
  }
  sent_ += group_.traffic().sent() - before;
}

// Encodes the messages of this rank to own_, one after another by owner. Returns their lengths.
std::vector<size_t> CodedReduceScatter::encode_parts(uint64_t step, std::span<float> data) {
  size_t most = 0;
  for (const auto& codec : parts_) most += codec->encoded_bytes(share_);
  own_.resize(most);
  std::vector<size_t> sent;
  std::span<std::byte> room(own_);
  for (size_t r = 0; r < ranks(); ++r) {
    Codec& codec = *parts_[r];
    set_step(codec, step, own());
    const std::span<float> part = part_of(data, r);
    sent.push_back(feedback_ ? feedback_->encode_part(codec, r * share_, part, room)
                             : codec.encode(part, room));
    room = room.subspan(sent.back());
  }
  own_.resize(most - room.size());
  return sent;
}

// Returns the length of each rank's message for this rank's part. sent: the lengths of this rank's messages.
std::vector<size_t> CodedReduceScatter::lengths_for_own_part(const std::vector<size_t>& sent) {
  const Codec& mine = *parts_[own()];
  if (mine.fixed_rate() || ranks() == 1) return std::vector<size_t>(ranks(), sent[own()]);
  return exchange_lengths(group_, mine, share_, sent);
}

// Replaces the mean of the messages by what its own message says.
void CodedReduceScatter::vote(uint64_t step, std::span<float> mean) {
  set_step(*vote_, step, ranks());
  own_.resize(vote_->encoded_bytes(share_));
  const size_t bytes =
      second_feedback_ ? second_feedback_->encode(*vote_, mean, own_) : vote_->encode(mean, own_);
  vote_->decode(std::span<const std::byte>(own_).first(bytes), mean);
}

double CodedReduceScatter::formula() const {
  if (whole_) return whole_formula_;
  const auto p = static_cast<double>(ranks());
  double bytes = 0;
  for (const auto& codec : parts_)
    bytes += static_cast<double>(codec->encoded_bytes(share_)) + (codec->fixed_rate() ? 0 : kLengthBytes);
  return (p - 1) / p * bytes;
}

std::optional<double> CodedReduceScatter::residual_norm() const {
  if (whole_) return whole_->residual_norm();
  if (!feedback_) return std::nullopt;
  return std::sqrt(squares_of_residual(feedback_) + squares_of_residual(second_feedback_));
}

// Returns what this rank keeps between two calls. A step is not kept, because the caller knows it.
std::vector<float> CodedReduceScatter::kept() const {
  if (whole_) return whole_->state();
  std::vector<float> values;
  for (const auto* feedback : {&feedback_, &second_feedback_}) {
    if (!*feedback) continue;
    const std::span<const float> r = (*feedback)->residual();
    values.insert(values.end(), r.begin(), r.end());
  }
  return values;
}

std::vector<float> CodedReduceScatter::state() const {
  std::vector<float> values = kept();
  if (values.empty()) return values;
  const size_t low = count_ % kHalfOfCount, high = count_ / kHalfOfCount;
  std::vector<float> state = {static_cast<float>(ranks()), static_cast<float>(low), static_cast<float>(high)};
  state.insert(state.end(), values.begin(), values.end());
  return state;
}

void CodedReduceScatter::load_state(std::span<const float> values) {
  const std::vector<float> own = state();
  const bool fits = values.size() == own.size() &&
                    (own.empty() || std::equal(own.begin(), own.begin() + kCodedHead, values.begin()));
  if (!fits) {
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("the checkpoint has {} values of codec {} from {} ranks, but {} values from {} "
                            "ranks are needed; resume with the --codec, train.bucket_mb and number of ranks "
                            "of the run that wrote it",
                            values.size(), name_, values.empty() ? 0 : values[0], own.size(), ranks()));
  }
  if (own.empty()) return;
  values = values.subspan(kCodedHead);
  if (whole_) return whole_->load_state(values);
  if (feedback_) feedback_->load_state({{"residual", {values.begin(), values.begin() + count_}}});
  if (second_feedback_) second_feedback_->load_state({{"residual", {values.begin() + count_, values.end()}}});
}

}  // namespace starling
