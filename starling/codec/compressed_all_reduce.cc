#include "starling/codec/compressed_all_reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/codec/flat_state.h"
#include "starling/codec/gather_in_pieces.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/message_sum.h"
#include "starling/codec/random_codec.h"
#include "starling/spec/codec_table.h"

namespace starling {
namespace {

constexpr size_t kPartAlign = 16;

double squares_of(const ErrorFeedback& feedback) {
  double sum = 0;
  for (const float r : feedback.residual()) sum += static_cast<double>(r) * r;
  return sum;
}

// Returns whether all ranks are on one host, or each on a host of its own. Collective.
bool is_one_level(Group& group) {
  const auto local = static_cast<int64_t>(group.local_ranks().size());
  int64_t mixed = local != 1 && local != group.size() ? 1 : 0;
  if (group.size() > 1) all_reduce(group, &mixed, 1, DataType::kInt64, ReduceOp::kMax);
  return mixed == 0;
}

}  // namespace

size_t part_begin(size_t count, int parts, int part) {
  const size_t blocks = (count + kPartAlign - 1) / kPartAlign;
  return std::min(count, blocks * static_cast<size_t>(part) / static_cast<size_t>(parts) * kPartAlign);
}

std::vector<TensorShape> shapes_between(const std::vector<TensorShape>& shapes, size_t begin, size_t end) {
  std::vector<TensorShape> result;
  size_t at = 0;
  for (const TensorShape& shape : shapes) {
    // Returns how many of the elements [from, from + n) lie in [begin, end).
    const auto within = [&](size_t from, size_t n) {
      const size_t first = std::max(from, begin), last = std::min(from + n, end);
      return last > first ? last - first : 0;
    };
    const size_t values = within(at, shape.size()), padding = within(at + shape.size(), shape.padding);
    at += shape.size() + shape.padding;
    if (values == shape.size() && values > 0) {
      result.push_back({shape.rows, shape.cols, padding});
    } else if (values + padding > 0) {
      result.push_back({1, values, padding});
    }
  }
  // An empty list means that the shapes are not known.
  if (result.empty() && !shapes.empty()) result.push_back({1, 0, 0});
  return result;
}

CompressedAllReduce::CompressedAllReduce(Group& group, const CodecSpec& spec, std::vector<TensorShape> shapes,
                                         size_t count, double momentum)
    : group_(group), count_(count), whole_(make_codec(spec, shapes)), one_level_(is_one_level(group)) {
  const Combining combining = whole_->combining();
  // The state of a stepped codec is its step, which set_step() sets for every object.
  const bool divisible = whole_->state().empty() || whole_->stepped() != nullptr;
  by_parts_ = divisible && ((combining == Combining::kAdded && group.size() > 2) ||
                            (combining == Combining::kVoted && group.size() > 1));
  if (combining == Combining::kVoted && group.size() > 1 && !divisible)
    throw ConfigError("exchange.codec",
                      fmt::format("codec {}: a vote needs messages of parts, and a codec with a state sends "
                                  "whole messages; leave out state()",
                                  whole_->name()));
  if (spec.error_feedback) feedback_.emplace(count);
  if (by_parts_ || (combining == Combining::kMerged && divisible)) make_parts(spec, shapes);
  if (by_parts_) second_ = make_codec(spec, shapes_between(shapes, own_part().begin, own_part().end));
  if (by_parts_ && spec.error_feedback) second_feedback_.emplace(own_part().size());
  if (!spec.momentum_correction || momentum <= 0) return;
  masked_ = traits_of(spec).factor_masking;
  if (masked_ && combining != Combining::kMerged && combining != Combining::kCollected)
    throw ConfigError("exchange.codec",
                      fmt::format("codec {}: momentum correction with factor masking needs messages that "
                                  "leave values out; set momentum_correction or factor_masking to false in "
                                  "its traits",
                                  whole_->name()));
  correction_.emplace(count, momentum);
}

void CompressedAllReduce::make_parts(const CodecSpec& spec, const std::vector<TensorShape>& shapes) {
  parts_.reserve(ranks());
  for (int r = 0; r < group_.size(); ++r) {
    const size_t begin = part_begin(count_, group_.size(), r), end = part_begin(count_, group_.size(), r + 1);
    parts_.push_back({begin, end, make_codec(spec, shapes_between(shapes, begin, end))});
    require_same_decisions(*whole_, *parts_.back().codec);
    longest_part_ = std::max(longest_part_, end - begin);
  }
}

// Begins the next step: sets the step of the codec of the whole range, and the key of its random decisions.
void CompressedAllReduce::advance() {
  SteppedCodec* stepped = whole_->stepped();
  if (stepped == nullptr) return;
  const uint64_t step = stepped->step() + 1;
  stepped->set_step(step);
  if (RandomCodec* random = whole_->random()) random->set_key(step, static_cast<uint64_t>(group_.rank()));
}

// Sets the step and the key of the random decisions. `second` says which message follows: that of this rank
// for part `part`, or that of the mean of this part.
void CompressedAllReduce::set_step(Codec& codec, size_t part, bool second) {
  if (codec.stepped() == nullptr) return;
  const uint64_t step = whole_->stepped()->step();
  codec.stepped()->set_step(step);
  const size_t messages = 2 * part + (second ? 1 : 0);
  if (RandomCodec* random = codec.random())
    random->set_key(step, messages * ranks() + static_cast<size_t>(group_.rank()));
}

void CompressedAllReduce::apply(std::span<float> data) {
  STARLING_CHECK(data.size() == count_, "{} values, but the range has {}", data.size(), count_);
  const uint64_t before = group_.traffic().sent();
  if (correction_) correction_->begin(data);
  advance();
  if (whole_->combining() == Combining::kAveraged) {
    average(data);
  } else if (by_parts_) {
    scatter_and_gather(data);
  } else {
    collect(data);
  }
  sent_ += group_.traffic().sent() - before;
  const double p = group_.size();
  plain_ += 2 * (p - 1) / p * 4 * static_cast<double>(count_);
}

// Replaces the array by its mean over the ranks. own: as for AveragingCodec::Mean.
void CompressedAllReduce::mean_of(std::span<float> array, std::span<float> own) {
  if (Codec* rounding = whole_->averaging()->rounding()) return rounded_mean(*rounding, array, own);
  if (!own.empty()) std::copy(array.begin(), array.end(), own.begin());
  if (group_.size() == 1) return;
  if (!one_level_)
    return starling::all_reduce(group_, array.data(), array.size(), DataType::kFp32, ReduceOp::kAvg);
  const size_t part = (array.size() + ranks() - 1) / ranks();
  values_.assign(part * ranks(), 0.0f);
  std::copy(array.begin(), array.end(), values_.begin());
  std::vector<float> sum(part);
  reduce_scatter(group_, values_.data(), sum.data(), part, DataType::kFp32, ReduceOp::kAvg);
  all_gather(group_, sum.data(), values_.data(), part, DataType::kFp32);
  std::copy_n(values_.begin(), array.size(), array.begin());
}

// As mean_of(), but each rank sends rounded elements to the owners of the parts, and the owners round the
// means. An owner takes the error of its second rounding into its own contribution.
void CompressedAllReduce::rounded_mean(Codec& rounding, std::span<float> array, std::span<float> own) {
  const size_t p = ranks(), part = (array.size() + p - 1) / p, bytes = rounding.encoded_bytes(part);
  values_.assign(part * p, 0.0f);
  std::copy(array.begin(), array.end(), values_.begin());
  own_.resize(p * bytes);
  all_.resize(p * bytes);
  rounding.encode(values_, own_);
  rounding.decode(own_, values_);
  if (!own.empty()) std::copy_n(values_.begin(), own.size(), own.begin());
  const std::vector<size_t> lengths(p, bytes);
  if (p == 1) {
    all_ = own_;
  } else {
    all_to_all(group_, own_.data(), lengths, all_.data(), lengths, DataType::kUint8);
  }
  std::vector<float> sum(part), rounded(part);
  mean_of_messages(rounding, all_, lengths, 0, sum);
  own_.resize(bytes);
  rounding.encode(sum, own_);
  rounding.decode(own_, rounded);
  const size_t begin = part * static_cast<size_t>(group_.rank());
  for (size_t i = 0; i < part && begin + i < own.size(); ++i)
    own[begin + i] += static_cast<float>(p) * (rounded[i] - sum[i]);
  all_gather(group_, own_.data(), all_.data(), bytes, DataType::kUint8);
  rounding.decode(all_, values_);
  std::copy_n(values_.begin(), array.size(), array.begin());
}

void CompressedAllReduce::average(std::span<float> data) {
  const auto mean = [this](std::span<float> array, std::span<float> own) { mean_of(array, own); };
  AveragingCodec& codec = *whole_->averaging();
  ++scattered_;
  if (!feedback_) return codec.average(data, {}, mean);
  feedback_->begin(data);
  std::vector<float> contributed(data.size());
  codec.average(data, contributed, mean);
  feedback_->end(contributed);
}

// Returns the length of each rank's message of the whole range.
std::vector<uint64_t> CompressedAllReduce::gather_sizes(size_t bytes) {
  const uint64_t own = bytes;
  std::vector<uint64_t> sizes(ranks(), own);
  if (whole_->fixed_rate()) return sizes;
  all_gather(group_, &own, sizes.data(), 1, DataType::kInt64);
  for (int r = 0; r < group_.size(); ++r)
    check_announced(*whole_, r, group_.host_of(r), sizes[static_cast<size_t>(r)], count_);
  return sizes;
}

// Tells the error feedback and the momentum correction what this rank has sent.
void CompressedAllReduce::note_sent(std::span<const float> sent) {
  feedback_->end(sent);
  if (masked_) correction_->end(sent);
}

// Every rank gets the messages of all ranks of a codec that encodes each value by itself.
void CompressedAllReduce::collect_in_pieces(std::span<float> data) {
  const auto encode = [&](size_t begin, size_t end, std::span<std::byte> out) {
    const auto values = data.subspan(begin, end - begin);
    feedback_ ? feedback_->encode_part(*whole_, begin, values, out) : whole_->encode(values, out);
  };
  const auto decode = [&](size_t begin, size_t end, std::span<const std::byte> messages) {
    const std::vector<size_t> lengths(ranks(), whole_->encoded_bytes(end - begin));
    mean_of_messages(*whole_, messages, lengths, 0, data.subspan(begin, end - begin));
  };
  gather_in_pieces(group_, count_, whole_->encoded_bytes(1), own_, all_, encode, decode);
}

// Every rank gets the messages of all ranks, or lists are sent by parts.
void CompressedAllReduce::collect(std::span<float> data) {
  if (whole_->elementwise()) return collect_in_pieces(data);
  own_.resize(whole_->encoded_bytes(count_));
  const bool lists = whole_->combining() == Combining::kMerged;
  // A rank that may send parts instead keeps the sum of gradient and residual until that is decided.
  if (feedback_ && lists) feedback_->begin(data);
  const size_t bytes =
      feedback_ && !lists ? feedback_->encode(*whole_, data, own_) : whole_->encode(data, own_);
  if (masked_ && !lists) {
    values_.resize(count_);
    whole_->decode(std::span<const std::byte>(own_).first(bytes), values_);
    correction_->end(std::span<const float>(values_).first(count_));
  }
  const std::vector<uint64_t> sizes = gather_sizes(bytes);
  const size_t longest = *std::max_element(sizes.begin(), sizes.end());
  if (lists && lists_by_parts(longest)) return scatter_lists(data);
  if (feedback_ && lists) {
    values_.resize(count_);
    whole_->decode(std::span<const std::byte>(own_).first(bytes), values_);
    note_sent(std::span<const float>(values_).first(count_));
  }
  all_.resize(ranks() * longest);
  all_gather(group_, own_.data(), all_.data(), longest, DataType::kUint8);
  mean_of_messages(*whole_, all_, std::vector<size_t>(sizes.begin(), sizes.end()), longest, data);
}

// Returns the length of each rank's message of the mean of its part. `bytes` is that of this rank.
std::vector<size_t> CompressedAllReduce::gather_lengths(size_t bytes) {
  std::vector<size_t> lengths;
  lengths.reserve(ranks());
  for (const Part& part : parts_) lengths.push_back(part.codec->encoded_bytes(part.size()));
  if (second_->fixed_rate()) return lengths;
  const uint64_t own = bytes;
  std::vector<uint64_t> all(ranks());
  all_gather(group_, &own, all.data(), 1, DataType::kInt64);
  for (size_t r = 0; r < parts_.size(); ++r)
    check_announced(*parts_[r].codec, static_cast<int>(r), group_.host_of(static_cast<int>(r)), all[r],
                    parts_[r].size());
  return {all.begin(), all.end()};
}

void CompressedAllReduce::scatter_and_gather(std::span<float> data) {
  ++scattered_;
  size_t most = 0, longest = 0;
  for (const Part& part : parts_) {
    most += part.codec->encoded_bytes(part.size());
    longest = std::max(longest, part.codec->encoded_bytes(part.size()));
  }
  own_.resize(most);
  std::vector<size_t> sent;
  sent.reserve(ranks());
  std::span<std::byte> room(own_);
  for (size_t r = 0; r < parts_.size(); ++r) {
    const Part& part = parts_[r];
    set_step(*part.codec, r, false);
    const size_t bytes = feedback_ ? feedback_->encode_part(*part.codec, part.begin, part.of(data), room)
                                   : part.codec->encode(part.of(data), room);
    sent.push_back(bytes);
    room = room.subspan(bytes);
  }
  const Part& mine = own_part();
  const std::vector<size_t> expected =
      mine.codec->fixed_rate() ? std::vector<size_t>(ranks(), mine.codec->encoded_bytes(mine.size()))
                               : exchange_lengths(group_, *mine.codec, mine.size(), sent);
  all_.resize(std::accumulate(expected.begin(), expected.end(), size_t{0}));
  all_to_all(group_, own_.data(), sent, all_.data(), expected, DataType::kUint8);
  if (second_->elementwise()) return gather_means_in_pieces(data);
  mean_of_messages(*mine.codec, all_, expected, 0, mine.of(data));

  own_.assign(longest, std::byte{0});
  set_step(*second_, static_cast<size_t>(group_.rank()), true);
  const std::vector<size_t> lengths =
      gather_lengths(second_feedback_ ? second_feedback_->encode(*second_, mine.of(data), own_)
                                      : second_->encode(mine.of(data), own_));
  longest = *std::max_element(lengths.begin(), lengths.end());
  all_.resize(ranks() * longest);
  all_gather(group_, own_.data(), all_.data(), longest, DataType::kUint8);
  for (size_t r = 0; r < parts_.size(); ++r) {
    const auto message = std::span<const std::byte>(all_).subspan(r * longest, lengths[r]);
    decode_from(static_cast<int>(r), *parts_[r].codec, message, parts_[r].of(data));
  }
}

// Each owner has the messages of all ranks for its part in all_, and sends the mean to all ranks. The codec
// encodes each value by itself.
void CompressedAllReduce::gather_means_in_pieces(std::span<float> data) {
  const Part& mine = own_part();
  const size_t width = second_->encoded_bytes(1), of_part = mine.size() * width;
  // A part is up to 16 values shorter than the longest one.
  const auto encode = [&](size_t begin, size_t end, std::span<std::byte> out) {
    const size_t last = std::min(end, mine.size());
    if (begin >= last) return;
    const auto values = mine.of(data).subspan(begin, last - begin);
    const std::vector<size_t> lengths(ranks(), values.size() * width);
    mean_of_messages(*mine.codec, std::span<const std::byte>(all_).subspan(begin * width), lengths, of_part,
                     values);
    second_feedback_ ? second_feedback_->encode_part(*second_, begin, values, out)
                     : second_->encode(values, out);
  };
  const auto decode = [&](size_t begin, size_t end, std::span<const std::byte> messages) {
    for (size_t r = 0; r < parts_.size(); ++r) {
      const size_t last = std::min(end, parts_[r].size());
      if (begin >= last) continue;
      const auto message = messages.subspan(r * (end - begin) * width, (last - begin) * width);
      decode_from(static_cast<int>(r), *parts_[r].codec, message,
                  parts_[r].of(data).subspan(begin, last - begin));
    }
  };
  gather_in_pieces(group_, longest_part_, width, piece_, own_, encode, decode);
}

// Returns whether lists of parts and dense sums have fewer bytes than the messages of all ranks.
bool CompressedAllReduce::lists_by_parts(size_t longest) const {
  const size_t p = ranks();
  const size_t by_parts = 8 + longest / p + 4 * longest_part_;
  return !parts_.empty() && p > 1 && by_parts < longest;
}

void CompressedAllReduce::scatter_lists(std::span<float> data) {
  ++scattered_;
  std::vector<size_t> sent;
  sent.reserve(ranks());
  size_t most = 0;
  for (size_t r = 0; r < parts_.size(); ++r) {
    set_step(*parts_[r].codec, r, false);
    most += parts_[r].codec->encoded_bytes(parts_[r].size());
  }
  own_.resize(most);
  values_.resize(count_);
  std::span<std::byte> room(own_);
  for (const Part& part : parts_) {
    sent.push_back(part.codec->encode(part.of(data), room));
    part.codec->decode(room.first(sent.back()), part.of(values_));
    room = room.subspan(sent.back());
  }
  if (feedback_) note_sent(values_);
  const Part& mine = own_part();
  const std::vector<size_t> expected = exchange_lengths(group_, *mine.codec, mine.size(), sent);
  all_.resize(std::accumulate(expected.begin(), expected.end(), size_t{0}));
  all_to_all(group_, own_.data(), sent, all_.data(), expected, DataType::kUint8);
  std::vector<float> sum(longest_part_);
  mean_of_messages(*mine.codec, all_, expected, 0, std::span(sum).first(mine.size()));
  values_.resize(longest_part_ * ranks());
  all_gather(group_, sum.data(), values_.data(), longest_part_, DataType::kFp32);
  for (size_t r = 0; r < parts_.size(); ++r)
    std::copy_n(values_.begin() + static_cast<std::ptrdiff_t>(r * longest_part_), parts_[r].size(),
                data.begin() + static_cast<std::ptrdiff_t>(parts_[r].begin));
}

std::optional<double> CompressedAllReduce::residual_norm() const {
  if (!feedback_) return std::nullopt;
  return std::sqrt(squares_of(*feedback_) + (second_feedback_ ? squares_of(*second_feedback_) : 0));
}

std::vector<float> CompressedAllReduce::state() const {
  std::vector<float> values = flat_state(*whole_, feedback_ ? &*feedback_ : nullptr);
  if (correction_) {
    const auto u = correction_->velocity();
    values.insert(values.end(), u.begin(), u.end());
  }
  if (!second_feedback_) return values;
  const auto f = second_feedback_->residual();
  values.insert(values.end(), f.begin(), f.end());
  values.insert(values.end(), longest_part_ - f.size(), 0.0f);
  return values;
}

void CompressedAllReduce::load_state(std::span<const float> values) {
  ErrorFeedback* feedback = feedback_ ? &*feedback_ : nullptr;
  const size_t of_velocity = correction_ ? count_ : 0;
  const size_t more = of_velocity + (second_feedback_ ? longest_part_ : 0);
  if (more == 0) return load_flat_state(*whole_, feedback, values);
  const size_t first = flat_state(*whole_, feedback).size();
  if (values.size() != first && values.size() != first + more)
    throw Error(
        ErrorCode::kCheckpoint,
        fmt::format("the checkpoint has {} values of the state of codec {}, which has {} here; resume "
                    "with the same --codec, model and ranks",
                    values.size(), whole_->name(), first + more));
  load_flat_state(*whole_, feedback, values.first(first));
  std::vector<float> last(more, 0.0f);
  std::copy(values.begin() + static_cast<std::ptrdiff_t>(first), values.end(), last.begin());
  if (correction_) correction_->load(std::span<const float>(last).first(count_));
  if (!second_feedback_) return;
  const auto f = last.begin() + static_cast<std::ptrdiff_t>(of_velocity);
  second_feedback_->load_state(
      {{"residual", std::vector<float>(f, f + static_cast<std::ptrdiff_t>(own_part().size()))}});
}

}  // namespace starling
