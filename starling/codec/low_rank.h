// LowRankCodec is what both forms of lowrank share (pca.h, power_sgd.h). It writes each matrix of the range
// as the product of two thin ones, M ~ P Q^T, where the columns of P are orthonormal. This file decides which
// tensors are factorized, lays out the message and decodes it.
//
//   tensor of rows × cols with r = min(rank, rows, cols):  r (rows + cols) values: P, then Q, by columns.
//   If the factors are not smaller (vectors, small matrices):  rows · cols values as they are.
//   bytes = 4 · the sum of these over the tensors. Padding is not sent.            Fixed rate, exact.
//   bytes = 2 · this sum in the stacks lowrank+fp16 and lowrank+bf16.
//
// A matrix that holds a NaN or infinity decodes to a matrix with values that are not finite.
#pragma once

#include <cstdint>
#include <memory>

#include "starling/codec/codec.h"

namespace starling {

// One tensor of the range.
struct LowRankPart {
  size_t offset = 0;          // of the first element in the range
  size_t rows = 0, cols = 0;  // the shape of the tensor
  int rank = 0;               // columns of the factors; 0: the tensor is sent as it is
  uint64_t key = 0;           // the index of the tensor, which keys the start vectors
  // Returns the number of elements.
  size_t size() const { return rows * cols; }
  // Returns the number of elements of P.
  size_t p_size() const { return static_cast<size_t>(rank) * rows; }
  // Returns the number of elements of Q.
  size_t q_size() const { return static_cast<size_t>(rank) * cols; }
  // Returns the number of values in the message.
  size_t values() const { return rank > 0 ? p_size() + q_size() : size(); }
};

// Returns the parts of a range that has these tensors. rank: the largest number of columns of the factors.
std::vector<LowRankPart> low_rank_parts(const std::vector<TensorShape>& shapes, int rank);

// The base class of both forms of codec "lowrank".
class LowRankCodec : public Codec {
 public:
  // values: the codec of the values of a message, which encodes each value by itself, or null for fp32.
  // Errors: Error(kConfig) if there are no shapes.
  LowRankCodec(const std::vector<TensorShape>& shapes, int rank, std::unique_ptr<Codec> values);
  std::string name() const override { return values_ ? "lowrank+" + values_->name() : "lowrank"; }
  bool fixed_rate() const override { return true; }
  size_t encoded_bytes(size_t count) const override;
  size_t encode(std::span<const float> in, std::span<std::byte> out) override;
  void decode(std::span<const std::byte> in, std::span<float> out) const override;
  void decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const override;

 protected:
  // Returns the tensors of the range.
  const std::vector<LowRankPart>& parts() const { return parts_; }
  // Returns the codec of the values, or null.
  Codec* values() const { return values_.get(); }
  // Checks that `count` is the number of elements of the range.
  void check_count(size_t count) const;
  // Computes the factors of the matrix of part `part`. p receives p_size() values, whose columns are
  // orthonormal, and q receives q_size() values.
  virtual void factorize(size_t part, const float* matrix, float* p, float* q) = 0;

 private:
  // Returns the bytes of `count` values of a message.
  size_t bytes_of(size_t count) const { return values_ ? values_->encoded_bytes(count) : 4 * count; }
  std::vector<LowRankPart> parts_;
  std::unique_ptr<Codec> values_;  // may be null
  size_t total_;                   // number of elements of the range
};

}  // namespace starling
