#include "starling/lasso/lasso_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <new>
#include <string_view>

#include "starling/base/error.h"
#include "starling/base/keyed_normal.h"
#include "starling/base/keyed_random.h"
#include "starling/base/unopened_file.h"
#include "starling/lasso/column_kernels.h"

namespace starling {
namespace {

constexpr int64_t kMostNumbers = int64_t{1} << 36;  // of one rank
constexpr std::string_view kNpyMagic = "\x93NUMPY";
constexpr size_t kLongestHeader = 1 << 16;

// Makes room for the numbers of a rank. Errors: ConfigError for generated samples, or DataError for those of
// a file, if they are too many; Error(kMemory).
void reserve_numbers(LassoData& data, bool generated) {
  if (data.features > 0 && data.count > kMostNumbers / data.features) {
    const std::string what = fmt::format(
        "{} samples of {} features take more than {} GiB per rank; use more ranks, or fewer features",
        data.count, data.features, kMostNumbers >> 27);
    if (generated) throw ConfigError("--samples", what);
    throw DataError(data.name + ": " + what);
  }
  try {
    data.columns.assign(static_cast<size_t>(data.count * data.features), 0);
    data.targets.assign(static_cast<size_t>(data.count), 0);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::kMemory, fmt::format("{} samples of {} features do not fit into memory; use more "
                                                "ranks, or fewer features",
                                                data.count, data.features));
  }
}

void take_range(LassoData& data, int rank, int ranks) {
  const SampleRange range = samples_of_rank(data.samples, rank, ranks);
  data.first = range.begin;
  data.count = range.end - range.begin;
}

// Stores a row of features + 1 numbers.
template <typename T>
void put_row(LassoData& data, int64_t i, const T* numbers, LabelColumn label) {
  const int64_t shift = label == LabelColumn::kFirst ? 1 : 0;
  for (int64_t j = 0; j < data.features; ++j)
    data.columns[static_cast<size_t>(j * data.count + i)] = static_cast<double>(numbers[j + shift]);
  data.targets[static_cast<size_t>(i)] = static_cast<double>(numbers[shift == 1 ? 0 : data.features]);
}

// The head of a .npy file.
struct NpyHead {
  size_t bytes = 0;     // before the numbers
  bool single = false;  // fp32 numbers
  int64_t rows = 0, columns = 0;
};

[[noreturn]] void refuse_npy(const std::string& path, const std::string& what) {
  throw DataError(
      fmt::format("{}: {}; write it by numpy.save(path, numpy.ascontiguousarray(a, \"<f8\")) "
                  "with one row per sample",
                  path, what));
}

// Returns what follows `key` in the dictionary of the header, without blanks.
std::string_view value_in(const std::string& path, std::string_view header, std::string_view key) {
  const size_t at = header.find(key);
  if (at == std::string_view::npos) refuse_npy(path, "the header is damaged");
  header.remove_prefix(at + key.size());
  const size_t begin = header.find_first_not_of(": ");
  return begin == std::string_view::npos ? std::string_view{} : header.substr(begin);
}

NpyHead read_npy_head(const std::string& path, std::ifstream& file) {
  char start[12] = {};
  file.read(start, sizeof(start));
  const bool first = start[6] == 1;
  const auto at = [&](int i) { return static_cast<size_t>(static_cast<unsigned char>(start[i])); };
  const size_t size = first ? at(8) + (at(9) << 8) : at(8) + (at(9) << 8) + (at(10) << 16) + (at(11) << 24);
  if (!file || size > kLongestHeader) refuse_npy(path, "the header is damaged");
  NpyHead head{.bytes = size + (first ? 10 : 12)};
  std::string header(size, ' ');
  file.seekg(first ? 10 : 12);
  file.read(header.data(), static_cast<std::streamsize>(size));
  if (!file) refuse_npy(path, "the header is damaged");
  const std::string_view type = value_in(path, header, "'descr'");
  head.single = type.starts_with("'<f4'");
  if (!head.single && !type.starts_with("'<f8'")) refuse_npy(path, "the numbers are neither <f8 nor <f4");
  if (!value_in(path, header, "'fortran_order'").starts_with("False"))
    refuse_npy(path, "the matrix is in column-major order");
  std::string_view shape = value_in(path, header, "'shape'");
  for (int64_t* count : {&head.rows, &head.columns}) {
    const size_t begin = shape.find_first_not_of("(, ");
    if (begin == std::string_view::npos) refuse_npy(path, "the array is no matrix");
    shape.remove_prefix(begin);
    const auto [end, error] = std::from_chars(shape.data(), shape.data() + shape.size(), *count);
    if (error != std::errc() || *count < 0) refuse_npy(path, "the array is no matrix");
    shape.remove_prefix(static_cast<size_t>(end - shape.data()));
  }
  if (shape.substr(0, shape.find(')')).find_first_not_of(", ") != std::string_view::npos)
    refuse_npy(path, "the array is no matrix");
  return head;
}

template <typename T>
void read_npy_rows(const std::string& path, std::ifstream& file, LassoData& data, const NpyHead& head,
                   LabelColumn label) {
  std::vector<T> row(static_cast<size_t>(head.columns));
  const auto bytes = static_cast<std::streamsize>(row.size() * sizeof(T));
  file.seekg(static_cast<std::streamoff>(head.bytes) + data.first * bytes);
  for (int64_t i = 0; i < data.count; ++i) {
    if (!file.read(reinterpret_cast<char*>(row.data()), bytes))
      refuse_npy(path, fmt::format("the file ends before row {} of {}", data.first + i + 1, head.rows));
    put_row(data, i, row.data(), label);
  }
}

// Compares the header with the bytes of the file, before memory is taken for them.
void refuse_a_short_file(const std::string& path, std::ifstream& file, const NpyHead& head) {
  file.seekg(0, std::ios::end);
  const int64_t left = std::max<int64_t>(0, int64_t{file.tellg()} - static_cast<int64_t>(head.bytes));
  file.clear();
  const int64_t rows = left / (head.single ? 4 : 8) / head.columns;
  if (head.rows > rows)
    refuse_npy(path, fmt::format("the header announces {} rows of {} numbers, and the file has {}", head.rows,
                                 head.columns, rows));
}

LassoData read_npy_data(const std::string& path, std::ifstream& file, LabelColumn label, int rank,
                        int ranks) {
  const NpyHead head = read_npy_head(path, file);
  LassoData data;
  data.name = path;
  data.samples = head.rows;
  if (head.columns < 2) refuse_npy(path, "a row needs a feature and y");
  if (head.rows == 0) throw DataError(path + ": no samples");
  refuse_a_short_file(path, file, head);
  data.features = head.columns - 1;
  take_range(data, rank, ranks);
  reserve_numbers(data, false);
  if (head.single) {
    read_npy_rows<float>(path, file, data, head, label);
  } else {
    read_npy_rows<double>(path, file, data, head, label);
  }
  return data;
}

LassoData read_csv_data(const std::string& path, LabelColumn label, int rank, int ranks) {
  const SampleTable table = read_csv_samples(path, label);
  LassoData data;
  data.name = path;
  data.samples = table.count();
  data.features = table.features;
  take_range(data, rank, ranks);
  reserve_numbers(data, false);
  for (int64_t i = 0; i < data.count; ++i) {
    const double* row = table.row(data.first + i);
    for (int64_t j = 0; j < data.features; ++j)
      data.columns[static_cast<size_t>(j * data.count + i)] = row[j];
    data.targets[static_cast<size_t>(i)] = table.labels[static_cast<size_t>(data.first + i)];
  }
  return data;
}

// A standard normal number that is a function of the key.
double normal_of_key(uint64_t seed, int64_t a, int64_t b) {
  const uint64_t bits = key_of(seed, static_cast<uint64_t>(a), static_cast<uint64_t>(b));
  return normal_of(std::log1p(-uniform_of(bits)), uniform_of(mix64(bits + kGolden)));
}

// The keys of what is drawn. A sample's own numbers have its index.
constexpr int64_t kOfBlock = -1, kOfNoise = -2;
constexpr uint64_t kWeights = 0x3e1647, kFactors = 0xb10c;

}  // namespace

