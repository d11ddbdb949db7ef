#include "starling/codec/power_sgd.h"

#include <fmt/format.h>

#include <algorithm>

#include "starling/base/error.h"
#include "starling/codec/kernel.h"
#include "starling/codec/low_rank_kernels.h"

namespace starling {

PowerSgdCodec::PowerSgdCodec(const std::vector<TensorShape>& shapes, int rank, std::unique_ptr<Codec> values)
    : LowRankCodec(shapes, rank, std::move(values)) {
  for (const LowRankPart& part : parts()) {
    auto& q = q_.emplace_back(part.q_size());
    start_vectors(q.data(), part.cols, part.rank, part.key);
  }
}

CodecState PowerSgdCodec::state() const {
  CodecState state;
  for (size_t i = 0; i < q_.size(); ++i)
    if (!q_[i].empty()) state[fmt::format("q/{}", i)] = q_[i];
  return state;
}

void PowerSgdCodec::load_state(const CodecState& state) {
  size_t used = 0;
  for (size_t i = 0; i < q_.size(); ++i) {
    if (q_[i].empty()) continue;
    const std::string name = fmt::format("q/{}", i);
    const auto found = state.find(name);
    if (found == state.end() || found->second.size() != q_[i].size()) {
      throw Error(
          ErrorCode::kCheckpoint,
          fmt::format("codec lowrank: the checkpoint has {} for '{}', which has {} values here; resume "
                      "with the same --codec and model",
                      found == state.end() ? "nothing" : fmt::format("{} values", found->second.size()), name,
                      q_[i].size()));
    }
    ++used;
  }
  if (used != state.size()) {
    throw Error(
        ErrorCode::kCheckpoint,
        fmt::format("codec lowrank: the checkpoint has {} matrices and this model {}; resume with the "
                    "same --codec and model",
                    state.size(), used));
  }
  for (size_t i = 0; i < q_.size(); ++i)
    if (!q_[i].empty()) q_[i] = state.at(fmt::format("q/{}", i));
}

void PowerSgdCodec::factorize(size_t index, const float* matrix, float* p, float* q) {
  const LowRankPart& part = parts()[index];
  const MatrixView m{matrix, part.rows, part.cols};
  std::vector<float>& warm = q_[index];
  orthonormalize(warm.data(), part.cols, part.rank, part.key);
  multiply(m, warm.data(), part.rank, p);
  orthonormalize(p, part.rows, part.rank, part.key);
  multiply_transposed(m, p, part.rank, q);
  std::copy(q, q + part.q_size(), warm.begin());
}

std::vector<float> PowerSgdCodec::left_factors(std::span<const float> data) {
  std::vector<float> left;
  for (size_t i = 0; i < parts().size(); ++i) {
    const LowRankPart& part = parts()[i];
    const float* from = data.data() + part.offset;
    if (part.rank == 0) {
      left.insert(left.end(), from, from + part.size());
      continue;
    }
    orthonormalize(q_[i].data(), part.cols, part.rank, part.key);
    const size_t at = left.size();
    left.resize(at + part.p_size());
    multiply({from, part.rows, part.cols}, q_[i].data(), part.rank, &left[at]);
  }
  return left;
}

std::vector<float> PowerSgdCodec::right_factors(std::span<const float> data, std::vector<float>& left) const {
  std::vector<float> right;
  float* p = left.data();
  for (const LowRankPart& part : parts()) {
    if (part.rank > 0) {
      orthonormalize(p, part.rows, part.rank, part.key);
      const size_t at = right.size();
      right.resize(at + part.q_size());
      multiply_transposed({data.data() + part.offset, part.rows, part.cols}, p, part.rank, &right[at]);
    }
    p += part.rank > 0 ? part.p_size() : part.size();
  }
  return right;
}

void PowerSgdCodec::multiply_out(const std::vector<float>& left, const std::vector<float>& right,
                                 std::span<float> out) const {
  std::fill(out.begin(), out.end(), 0.0f);
  const float* p = left.data();
  const float* q = right.data();
  for (const LowRankPart& part : parts()) {
    float* to = out.data() + part.offset;
    if (part.rank == 0) {
      std::copy(p, p + part.size(), to);
      p += part.size();
      continue;
    }
    add_product(p, q, part.rank, 1.0f, to, part.rows, part.cols);
    p += part.p_size();
    q += part.q_size();
  }
}

void PowerSgdCodec::take_left_factors(const std::vector<float>& from, std::vector<float>& to) const {
  size_t at = 0;
  for (const LowRankPart& part : parts()) {
    const auto first = static_cast<std::ptrdiff_t>(at);
    if (part.rank > 0) std::copy_n(from.begin() + first, part.p_size(), to.begin() + first);
    at += part.rank > 0 ? part.p_size() : part.size();
  }
}

void PowerSgdCodec::average(std::span<float> data, std::span<float> own, const Mean& mean) {
  check_count(data.size());
  const bool feedback = !own.empty();
  std::vector<float> left = left_factors(data), own_left(feedback ? left.size() : 0);
  mean(left, own_left);
  std::vector<float> right = right_factors(data, left), own_right(feedback ? right.size() : 0);
  mean(right, own_right);
  if (feedback) {
    // All ranks have the same P. What a rank contributes to Q, and to tensors that are not factorized, is its
    // own. The rounding of P loses nothing, because Q_w is computed from the P that was rounded.
    take_left_factors(left, own_left);
    multiply_out(own_left, own_right, own);
  }
  const float* q = right.data();
  for (size_t i = 0; i < parts().size(); ++i) {
    std::copy(q, q + parts()[i].q_size(), q_[i].begin());
    q += parts()[i].q_size();
  }
  multiply_out(left, right, data);
}

}  // namespace starling
