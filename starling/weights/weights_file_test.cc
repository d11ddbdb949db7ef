#include "starling/weights/weights_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>
#include <numeric>
#include <tuple>

namespace starling::weights {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// Returns a File over bytes in memory.
File open(const std::string& bytes, const std::string& name = "made.pt") {
  return {name, bytes.size(), [bytes](uint64_t offset, void* out, size_t size) {
            std::memcpy(out, bytes.data() + offset, size);
          }};
}

Sink into(std::string& file) {
  return [&file](const void* bytes, size_t size) { file.append(static_cast<const char*>(bytes), size); };
}

// Returns the message with which `bytes` are refused.
std::string error_of(const std::string& bytes, const std::string& name = "made.pt") {
  try {
    File file = open(bytes, name);
    for (const Tensor& tensor : file.tensors()) file.read(tensor);
  } catch (const FileError& error) {
    return error.what();
  }
  return "read without an error";
}

template <typename T>
std::vector<T> elements_of(File& file, const std::string& name) {
  const Tensor* tensor = file.find(name);
  if (tensor == nullptr || tensor->bytes() != tensor->elements * sizeof(T))
    throw FileError("no tensor " + name);
  std::vector<T> values(tensor->elements);
  file.read(*tensor, 0, tensor->elements, values.data());
  return values;
}

// The bytes of a test's tensors.
const std::string kBytes = [] {
  std::string bytes(4096, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 + i / 256);
  return bytes;
}();

Source source(const std::string& name, Dtype dtype, const std::vector<int64_t>& shape) {
  return {name, dtype, shape, [] { return kBytes.data(); }};
}

std::vector<Source> every_dtype() {
  std::vector<Source> sources;
  sources.reserve(kDtypes.size() + 3);
  for (size_t i = 0; i < kDtypes.size(); ++i)
    sources.push_back(
        source("t." + std::to_string(i), static_cast<Dtype>(i), {3, static_cast<int64_t>(i) + 1}));
  sources.push_back(source("scalar", Dtype::kF64, {}));
  sources.push_back(source("empty", Dtype::kF32, {0, 3}));
  sources.push_back(source("ünï \"code\"\n\x01", Dtype::kU8, {5}));
  return sources;
}

std::string pt_of(const std::vector<Source>& sources) {
  std::string file;
  write_pt(into(file), sources);
  return file;
}

// Pieces of a pickle, as torch.save writes them.
namespace pickle {

std::string number(int64_t value) {
  std::string bytes("\x8a\x08");
  return bytes.append(reinterpret_cast<const char*>(&value), 8);
}
std::string text(const std::string& value) {
  const auto size = static_cast<uint32_t>(value.size());
  return std::string("X").append(reinterpret_cast<const char*>(&size), 4) + value;
}
std::string tuple(const std::vector<int64_t>& values) {
  std::string bytes("(");
  for (const int64_t value : values) bytes += number(value);
  return bytes + "t";
}
std::string storage(const std::string& type, const std::string& key, int64_t elements) {
  return "(" + text("storage") + "ctorch\n" + type + "\n" + text(key) + text("cuda:0") + number(elements) +
         "tQ";
}
std::string tensor(const std::string& from, int64_t offset, const std::vector<int64_t>& shape,
                   const std::vector<int64_t>& strides) {
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + from + number(offset) + tuple(shape) + tuple(strides) +
         "\x89"
         "ccollections\nOrderedDict\n)RtR";
}
std::string parameter(const std::string& of) {
  return "ctorch._utils\n_rebuild_parameter\n(" + of +
         "\x88"
         "ccollections\nOrderedDict\n)RtR";
}
// A dictionary of keys and values in turn.
std::string dict(const std::string& items) {
  return "}(" + items + "u";
}
// A tensor of the record data/0, which has 6 floats.
std::string six() {
  return tensor(storage("FloatStorage", "0", 6), 0, {2, 3}, {3, 1});
}

}  // namespace pickle

constexpr float kSix[] = {0, 1, 2, 3, 4, 5};

// Returns a .pt file with this pickle and the record data/0.
std::string file_with(const std::string& body, const std::string& order = "little") {
  std::string file;
  const Sink sink = into(file);
  detail::ZipWriter zip(sink);
  const std::string whole = "\x80\x02" + body + ".";
  zip.add("data.pkl", whole.data(), whole.size());
  if (!order.empty()) zip.add("byteorder", order.data(), order.size());
  zip.add("data/0", kSix, sizeof(kSix));
  zip.add("version", "3\n", 2);
  zip.finish();
  return file;
}

TEST(WeightsFile, RoundTripKeepsEveryDtypeAndShape) {
  for (const bool pt : {false, true}) {
    std::string bytes;
    pt ? write_pt(into(bytes), every_dtype())
       : write_safetensors(into(bytes), every_dtype(), {{"a\"\t", "ü"}});
    File file = open(bytes, "f");
    EXPECT_EQ(file.format(), pt ? Format::kPt : Format::kSafetensors);
    if (!pt) {
      EXPECT_THAT(file.metadata(), ElementsAre(Pair("a\"\t", "ü")));
    }
    EXPECT_EQ(file.tensors().size(), every_dtype().size());
    for (const Source& source : every_dtype()) {
      const Tensor* tensor = file.find(source.name);
      ASSERT_NE(tensor, nullptr) << source.name;
      EXPECT_EQ(tensor->dtype, source.dtype);
      EXPECT_EQ(tensor->shape, source.shape);
      EXPECT_TRUE(tensor->contiguous());
      const std::vector<std::byte> read = file.read(*tensor);
      ASSERT_EQ(read.size(), tensor->bytes());
      EXPECT_TRUE(read.empty() || std::memcmp(read.data(), kBytes.data(), read.size()) == 0) << source.name;
      EXPECT_EQ(tensor->offset % (pt ? 64 : 1), 0u);
    }
    EXPECT_EQ(file.find("none"), nullptr);
  }
}

TEST(WeightsFile, RangesAreReadFromWhereTheyLie) {
  const std::string bytes = pt_of({source("a", Dtype::kI16, {4, 5})});
  std::vector<std::pair<uint64_t, size_t>> reads;
  File file("f", bytes.size(), [&](uint64_t offset, void* out, size_t size) {
    reads.emplace_back(offset, size);
    std::memcpy(out, bytes.data() + offset, size);
  });
  const Tensor& a = file.tensors()[0];
  std::array<int16_t, 3> values{};
  file.read(a, 7, 3, values.data());
  EXPECT_EQ(std::memcmp(values.data(), kBytes.data() + 14, 6), 0);
  reads.clear();
  file.read(a, 19, 1, values.data());  // the checksum was compared before
  EXPECT_THAT(reads, ElementsAre(Pair(a.offset + 38, 2u)));
  EXPECT_THROW(file.read(a, 19, 2, values.data()), FileError);
  EXPECT_THROW(file.read(a, 21, 0, values.data()), FileError);
}

TEST(WeightsFile, NestedDictionariesListsAndPlainValues) {
  using namespace pickle;
  const std::string body =
      dict(text("model") + "ccollections\nOrderedDict\n)Rq\x01(" + text("fc.weight") + parameter(six()) +
           text("alias") + tensor(storage("FloatStorage", "0", 6), 4, {2}, {1}) + "u}" + text("_metadata") +
           "h\x01sb" + text("epoch") + "K\x03" + text("lr") +
           std::string("G\x3f\xb9\x99\x99\x99\x99\x99\x9a", 9) + text("note") + text("ü") + text("state") +
           dict("K\x07" + dict(text("exp_avg") + six())) + text("list") + "](" + six() + "M\x01\x02" + "e" +
           text("pair") + "N\x88\x86" + text("minus") + std::string("J\xfe\xff\xff\xff", 5) + text("zero") +
           std::string("\x8a\0", 2) + text("big") + "\x8a\x09" + "123456789");
  File file = open(file_with(body));
  std::vector<std::string> names;
  for (const Tensor& tensor : file.tensors()) names.push_back(tensor.name);
  EXPECT_THAT(names, ElementsAre("model.fc.weight", "model.alias", "state.7.exp_avg", "list.0"));
  EXPECT_THAT(elements_of<float>(file, "model.fc.weight"), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(elements_of<float>(file, "model.alias"), ElementsAre(4, 5));
  EXPECT_THAT(file.metadata(),
              ElementsAre(Pair("big", "1055515178193424429617"), Pair("epoch", "3"), Pair("list.1", "513"),
                          Pair("lr", "0.1"), Pair("minus", "-2"), Pair("note", "ü"), Pair("pair.0", "None"),
                          Pair("pair.1", "True"), Pair("zero", "0")));
}

TEST(WeightsFile, StridedAndRepeatedTensors) {
  using namespace pickle;
  const std::string from = storage("FloatStorage", "0", 6);
  File file = open(file_with(
      dict(text("t") + tensor(from, 0, {3, 2}, {1, 3}) + text("column") + tensor(from, 1, {2}, {3}) +
           text("repeated") + tensor(from, 5, {2, 2}, {0, 0}) + text("one") +
           tensor(from, 5, {1, 1}, {900, 7}) + text("none") + tensor(from, 7, {0, 4}, {4, 1}))));
  EXPECT_FALSE(file.find("t")->contiguous());
  EXPECT_TRUE(file.find("one")->contiguous());
  EXPECT_THAT(elements_of<float>(file, "t"), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_THAT(elements_of<float>(file, "column"), ElementsAre(1, 4));
  EXPECT_THAT(elements_of<float>(file, "repeated"), ElementsAre(5, 5, 5, 5));
  EXPECT_THAT(elements_of<float>(file, "one"), ElementsAre(5));
  EXPECT_THAT(elements_of<float>(file, "none"), ElementsAre());
  float range[2];
  file.read(*file.find("t"), 3, 2, range);
  EXPECT_THAT(range, ElementsAre(4, 2));
}

// A file whose tensor "t" has this shape and these strides in a storage of `elements` int32: 0, 1, 2, …
std::string counted(int64_t elements, const std::vector<int64_t>& shape, const std::vector<int64_t>& strides,
                    const std::string& more = "") {
  using namespace pickle;
  std::vector<int32_t> numbers(static_cast<size_t>(elements));
  std::iota(numbers.begin(), numbers.end(), 0);
  std::string bytes;
  const Sink sink = into(bytes);
  detail::ZipWriter zip(sink);
  const std::string whole =
      "\x80\x02" +
      dict(text("t") + tensor(storage("IntStorage", "0", elements), 0, shape, strides) + "q\x01" + more) +
      ".";
  zip.add("data.pkl", whole.data(), whole.size());
  zip.add("data/0", numbers.data(), 4 * numbers.size());
  zip.finish();
  return bytes;
}

TEST(WeightsFile, OnlyTheRangeOfStridedElementsIsRead) {
  const std::string bytes = counted(1 << 20, {1024, 1024}, {1, 1024});
  uint64_t total = 0;
  File file("f", bytes.size(), [&](uint64_t offset, void* out, size_t size) {
    total += size;
    std::memcpy(out, bytes.data() + offset, size);
  });
  const Tensor& t = *file.find("t");
  file.verify(t);
  std::vector<int32_t> got(1024);
  const auto bytes_read = [&](uint64_t first, uint64_t count) {
    total = 0;
    file.read(t, first, count, got.data());
    return total;
  };
  EXPECT_EQ(bytes_read(1024 + 1, 1), 4u);
  EXPECT_EQ(got[0], 1025);
  EXPECT_EQ(bytes_read(1023, 2), 8u);  // of two rows
  EXPECT_EQ(got[0], 1023 * 1024);
  EXPECT_EQ(got[1], 1);
  EXPECT_EQ(bytes_read(5 * 1024, 1024), 4096u);
  for (int32_t i = 0; i < 1024; ++i) EXPECT_EQ(got[static_cast<size_t>(i)], i * 1024 + 5);
}

TEST(WeightsFile, EveryPartOfStridedTensors) {
  const std::vector<int64_t> shape = {3, 4, 5};
  for (const std::vector<int64_t>& strides :
       {std::vector<int64_t>{1, 70'000, 9}, {30'000, 5, 50'000}, {0, 9, 70'000}, {100'000, 0, 2}}) {
    File file = open(counted(320'000, shape, strides));
    std::vector<int32_t> expected;
    expected.reserve(60);
    for (int64_t i = 0; i < 60; ++i)
      expected.push_back(
          static_cast<int32_t>(i / 20 * strides[0] + i / 5 % 4 * strides[1] + i % 5 * strides[2]));
    for (uint64_t first = 0; first < 60; ++first) {
      for (uint64_t count = 0; first + count <= 60; ++count) {
        std::vector<int32_t> got(count);
        file.read(*file.find("t"), first, count, got.data());
        ASSERT_TRUE(std::equal(got.begin(), got.end(), expected.begin() + static_cast<ptrdiff_t>(first)));
      }
    }
  }
}

struct Bad {
  std::string body, message;
};

void expect_refused(const std::vector<Bad>& cases) {
  for (const Bad& bad : cases) {
    const std::string message = error_of(file_with(bad.body));
    EXPECT_THAT(message, HasSubstr(bad.message)) << bad.body.substr(0, 200);
    EXPECT_THAT(message, HasSubstr("made.pt: "));
  }
}

// A dictionary with the value "a".
std::string one(const std::string& value) {
  return pickle::dict(pickle::text("a") + value);
}

TEST(WeightsFile, GlobalsAndOperationsOfOtherPicklesAreRefused) {
  using namespace pickle;
  expect_refused({
      {"cos\nsystem\n(" + text("touch /tmp/x") + "tR",
       "the global os.system is refused; nothing of the file was executed"},
      {text("os") + text("system") + "\x93", "the global os.system is refused"},
      {"c__main__\nNet\n)\x81",
       "the global __main__.Net is refused; nothing of the file was executed; save tensors only"},
      {"c__builtin__\neval\n", "the global __builtin__.eval is refused"},
      {"ctorch._utils\n_rebuild_parameter_with_state\n",
       "_rebuild_parameter_with_state is refused; the parameter has attributes of its own: save "
       "parameter.detach()"},
      {"ctorch._tensor\n_rebuild_from_type_v2\n",
       "save tensor.detach().as_subclass(torch.Tensor) in its place"},
      {one("(" + text("storage") + "ccollections\nOrderedDict\n" + text("0") + text("cpu") + number(6) +
           "tQ"),
       "the storage class collections.OrderedDict is refused"},
      {one("(" + text("storage") + "ctorch.storage\nUntypedStorage\n" + text("0") + text("cpu") + number(6) +
           "tQ"),
       "the storage class torch.storage.UntypedStorage is refused"},
      {one("(" + text("storage") + "ctorch\nFloatStorage\n" + text(std::string(65, '0')) + text("cpu") +
           number(6) + "tQ"),
       "the name of a storage is too long"},
      {one("ctorch\nSize\n"), "the global torch.Size is refused"},
      {one(tensor(storage("ComplexFloatStorage", "0", 3), 0, {3}, {1})),
       "the dtype torch.ComplexFloatStorage is refused; convert"},
      {one("ctorch._utils\n_rebuild_tensor_v3\n(ctorch\nuint16\n"),
       "the dtype torch.uint16 is refused; convert the tensor"},
      {"ctorch._utils\n_rebuild_tensor_v3\n)R",
       "the call of torch._utils._rebuild_tensor_v3 with 0 arguments is refused"},
      {"ccollections\nOrderedDict\n(K\x01tR",
       "the call of collections.OrderedDict with 1 arguments is refused"},
      {"ctorch\nFloatStorage\n)R", "the call of torch.FloatStorage"},
      {"ccollections\nOrderedDict\n)\x81", "the operation 129 is not of a state_dict"},
      {"i", "the operation 105 is not of a state_dict"},
      {one(tensor("N", 0, {6}, {1})), "a value of another kind is expected"},
      {"(" + text("module") + "tQ", "a persistent id that is not of a storage"},
  });
  EXPECT_EQ(error_of(file_with(one(six()))), "read without an error");
  // Before PyTorch 2.1, files had no byte order.
  EXPECT_EQ(error_of(file_with(one(six()), "")), "read without an error");
}

TEST(WeightsFile, ValuesThatAreNoStateDictAreRefused) {
  using namespace pickle;
  std::string deep = six();
  for (int i = 0; i < 70; ++i) deep = one(deep);
  std::string twice = text("a") + "](}q\x01";  // each of 40 dictionaries holds the one before twice
  for (char i = 1; i < 40; ++i)
    twice += dict(text("a") + "h" + i + text("b") + "h" + i) + "q" + static_cast<char>(i + 1);
  twice = dict(twice + "e");
  expect_refused({
      {six(), "holds no dictionary of names"},
      {"K\x05", "holds no dictionary of names"},
      {one(storage("FloatStorage", "0", 6)),
       "\"a\" is neither a tensor nor a number, text, list or dictionary"},
      {dict("N" + six()), "a key of the dictionary is neither text nor integer"},
      {dict(text("a") + six() + text("a") + six()), "tensor \"a\": the name occurs twice"},
      {dict(text("a.b") + six() + text("a") + dict(text("b") + six())),
       "tensor \"a.b\": the name occurs twice"},
      {deep, "too deeply nested values"},
      {twice, "too many or too deeply nested values"},
      {"}q\x01" + text("a") + "h\x01s", "too deeply nested values"},
  });
}

// A list of the value that the memo has as number 1.
std::string repeated(size_t times) {
  std::string items;
  for (size_t i = 0; i < times; ++i) items += "h\x01";
  return "](" + items + "e";
}

TEST(WeightsFile, ValuesThatAreNamedOftenAreCountedEachTime) {
  using namespace pickle;
  const auto texts = [&](size_t times) {
    return dict(text("a") + text(std::string(100'000, 'x')) + "q\x01" + text("b") + repeated(times));
  };
  const std::string large =
      tensor(storage("FloatStorage", "0", 6), 0, std::vector<int64_t>(64, 1), std::vector<int64_t>(64, 1));
  const auto tensors = [&](size_t times) {
    return dict(text("a") + large + "q\x01" + text("b") + repeated(times));
  };
  const std::string lists = dict(text("a") + text("") + "q\x01" + text("b") + repeated(1000) + "q\x01" +
                                 text("c") + repeated(1000));
  EXPECT_EQ(open(file_with(texts(500))).tensors().size(), 0u);
  EXPECT_EQ(open(file_with(tensors(30'000))).tensors().size(), 30'001u);
  expect_refused({{texts(2000), "too many or too deeply nested values"},
                  {tensors(100'000), "too many or too deeply nested values"},
                  {lists, "too many or too deeply nested values"}});
}

TEST(WeightsFile, LazyConjugatesAndNegativesAreRefused) {
  using namespace pickle;
  const auto with = [](const std::string& metadata) {
    const std::string whole = six();
    return one(whole.substr(0, whole.size() - 2) + metadata + "tR");
  };
  EXPECT_EQ(error_of(file_with(with("N"))), "read without an error");
  EXPECT_EQ(error_of(file_with(with("}"))), "read without an error");
  expect_refused({{with(dict(text("neg") + "\x88")), "save tensor.resolve_conj() or tensor.resolve_neg()"},
                  {with("K\x01"), "a value of another kind is expected"}});
}

TEST(WeightsFile, NumbersAreThoseThatPythonPrints) {
  using namespace pickle;
  const auto floating = [&](double value) {
    std::string bytes(reinterpret_cast<const char*>(&value), 8);
    File file = open(file_with(one("G" + std::string(bytes.rbegin(), bytes.rend()))));
    return file.metadata().at("a");
  };
  EXPECT_EQ(floating(3), "3.0");
  EXPECT_EQ(floating(-0.0), "-0.0");
  EXPECT_EQ(floating(100000), "100000.0");
  EXPECT_EQ(floating(1e16), "1e+16");
  EXPECT_EQ(floating(0.0001), "0.0001");
  EXPECT_EQ(floating(1.5e-7), "1.5e-07");
  EXPECT_EQ(floating(-std::numeric_limits<double>::quiet_NaN()), "nan");
  EXPECT_EQ(floating(-std::numeric_limits<double>::infinity()), "-inf");
  const auto integer = [&](const std::string& digits) {
    File file = open(file_with(one("\x8a" + std::string(1, static_cast<char>(digits.size())) + digits)));
    return file.metadata().at("a");
  };
  EXPECT_EQ(integer(std::string(8, '\xff') + '\0'), "18446744073709551615");
  EXPECT_EQ(integer(std::string(8, '\0') + '\xff'), "-18446744073709551616");
  EXPECT_EQ(integer(std::string(9, '\xff')), "-1");
  EXPECT_EQ(integer(std::string(9, '\0')), "0");
  expect_refused({{one("\x8a\x81" + std::string(129, '\1')), "an int of 129 bytes is refused"}});
}

TEST(WeightsFile, LargeNumbersOfTheMemo) {
  using namespace pickle;
  File file = open(file_with(one(six() + "r\xff\xff\xff\xff") + text("b") + "j\xff\xff\xff\xffs"));
  EXPECT_THAT(elements_of<float>(file, "b"), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(WeightsFile, AStorageMayHaveBytesLeftOver) {
  using namespace pickle;  // torch.zeros(10, dtype=torch.uint8)[:8].view(torch.int32)
  File file = open(file_with(one(tensor(storage("DoubleStorage", "0", 2), 0, {2}, {1}))));
  EXPECT_EQ(file.find("a")->bytes(), 16u);
}

TEST(WeightsFile, TensorsThatReachBeyondTheirStorageAreRefused) {
  using namespace pickle;
  const auto shaped = [&](int64_t offset, const std::vector<int64_t>& shape,
                          const std::vector<int64_t>& strides) {
    return one(tensor(storage("FloatStorage", "0", 6), offset, shape, strides));
  };
  expect_refused({
      {shaped(0, {2, 3}, {3, 2}), "shape [2, 3], strides [3, 2] and offset 0 reach beyond the 6 elements"},
      {shaped(1, {6}, {1}), "reach beyond"},
      {shaped(6, {}, {}), "reach beyond"},
      {shaped(-1, {0}, {1}), "reach beyond"},
      {shaped(-1, {1}, {1}), "reach beyond"},
      {shaped(0, {2}, {INT64_MAX}), "reach beyond"},
      {shaped(0, {3, 3}, {INT64_MAX, INT64_MAX}), "reach beyond"},
      {shaped(0, {-1}, {1}), "negative: -1"},
      {shaped(0, {2}, {-1}), "negative: -1"},
      {shaped(0, {2}, {1, 1}), "shape and strides differ in length"},
      {shaped(0, std::vector<int64_t>(65, 1), std::vector<int64_t>(65, 1)), "more than 64 dimensions"},
      {shaped(0, {int64_t{1} << 40, int64_t{1} << 40}, {0, 0}), "overflows"},
      {shaped(0, {int64_t{1} << 30}, {0}), "repeat the elements of the file to more than"},
      {one(tensor(storage("FloatStorage", "1", 6), 0, {6}, {1})), "no record data/1"},
      {one(tensor(storage("FloatStorage", "../data.pkl", 6), 0, {6}, {1})), "no record data/../data.pkl"},
      {one(tensor(storage("FloatStorage", "0", 7), 0, {6}, {1})),
       "its storage has 7 elements and data/0 has 24 bytes"},
      {one(tensor(storage("DoubleStorage", "0", 6), 0, {6}, {1})), "its storage has 6 elements"},
      {one(tensor(storage("FloatStorage", "0", -1), 0, {6}, {1})), "its storage has -1 elements"},
      {one(tensor(storage("FloatStorage", "0", int64_t{1} << 62), 0, {6}, {1})), "its storage has"},
  });
}

TEST(WeightsFile, RangesOfStridedTensorsCountAsWhatAReadTakes) {
  const auto file = [](size_t times) {
    return counted(20'000, {1000}, {16}, pickle::text("list") + repeated(times));
  };
  EXPECT_EQ(open(file(10'000)).tensors().size(), 10'001u);
  EXPECT_THAT(error_of(file(20'000)), HasSubstr("repeat the elements of the file to more than"));
}

// A zip file without zip64, whose records may overlap: name, size, and bytes before the next record begins.
std::string zip_of(const std::vector<std::tuple<std::string, uint32_t, size_t>>& records) {
  std::string bytes, directory;
  const auto fields = [](const std::string& name, uint32_t size) {
    std::string text(14, '\0');  // version, flags, method, time, checksum
    for (int twice = 0; twice < 2; ++twice) detail::append(text, size, 4);
    detail::append(text, name.size(), 2);
    return text + std::string(2, '\0');
  };
  for (const auto& [name, size, before_next] : records) {
    directory += "PK\1\2" + std::string(2, '\0') + fields(name, size) + std::string(10, '\0');
    detail::append(directory, bytes.size(), 4);
    directory += name;
    bytes += "PK\3\4" + fields(name, size) + name + std::string(before_next, '\0');
  }
  const size_t begin = bytes.size();
  bytes += directory + "PK\5\6" + std::string(4, '\0');
  for (int twice = 0; twice < 2; ++twice) detail::append(bytes, records.size(), 2);
  detail::append(bytes, directory.size(), 4);
  detail::append(bytes, begin, 4);
  return bytes + std::string(2, '\0');
}

TEST(WeightsFile, RecordsThatOverlapAreRefused) {
  EXPECT_THAT(error_of(zip_of({{"a/0", 1000, 1000}, {"a/1", 1000, 1000}})),
              HasSubstr("has no record data.pkl"));
  EXPECT_THAT(error_of(zip_of({{"a/0", 1000, 0}, {"a/1", 967, 967}})), HasSubstr("overlap at \"a/1\""));
}

TEST(WeightsFile, DamagedPicklesAreRefused) {
  using namespace pickle;
  expect_refused({
      {"", "an operand is missing"},
      {"(", "an operand is missing"},
      {"t", "a mark is missing"},
      {"h\x05", "the memo has no entry 5"},
      {"}(K\x01u", "a dictionary has a key without a value"},
      {"}}", "the pickle goes on behind its end"},
      {"}.}", "the pickle goes on behind its end"},
      {"X\xff\xff\xff\xff", "the pickle ends too early"},
      {"\x8d\xff\xff\xff\xff\xff\xff\xff\xff", "the pickle ends too early"},
      {text("\xff"), "a text that is not UTF-8"},
      {"cos" + std::string(300, 'x'), "the name of a global has no end"},
      {"c\xff\nsystem\n", "the name of a global is not UTF-8"},
      {std::string(kMaxOperations, 'N'), "more than 4000000 operations"},
  });
}

TEST(WeightsFile, OtherFormatsAreRefusedWithARemedy) {
  const std::string ok = file_with(pickle::dict(""));
  EXPECT_EQ(error_of(ok), "read without an error");
  EXPECT_THAT(error_of(file_with(pickle::dict(""), "big")),
              HasSubstr("the byte order \"big\"; save it again on a little-endian machine: "
                        "torch.save(torch.load(FILE, weights_only=True), FILE)"));
  EXPECT_THAT(error_of(std::string("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15)),
              HasSubstr("the format of PyTorch before 1.6. Save it again with PyTorch 1.6 or later"));
  EXPECT_THAT(error_of("some text that is no archive"),
              HasSubstr("is not a zip archive, which torch.save writes"));
  EXPECT_THAT(error_of("some text that is no archive", "f.bin"), HasSubstr("not a safetensors file"));
  EXPECT_THAT(error_of(""), HasSubstr("is not a zip archive"));
  EXPECT_THAT(error_of("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a"),
              HasSubstr("is a pointer of Git LFS, not the file; fetch the file with git lfs pull"));
  EXPECT_THAT(error_of("<!DOCTYPE html><html>", "f"), HasSubstr("is a web page, not a file of weights"));
  EXPECT_THAT(error_of("", "f"), HasSubstr("truncated: 0 bytes"));
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string bytes = ok;
    for (size_t at = bytes.find(from); at != bytes.npos; at = bytes.find(from, at + to.size()))
      bytes.replace(at, from.size(), to);
    return bytes;
  };
  EXPECT_THAT(error_of(replaced("archive/version", "arch1ve/version")),
              HasSubstr("not one of torch.save: \"arch1ve/version\""));
  EXPECT_THAT(error_of(replaced("archive/version", "archive-version")),
              HasSubstr("\"archive-version\" is not in its folder"));
  EXPECT_THAT(error_of(replaced("archive/data.pkl", "archive/data.txt")),
              HasSubstr("has no record data.pkl"));
  EXPECT_THAT(error_of(replaced("archive/version",
                                "arch\xff\x1b"
                                "e/version")),
              HasSubstr("torch.save: \"arch??e/version\""));
  std::string compressed = ok;
  compressed[ok.find("PK\1\2") + 10] = 8;
  EXPECT_THAT(error_of(compressed), HasSubstr("\"data.pkl\" is compressed or encrypted"));
  std::string encrypted = ok;
  encrypted[ok.find("PK\1\2") + 8] |= 1;
  EXPECT_THAT(error_of(encrypted), HasSubstr("is compressed or encrypted"));
  std::string script;
  const Sink sink = into(script);
  detail::ZipWriter zip(sink);
  zip.add("data.pkl", "N.", 2);
  zip.add("constants.pkl", "N.", 2);
  zip.finish();
  script[script.find("PK\1\2") + 10] = 8;  // torch.jit.save compresses code
  EXPECT_THAT(error_of(script),
              HasSubstr("a TorchScript module. In C++, save the weights with starling::save_model()"));
}

std::vector<std::string> contents(File& file) {
  std::vector<std::string> all;
  for (const Tensor& tensor : file.tensors()) {
    const std::vector<std::byte> bytes = file.read(tensor);
    all.push_back(tensor.name + detail::shape_text(tensor.shape) + std::string(row_of(tensor.dtype).name) +
                  std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  return all;
}

TEST(WeightsFile, EveryCutAndEveryFlippedBitIsFoundOrHarmless) {
  const std::vector<Source> sources = {source("a", Dtype::kF32, {2, 3}), source("b.c", Dtype::kBF16, {}),
                                       source("e", Dtype::kBool, {0})};
  std::string safetensors;
  write_safetensors(into(safetensors), sources);
  for (const std::string& whole : {pt_of(sources), safetensors}) {
    for (size_t size = 0; size < whole.size(); ++size)
      EXPECT_NE(error_of(whole.substr(0, size), "f"), "read without an error") << size;
  }
  const std::string whole = pt_of(sources);
  File file = open(whole);
  const std::vector<std::string> expected = contents(file);
  size_t refused = 0;
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ 1 << bit % 8);
    try {
      File other = open(flipped);
      EXPECT_EQ(contents(other), expected) << bit / 8;
    } catch (const FileError&) {
      ++refused;
    }
  }
  // Every bit of the pickle and of the tensors counts.
  EXPECT_GT(refused, 8 * detail::pickle_of(sources).size());
}

#if !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)  // their shadow of 4 GiB would fill the memory
// A file whose large tensor is not kept: its bytes are zero.
struct SparseFile {
  static constexpr uint64_t kLarge = 1 << 20;

  uint64_t size = 0;
  std::map<uint64_t, std::string> parts;

  Sink sink() {
    return [this](const void* bytes, size_t count) {
      if (count < kLarge) parts[size].assign(static_cast<const char*>(bytes), count);
      size += count;
    };
  }
  void read(uint64_t offset, void* out, size_t count) const {
    std::memset(out, 0, count);
    for (const auto& [at, part] : parts) {
      const uint64_t begin = std::max(at, offset), end = std::min(at + part.size(), offset + count);
      if (begin < end)
        std::memcpy(static_cast<char*>(out) + (begin - offset), part.data() + (begin - at), end - begin);
    }
  }
};

TEST(WeightsFile, RecordsBeyondFourGigabytesHaveZip64Fields) {
  constexpr int64_t kElements = (int64_t{1} << 32) + 100;
  const std::unique_ptr<void, decltype(&std::free)> zeros(std::calloc(kElements, 1), &std::free);
  ASSERT_NE(zeros, nullptr);
  SparseFile sparse;
  write_pt(sparse.sink(), {{"large", Dtype::kU8, {kElements}, [&] { return zeros.get(); }},
                           source("small", Dtype::kU8, {200})});
  File file("f", sparse.size,
            [&](uint64_t offset, void* out, size_t size) { sparse.read(offset, out, size); });
  EXPECT_EQ(file.find("large")->shape[0], kElements);
  EXPECT_GT(file.find("small")->offset, uint64_t{1} << 32);
  const std::vector<std::byte> small = file.read(*file.find("small"));
  EXPECT_EQ(std::memcmp(small.data(), kBytes.data(), 200), 0);
}

#endif

TEST(WeightsFile, ManyRecordsHaveAZip64Directory) {
  std::vector<Source> sources;
  sources.reserve(66000);
  for (int i = 0; i < 66000; ++i) sources.push_back(source("t" + std::to_string(i), Dtype::kU8, {1}));
  const std::string bytes = pt_of(sources);
  File file = open(bytes);
  EXPECT_EQ(file.tensors().size(), 66000u);
  EXPECT_EQ(file.tensors().back().name, "t65999");
  file.verify(file.tensors().back());
}

TEST(WeightsFile, WhatIsWrittenCanBeReadHoweverManyTensorsThereAre) {
  std::vector<Source> sources;
  sources.reserve(170'000);
  for (int i = 0; i < 170'000; ++i) sources.push_back(source(std::to_string(i), Dtype::kU8, {}));
  const File file = open(pt_of(sources));
  EXPECT_EQ(file.tensors().size(), 170'000u);
  EXPECT_EQ(file.find("169999"), &file.tensors().back());
}

template <typename Temporary>
concept HasNamesOfTemporaries = requires(Temporary file) { std::move(file).metadata(); } ||
                                requires(Temporary file) { std::move(file).find("a"); };
static_assert(!HasNamesOfTemporaries<File>);

TEST(WeightsFile, MessagesCutLongNames) {
  const std::string message = error_of(file_with(
      one(pickle::dict(pickle::text(std::string(5000, 'n')) + pickle::storage("FloatStorage", "0", 6)))));
  EXPECT_THAT(message, HasSubstr("nnn…\" is neither a tensor nor"));
  EXPECT_LT(message.size(), 400u);
}

TEST(WeightsFile, EscapesOfJsonAreText) {
  const auto name_of = [](const std::string& json) {
    const std::string header = "{\"" + json + "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}";
    const uint64_t length = header.size();
    const std::string bytes = std::string(reinterpret_cast<const char*>(&length), 8) + header;
    try {
      return open(bytes, "f").tensors()[0].name;
    } catch (const FileError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(name_of(R"(\"\\\/\b\f\n\r\t)"), "\"\\/\b\f\n\r\t");
  EXPECT_EQ(name_of(R"(\u0041\u00fc\u72d0\ud83e\udd8a)"), "Aü狐🦊");
  EXPECT_EQ(name_of(R"(\u0000)"), std::string(1, '\0'));
  for (const char* bad : {R"(\ud83e)", R"(\ud83ea)", R"(\ud83e\u0041)", R"(\udd8a)", R"(\x41)", R"(\u12)",
                          R"(\u12g4)", "\x1f", "\xed\xa0\x80", "\xc0\xaf", "\xf4\x90\x80\x80", "\xe7\x8b"})
    EXPECT_THAT(name_of(bad), HasSubstr("the header is not JSON at offset")) << bad;
}

TEST(WeightsFile, WhatAFormatCannotHoldIsNotWritten) {
  const std::vector<std::pair<std::vector<Source>, std::string>> cases = {
      {{source("a", Dtype::kU8, {1}), source("a", Dtype::kU8, {1})},
       "\"a\" cannot be written: another tensor has this name"},
      {{source("\xff", Dtype::kU8, {1})}, "its name is not UTF-8"},
      {{source("__metadata__", Dtype::kU8, {1})}, "another use for this name"},
      {{source("a", Dtype::kU8, {-1})}, "a dimension is negative"},
      {{source("a", Dtype::kU8, {INT64_MAX, 2})}, "too large"},
  };
  for (const auto& [sources, message] : cases) {
    for (const bool pt : {false, true}) {
      std::string file;
      try {
        pt ? write_pt(into(file), sources) : write_safetensors(into(file), sources);
        FAIL() << "wrote " << message;
      } catch (const FileError& error) {
        EXPECT_THAT(error.what(), HasSubstr(message));
      }
      EXPECT_EQ(file, "");
    }
  }
}

class WeightsFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "weights-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::filesystem::path dir_;
};

TEST_F(WeightsFolder, TheNameDecidesWhatIsWrittenAndTheContentWhatIsRead) {
  for (const auto& [name, format] :
       {std::pair("a.pt", Format::kPt), std::pair("b.pth", Format::kPt),
        std::pair("c.safetensors", Format::kSafetensors), std::pair("d", Format::kSafetensors)}) {
    const std::string path = dir_ / name;
    write_file(path, every_dtype());
    EXPECT_EQ(File(path).format(), format) << name;
    std::filesystem::rename(path, dir_ / "renamed");
    File file(dir_ / "renamed");
    EXPECT_EQ(file.format(), format);
    EXPECT_EQ(contents(file).size(), every_dtype().size());
  }
}

TEST_F(WeightsFolder, AFailedWriteKeepsTheOldFile) {
  const std::string path = dir_ / "a.pt";
  write_file(path, {source("old", Dtype::kU8, {3})});
  EXPECT_THROW(write_file(path, {source("new", Dtype::kU8, {3}), source("new", Dtype::kU8, {3})}), FileError);
  std::vector<std::string> names;
  for (const Tensor& tensor : File(path).tensors()) names.push_back(tensor.name);
  EXPECT_THAT(names, ElementsAre("old"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_), std::filesystem::directory_iterator()),
            1);
  EXPECT_THROW(write_file(dir_ / "none" / "a.pt", every_dtype()), FileError);
}

TEST_F(WeightsFolder, OnlyOwnFilesAreReplaced) {
  const std::string path = dir_ / "a.pt";
  std::ofstream(path + ".tmp") << "of somebody else";
  write_file(path, every_dtype());
  EXPECT_EQ(std::filesystem::file_size(path + ".tmp"), 16u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_), std::filesystem::directory_iterator()),
            2);
  const auto refused = [](const std::string& target) {
    try {
      write_file(target, every_dtype());
    } catch (const FileError& error) {
      return std::string(error.what());
    }
    return std::string("written");
  };
  std::filesystem::create_directory(dir_ / "folder.pt");
  EXPECT_THAT(refused(dir_ / "folder.pt"), HasSubstr("folder.pt: cannot write: it is not a regular file"));
  EXPECT_THAT(refused("/dev/null"), HasSubstr("/dev/null: cannot write: it is not a regular file"));
  EXPECT_THAT(refused(dir_ / "none" / "a.pt"), HasSubstr("No such file or directory"));
  EXPECT_TRUE(std::filesystem::is_directory(dir_ / "folder.pt"));
}

TEST_F(WeightsFolder, PlacesThatCannotBeRead) {
  EXPECT_THROW(File(dir_ / "none.pt"), FileError);
  EXPECT_THROW(File(dir_.string()), FileError);
  EXPECT_THROW(File("/dev/zero"), FileError);
}

}  // namespace
}  // namespace starling::weights
