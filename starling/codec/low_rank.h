// lowrank: each matrix of the range as the product of two thin ones, M ~ P Q^T, P with orthonormal columns; what both forms
// share (pca.h, power_sgd.h): which tensors are factorised, the message, and decoding.
//
//   a tensor rows × cols with r = min(rank, rows, cols):  r (rows + cols) values, P then Q, column after column;
//   rows · cols values as they are where that is not more (vectors, small matrices)
//   bytes = 4 · sum of these over the tensors; padding is not sent                           fixed rate, exact
// A matrix with a NaN or infinity decodes to values that are not finite.
#pragma once

#include <cstdint>

#include "starling/codec/codec.h"

namespace starling {

// A tensor of the range.
struct LowRankPart {
  size_t offset = 0;  // of its first element in the range
  size_t rows = 0, cols = 0;
  int rank = 0;  // of its factors; 0: it travels as it is
  uint64_t key = 0;
  size_t size() const { return rows * cols; }
  size_t p_size() const { return static_cast<size_t>(rank) * rows; }
  size_t q_size() const { return static_cast<size_t>(rank) * cols; }
  size_t values() const { return rank > 0 ? p_size() + q_size() : size(); }
};

std::vector<LowRankPart> low_rank_parts(const std::vector<TensorShape>& shapes, int rank);

class LowRankCodec : public Codec {
 public:
  // Errors: Error(kConfig) without shapes.
  LowRankCodec(const std::vector<TensorShape>& shapes, int rank);
  std::string name() const override { return "lowrank"; }
  bool fixed_rate() const override { return true; }
  size_t encoded_bytes(size_t count) const override;
  size_t encode(std::span<const float> in, std::span<std::byte> out) override;
  void decode(std::span<const std::byte> in, std::span<float> out) const override;
  void decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const override;

 protected:
  const std::vector<LowRankPart>& parts() const { return parts_; }
  void check_count(size_t count) const;
  // Fills p (p_size() values, orthonormal) and q (q_size()) with the factors of the part's matrix.
  virtual void factorise(size_t part, const float* matrix, float* p, float* q) = 0;

 private:
  std::vector<LowRankPart> parts_;
  size_t total_;  // elements of the range
};

}  // namespace starling
