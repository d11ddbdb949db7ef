#include "starling/nn/safetensors/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "starling/base/error.h"
#include "starling/compress/compressed_file.h"
#include "starling/testing/file_size_limit.h"

namespace starling {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class Safetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "starling-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::string path(const std::string& name) const { return dir_ / name; }

  std::string file_with(const std::string& header, size_t data_bytes, int64_t length = -1) const {
    const std::string name = path("made.safetensors");
    const uint64_t n = length < 0 ? header.size() : static_cast<uint64_t>(length);
    std::ofstream out(name, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&n), 8);
    out << header << std::string(data_bytes, '\1');
    return name;
  }

  size_t files() const { return std::distance(fs::directory_iterator(dir_), fs::directory_iterator()); }

  fs::path dir_;
};

std::string error_of(const std::string& file) {
  try {
    read_safetensors(file);
  } catch (const DataError& e) {
    return e.what();
  }
  return "read without an error";
}

TensorMap samples() {
  TensorMap map;
  int i = 0;
  for (const auto type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort,
                          at::kChar, at::kByte, at::kBool}) {
    map["t" + std::to_string(i++)] = torch::randint(0, 2, {3, 1 + i % 2}).to(type);
  }
  map["scalar"] = torch::tensor(3.5);
  map["empty"] = torch::zeros({0, 4});
  map["transposed"] = torch::arange(6).reshape({2, 3}).t();
  map["name with \"quotes\" and ünïcode"] = torch::ones({2});
  return map;
}

void expect_equal(const TensorMap& a, const TensorMap& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.count(name)) << name;
    EXPECT_EQ(b.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(torch::equal(b.at(name), tensor)) << name;
  }
}

TEST_F(Safetensors, RoundTripKeepsEveryDtypeAndShape) {
  const TensorMap map = samples();
  write_safetensors(path("a.safetensors"), map, {{"format", "pt"}, {"step", "12"}});
  const TensorFile file = read_safetensors(path("a.safetensors"));
  expect_equal(map, file.tensors);
  EXPECT_EQ(file.metadata.at("step"), "12");
  EXPECT_EQ(files(), 1u);
}

TEST_F(Safetensors, NoTensorsAtAll) {
  write_safetensors(path("a.safetensors"), {});
  EXPECT_TRUE(read_safetensors(path("a.safetensors")).tensors.empty());
}

TEST_F(Safetensors, TheNameDecidesWhatIsWrittenAndTheContentWhatIsRead) {
  const TensorMap map = samples();
  for (const char* name : {"a.pt", "a.pth", "a.safetensors", "a.safetensors.index.json"}) {
    write_weights(path(name), map);
    expect_equal(map, read_weights(path(name)).tensors);
  }
  fs::rename(path("a.pt"), path("b.safetensors"));
  expect_equal(map, read_weights(path("b.safetensors")).tensors);
  EXPECT_THAT(error_of(path("b.safetensors")), HasSubstr("b.safetensors: is a .pt file"));
  expect_equal(map, read_safetensors(path("a.safetensors")).tensors);
}

TEST_F(Safetensors, ViewsOfAPtFileOutliveItAndDoNotWriteToIt) {
  const std::string name = path("a.pt");
  write_weights(name, {{"a", torch::arange(1000)}});
  const at::Tensor kept = read_weights(name).tensors.at("a");
  kept.add_(1);
  EXPECT_EQ(kept[999].item<int64_t>(), 1000);
  EXPECT_EQ(read_weights(name).tensors.at("a")[999].item<int64_t>(), 999);
  fs::remove(name);
  EXPECT_EQ(kept.sum().item<int64_t>(), 1000 * 1001 / 2);
}