SampleRange samples_of_rank(int64_t samples, int rank, int ranks) {
  return {samples * rank / ranks, samples * (rank + 1) / ranks};
}

LassoData read_lasso_data(const std::string& path, LabelColumn label, int rank, int ranks) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw unopened_file(path);
  std::string start(kNpyMagic.size(), ' ');
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  if (start == kNpyMagic) {
    file.seekg(0);
    return read_npy_data(path, file, label, rank, ranks);
  }
  return read_csv_data(path, label, rank, ranks);
}

LassoData make_lasso_blocks(const GeneratedBlocks& spec, int rank, int ranks) {
  if (spec.samples < 1 || spec.features < 1 || spec.block < 1)
    throw ConfigError("--samples", "use at least one sample, one feature and one feature per block");
  if (spec.nonzeros < 0 || spec.nonzeros > spec.features)
    throw ConfigError("--nonzeros", fmt::format("{} of {} features: give at most the number of features",
                                                spec.nonzeros, spec.features));
  if (!(spec.correlation >= 0 && spec.correlation <= 1))
    throw ConfigError("--correlation", fmt::format("{}: give a number from 0 to 1", spec.correlation));
  LassoData data;
  data.name = "generated samples";
  data.samples = spec.samples;
  data.features = spec.features;
  take_range(data, rank, ranks);
  reserve_numbers(data, true);
  const double common = std::sqrt(spec.correlation), own = std::sqrt(1 - spec.correlation);
  for (int64_t j = 0; j < spec.features; ++j) {
    const int64_t block = j / spec.block;
    double* column = data.columns.data() + j * data.count;
    for (int64_t i = 0; i < data.count; ++i)
      column[i] = common * normal_of_key(spec.seed ^ kFactors, data.first + i, block) +
                  own * normal_of_key(spec.seed, data.first + i, j);
  }
  for (int64_t i = 0; i < data.count; ++i)
    data.targets[static_cast<size_t>(i)] = spec.noise * normal_of_key(spec.seed, kOfNoise, data.first + i);
  // The features with weights are spread evenly. A weight is drawn.
  for (int64_t k = 0; k < spec.nonzeros; ++k)
    add_multiple(normal_of_key(spec.seed ^ kWeights, kOfBlock, k),
                 data.column(k * spec.features / spec.nonzeros), data.targets.data(), data.count);
  return data;
}

