#include "starling/comm/reduce/reduce_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "starling/comm/collective/collective_test_values.h"

namespace starling {
namespace {

// Returns numbers of moderate size. Buffers of 16-bit types also contain every kind of number (infinite, NaN,
// subnormal).
std::vector<std::byte> random_buffer(DataType type, size_t count, std::mt19937_64& random) {
  std::vector<std::byte> out(count * size_of(type));
  std::normal_distribution<double> normal(0, 3);
  for (size_t i = 0; i < count; ++i) {
    std::byte* to = out.data() + i * size_of(type);
    const double x = normal(random);
    const uint64_t bits = random();
    const auto store = [&](auto v) { std::memcpy(to, &v, sizeof(v)); };
    if (type == DataType::kFp32)
      store(static_cast<float>(x));
    else if (type == DataType::kFp64)
      store(x);
    else
      std::memcpy(to, &bits, size_of(type));
  }
  return out;
}

bool is_nan_element(DataType type, const std::byte* at) {
  uint16_t bits = 0;
  if (type != DataType::kBf16 && type != DataType::kFp16) return false;
  std::memcpy(&bits, at, 2);
  return std::isnan(type == DataType::kBf16 ? bf16_to_float(bits) : fp16_to_float(bits));
}

void expect_equal(DataType type, const std::vector<std::byte>& a, const std::vector<std::byte>& b,
                  const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  const size_t size = size_of(type);
  for (size_t i = 0; i < a.size(); i += size) {
    if (std::memcmp(&a[i], &b[i], size) == 0) continue;
    if (is_nan_element(type, &a[i]) && is_nan_element(type, &b[i])) continue;
    FAIL() << what << ": element " << i / size << " differs";
  }
}

class KernelTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (GetParam() > best_isa()) GTEST_SKIP() << "this processor lacks the instruction set";
  }
};

TEST_P(KernelTest, EqualsTheNaiveReferenceBitForBit) {
  std::mt19937_64 random(1);
  for (const DataType type : kTypes) {
    for (const ReduceOp op : kOps) {
      if (is_bitwise(op) && is_floating(type)) continue;
      for (const int p : {1, 2, 3, 5}) {
        for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{16}, size_t{1000}}) {
          std::vector<std::vector<std::byte>> buffers;
          std::vector<const void*> sources;
          buffers.reserve(static_cast<size_t>(p));
          sources.reserve(static_cast<size_t>(p));
          for (int s = 0; s < p; ++s) buffers.push_back(random_buffer(type, count, random));
          for (const auto& buffer : buffers) sources.push_back(buffer.data());
          std::vector<std::byte> fast(count * size_of(type)), slow(fast.size());
          void* to[1] = {fast.data()};
          Reduction job;
          job.sources = sources;
          job.destinations = to;
          job.count = count;
          job.type = type;
          job.op = op;
          reduce(job, GetParam());
          to[0] = slow.data();
          reduce_naive(job);
          expect_equal(type, fast, slow,
                       std::string(name_of(type)) + " " + name_of(op) + " of " + std::to_string(p));
        }
      }
    }
  }
}

void expect_stored_in_place(Isa isa, bool pages_side_by_side) {
  std::mt19937_64 random(2);
  constexpr size_t kCount = 4099;  // four pages and a remainder; with shift 0 it is aligned to a cache line
  for (const auto& [count, stream, shift] :
       {std::tuple{2, false, 0}, std::tuple{2, false, 4}, std::tuple{2, true, 0}, std::tuple{3, false, 0},
        std::tuple{3, true, 4}, std::tuple{4, false, 4}, std::tuple{5, false, 0}}) {
    std::vector<std::vector<std::byte>> memory;
    std::vector<void*> buffers;
    std::vector<std::vector<std::byte>> copies;
    std::vector<const void*> sources, copied;
    for (int s = 0; s < count; ++s) {
      const auto values = random_buffer(DataType::kFp32, kCount, random);
      memory.emplace_back(values.size() + 128);
      const auto address = reinterpret_cast<uintptr_t>(memory.back().data());
      std::byte* at = memory.back().data() + (64 - address % 64) % 64 + shift;
      std::memcpy(at, values.data(), values.size());
      buffers.push_back(at);
      sources.push_back(at);
      copies.push_back(values);
    }
    for (const auto& copy : copies) copied.push_back(copy.data());
    Reduction job;
    job.sources = sources;
    job.destinations = buffers;
    job.count = kCount;
    job.divisor = count;
    job.stream = stream;
    job.pages_side_by_side = pages_side_by_side;
    reduce(job, isa);
    std::vector<std::byte> want(kCount * 4);
    void* to[1] = {want.data()};
    job.sources = copied;
    job.destinations = to;
    reduce_naive(job);
    for (void* buffer : buffers) EXPECT_EQ(std::memcmp(buffer, want.data(), want.size()), 0);
  }
}

TEST_P(KernelTest, StoresToSeveralDestinationsInPlaceAndStreamed) {
  for (const bool pages_side_by_side : {false, true}) expect_stored_in_place(GetParam(), pages_side_by_side);
}

TEST_P(KernelTest, MinimumAndMaximumPropagateNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    for (const bool nan_first : {false, true}) {
      std::vector<float> a(32, nan_first ? nan : 1.0f), b(32, nan_first ? 1.0f : nan), out(32, 0.0f);
      const void* sources[2] = {a.data(), b.data()};
      void* to[1] = {out.data()};
      Reduction job;
      job.sources = sources;
      job.destinations = to;
      job.count = 32;
      job.op = op;
      reduce(job, GetParam());
      for (const float x : out) EXPECT_TRUE(std::isnan(x));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, KernelTest,
                         testing::Values(Isa::kBaseline, Isa::kAvx2, Isa::kAvx512));

TEST(Fp16, EveryNumberSurvivesTheConversions) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = fp16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(float_to_fp16(value), bits) << value;
  }
}

TEST(Fp16, RoundsToNearestEven) {
  EXPECT_EQ(fp16_to_float(float_to_fp16(2049.0f)), 2048.0f);
  EXPECT_EQ(fp16_to_float(float_to_fp16(2051.0f)), 2052.0f);
  EXPECT_EQ(fp16_to_float(float_to_fp16(65519.0f)), 65504.0f);
  EXPECT_TRUE(std::isinf(fp16_to_float(float_to_fp16(65520.0f))));
}

TEST(Bf16, AveragesInFp32) {
  // bf16 has no number 256 + 1, but the average of (256, 1, 1) is exactly 86.
  const uint16_t a = float_to_bf16(256), b = float_to_bf16(1);
  uint16_t out = 0;
  const void* sources[3] = {&a, &b, &b};
  void* to[1] = {&out};
  Reduction job;
  job.sources = sources;
  job.destinations = to;
  job.count = 1;
  job.type = DataType::kBf16;
  job.op = ReduceOp::kAvg;
  reduce(job);
  EXPECT_EQ(bf16_to_float(out), 86.0f);
}

}  // namespace
}  // namespace starling