TEST_F(Safetensors, ADamagedPtFileIsADataError) {
  const std::string name = path("a.pt");
  write_weights(name, {{"a", torch::full({100}, 0x5a, torch::kByte)}});
  {
    std::fstream file(name, std::ios::in | std::ios::out | std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    file.clear();
    file.seekp(static_cast<std::streamoff>(bytes.find(std::string(100, 0x5a)) + 50));
    file.put('!');
  }
  try {
    read_weights(name);
    FAIL() << "read a damaged file";
  } catch (const DataError& e) {
    EXPECT_THAT(e.what(), HasSubstr("a.pt: damaged: the checksum of data/0 differs"));
  }
}

TEST_F(Safetensors, ViewsOutliveTheFileAndDoNotWriteToIt) {
  const std::string name = path("a.safetensors");
  write_safetensors(name, {{"a", torch::arange(1000)}, {"b", torch::ones({5})}});
  at::Tensor kept;
  {
    const TensorFile file = read_safetensors(name);
    kept = file.tensors.at("a");
  }
  kept.add_(1);
  EXPECT_EQ(kept[999].item<int64_t>(), 1000);
  EXPECT_EQ(read_safetensors(name).tensors.at("a")[999].item<int64_t>(), 999);
  fs::remove(name);
  EXPECT_EQ(kept.sum().item<int64_t>(), 1000 * 1001 / 2);
}

TEST_F(Safetensors, UnalignedTensorsAreRead) {
  const std::string name = file_with(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                                     R"("b":{"dtype":"F32","shape":[2],"data_offsets":[3,11]}})",
                                     11);
  const at::Tensor b = read_safetensors(name).tensors.at("b");
  float expected;
  std::memcpy(&expected, "\1\1\1\1", 4);
  EXPECT_EQ(b[1].item<float>(), expected);
}

struct BadHeader {
  std::string header, message;
  size_t data_bytes = 8;
  int64_t length = -1;
};

TEST_F(Safetensors, HostileHeadersAreRefused) {
  const std::string ok = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  const auto tensor = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return "{\"a\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}";
  };
  std::string deep = "{\"a\":";
  for (int i = 0; i < 100000; ++i) deep += "[";
  const std::vector<BadHeader> cases = {
      {"", "does not begin with {", 0},
      {"{}", "announce a header of 100000001 bytes", 0, 100000001},
      {"{}", "announce a header of 9223372036854775807 bytes", 0, INT64_MAX},
      {"{\"a\":{" + ok, "announce a header of 200 bytes", 8, 200},
      {"[1]", "does not begin with {"},
      {"{\"a\":{" + ok + "}", "not JSON at offset"},
      {"{\"a\":{" + ok + "}} x", "not JSON at offset"},
      {"{\"\xff\":{" + ok + "}}", "not JSON at offset"},
      {deep, "JSON array where the format has none"},
      {"{\"a\":{\"dtype\":{\"x\":{}}}}", "JSON object where the format has none"},
      {"{\"a\":{" + ok + "},\"a\":{" + ok + "}}", "twice"},
      {"{\"a\":{" + ok + ",\"dtype\":\"F32\"}}", "\"dtype\" twice"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", "needs dtype, shape and data_offsets"},
      {"{\"a\":{" + ok + ",\"extra\":\"x\"}}", "unknown field \"extra\""},
      {"{\"a\":3}", "number where the format has none"},
      {std::string("{}\0 rest", 8), "not JSON at offset 10: a zero byte", 0},
      {"{\"a\":[0]}", "JSON array where the format has none"},
      {"{\"a\":[]}", "JSON array where the format has none", 0},
      {"{\"b\":{" + ok + "},\"a\":[2]}", "\"a\": a JSON array where the format has none"},
      {"{\"a\":null}", "null where the format has none"},
      {"{\"__metadata__\":{\"step\":12},\"a\":{" + ok + "}}", "\"__metadata__\": a number"},
      {"{\"__metadata__\":{\"s\":\"1\",\"s\":\"2\"},\"a\":{" + ok + "}}", "the key \"s\" twice"},
      {"{\"__metadata__\":{},\"__metadata__\":{}}", "twice"},
      {"{\"__metadata__\":\"x\"}", "string where the format has none"},
      {tensor("\"F33\"", "[2]", "[0,8]"), "unknown dtype \"F33\""},
      {tensor("\"F32\"", "[-2]", "[0,8]"), "-2 is negative"},
      {tensor("\"F32\"", "[2.0]", "[0,8]"), "not an integer"},
      {tensor("\"F32\"", "[18446744073709551615]", "[0,8]"), "too large"},
      {tensor("\"F32\"", "[4294967296,4294967296]", "[0,8]"), "overflows"},
      {tensor("\"F32\"", "[4611686018427387904,2]", "[0,8]"), "overflows"},
      {tensor("\"F32\"", "[0,4611686018427387904,8]", "[0,0]"), "overflows", 0},
      {tensor("\"F32\"", "[3]", "[0,8]"), "takes 12 bytes"},
      {tensor("\"F32\"", "[2]", "[8,0]"), "takes 8 bytes"},
      {tensor("\"F32\"", "[2]", "[0]"), "1 numbers, not 2"},
      {tensor("\"F32\"", "[2]", "[4,12]"), "there is a gap", 12},
      {tensor("\"F32\"", "[2]", "[0,8]"), "truncated", 7},
      {tensor("\"F32\"", "[2]", "[0,8]"), "1 bytes follow the last tensor", 9},
      {"{\"a\":{" + ok + "},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", "they overlap",
       12},
      {"{}", "8 bytes follow the last tensor"},
  };
  for (const BadHeader& bad : cases) {
    const std::string message = error_of(file_with(bad.header, bad.data_bytes, bad.length));
    EXPECT_THAT(message, HasSubstr(bad.message)) << bad.header.substr(0, 200);
    EXPECT_THAT(message, HasSubstr("made.safetensors"));
  }
  EXPECT_EQ(error_of(file_with("{\"a\":{" + ok + "}}", 8)), "read without an error");
}

TEST_F(Safetensors, MissingShortAndSpecialFiles) {
  EXPECT_THAT(error_of(path("none.safetensors")), HasSubstr("No such file"));
  std::ofstream(path("short.safetensors")) << "1234";
  EXPECT_THAT(error_of(path("short.safetensors")), HasSubstr("truncated: 4 bytes"));
  EXPECT_THAT(error_of(dir_.string()), HasSubstr("not a regular file"));
}

TEST_F(Safetensors, ShardsAndIndex) {
  const TensorMap map = samples();
  const std::string index = path("model.safetensors.index.json");
  write_safetensors_sharded(index, map, 40);
  EXPECT_GT(files(), 3u);
  const TensorFile file = read_safetensors(index);
  expect_equal(map, file.tensors);
  EXPECT_TRUE(file.metadata.count("total_size"));
}

TEST_F(Safetensors, HostileIndexIsRefused) {
  const std::string index = path("model.safetensors.index.json");
  write_safetensors(path("s.safetensors"), {{"a", torch::ones({2})}});
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{", "not JSON"},
      {"[]", "no \"weight_map\""},
      {std::string("{\"weight_map\":{}}\0 rest", 23), "a zero byte at offset 17"},
      {"{\"weight_map\":{\"a\":1}}", "has no file name"},
      {"{\"weight_map\":{\"a\":\"../s.safetensors\"}}", "not a file beside the index"},
      {"{\"weight_map\":{\"b\":\"s.safetensors\"}}", "tensor \"b\" should be in"},
      {"{\"weight_map\":{\"b\":\"none.safetensors\"}}", "No such file"},
      {"{\"a\":[[[[[[]]]]]]}", "nested deeper"},
  };
  for (const auto& [text, message] : cases) {
    std::ofstream(index) << text;
    EXPECT_THAT(error_of(index), HasSubstr(message)) << text;
  }
}

TEST_F(Safetensors, FailedWriteKeepsTheOldFileAndLeavesNothingBehind) {
  const std::string name = path("a.safetensors");
  const TensorMap old = {{"a", torch::arange(10)}};
  write_safetensors(name, old);
  {
    const FileSizeLimit limit(4096);
    try {
      write_safetensors(name, {{"a", torch::zeros({100000})}});
      FAIL() << "wrote beyond the limit";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kCheckpoint);
      EXPECT_THAT(e.what(), HasSubstr(name));
      EXPECT_THAT(e.what(), HasSubstr("File too large"));
    }
  }
  expect_equal(old, read_safetensors(name).tensors);
  EXPECT_EQ(files(), 1u);
}