void check_lasso_data(const LassoData& data) {
  if (data.samples < 1) throw DataError(data.name + ": no samples");
  if (data.count < 1)
    throw DataError(fmt::format(
        "{0}: {1} sample{2}, so that a rank has none; use at most {1} rank{2}, for example -n {1}", data.name,
        data.samples, data.samples == 1 ? "" : "s"));
  if (data.features < 1) throw DataError(fmt::format("{}: no features", data.name));
  for (size_t k = 0; k < data.columns.size(); ++k) {
    if (!std::isfinite(data.columns[k]))
      throw DataError(fmt::format("{}: feature {} of sample {} is not finite", data.name,
                                  static_cast<int64_t>(k) / data.count + 1,
                                  data.first + static_cast<int64_t>(k) % data.count + 1));
  }
  for (size_t i = 0; i < data.targets.size(); ++i) {
    if (!std::isfinite(data.targets[i]))
      throw DataError(fmt::format("{}: y of sample {} is not finite", data.name,
                                  data.first + static_cast<int64_t>(i) + 1));
  }
}

uint64_t hash_of(const LassoData& data) {
  std::vector<uint64_t> hashes(static_cast<size_t>(data.count));
  for (int64_t i = 0; i < data.count; ++i)
    hashes[static_cast<size_t>(i)] = mix64(static_cast<uint64_t>(data.first + i) + kGolden);
  const auto take = [&](const double* column) {
    for (size_t i = 0; i < hashes.size(); ++i)
      hashes[i] = mix64(hashes[i] + kGolden + std::bit_cast<uint64_t>(column[i]));
  };
  for (int64_t j = 0; j < data.features; ++j) take(data.column(j));
  take(data.targets.data());
  uint64_t sum = 0;
  for (const uint64_t hash : hashes) sum += hash;
  return sum;
}

}  // namespace starling