TEST_F(Safetensors, CompressedWeightsAreReadByTheirContent) {
  const std::vector<float> codebook = {-0.5f, 0.25f};
  CompressedTensor tensor{.name = "fc.weight", .shape = {2, 3}, .clustered = true};
  tensor.values.resize(8);
  std::memcpy(tensor.values.data(), codebook.data(), 8);
  tensor.positions = {1, 5};
  tensor.clusters = {1, 0};
  CompressedTensor count{.name = "n", .dtype = weights::Dtype::kI64};
  count.values.assign(8, std::byte{0});
  count.values[0] = std::byte{42};
  const std::vector<std::byte> bytes = write_compressed({tensor, count});
  const std::string name = path("named.pt");  // the content decides
  std::ofstream(name, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  expect_equal(
      {{"fc.weight", torch::tensor({{0.f, 0.25f, 0.f}, {0.f, 0.f, -0.5f}})}, {"n", torch::tensor(42)}},
      read_weights(name).tensors);
  EXPECT_THAT(error_of(name), HasSubstr("named.pt: holds compressed weights; a safetensors file"));
  fs::resize_file(name, bytes.size() - 1);
  EXPECT_THROW(read_weights(name), DataError);
}

TEST_F(Safetensors, PlacesThatCannotBeWritten) {
  const TensorMap map = {{"a", torch::ones({2})}};
  EXPECT_THROW(write_safetensors(path("none/a.safetensors"), map), Error);
  EXPECT_THROW(write_safetensors("/dev/full", map), Error);
  EXPECT_THROW(write_weights(path("none/a.pt"), map), Error);
  EXPECT_THROW(write_weights(path("a.pt"), {{"c", torch::ones({2}, torch::kComplexFloat)}}), Error);
  EXPECT_THROW(write_safetensors(dir_.string(), map), Error);
  EXPECT_THROW(write_safetensors(path("a"), {{"c", torch::ones({2}, torch::kComplexFloat)}}), Error);
  EXPECT_EQ(files(), 0u);
}

}  // namespace
}  // namespace starling
