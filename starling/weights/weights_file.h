// Reads and writes files of named tensors: safetensors, and .pt (torch.save of a state_dict).
//
// This header needs only the C++20 standard library, and <unistd.h> where there is one. It includes no other
// header of Starling. Copy it into any program and compile with -std=c++20. It has an include guard in place
// of #pragma once, because a program may include two copies of it.
//
//   starling::weights::File file("model.pt");           // or "model.safetensors": the content decides
//   for (const auto& tensor : file.tensors()) std::vector<std::byte> bytes = file.read(tensor);
//   starling::weights::write_file("copy.pt", {{"fc.bias", Dtype::kF32, {10}, [&] { return bias.data(); }}});
//
// The readers treat a file as hostile. They check sizes, depth and offsets before they allocate. The pickle
// in a .pt file is parsed and never executed. Only the operations of a state_dict are known. Every other
// global is refused by its name. Formats: https://github.com/huggingface/safetensors ("Format") and
// https://docs.pytorch.org/docs/stable/notes/serialization.html.
#ifndef STARLING_WEIGHTS_FILE_H_
#define STARLING_WEIGHTS_FILE_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>
#if __has_include(<unistd.h>)
#include <unistd.h>  // fsync
#endif

namespace starling::weights {
inline namespace v1 {

static_assert(std::endian::native == std::endian::little, "both formats are little-endian");
static_assert(sizeof(size_t) >= 8, "files may be larger than 4 GB");

// A file that cannot be read or written. The message names the file, the place and the remedy.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Type of the elements of a tensor. Files with another type are refused.
enum class Dtype : uint8_t { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool };

// Format of a file.
enum class Format : uint8_t { kSafetensors, kPt };

// A row of the table of dtypes: the names that the two formats give to a dtype, and its size in bytes.
struct DtypeRow {
  std::string_view name;     // in safetensors
  std::string_view storage;  // in a .pt file
  uint64_t bytes;            // of one element
};

// The rows in the order of Dtype.
inline constexpr std::array<DtypeRow, 10> kDtypes = {{{"F64", "torch.DoubleStorage", 8},
                                                      {"F32", "torch.FloatStorage", 4},
                                                      {"F16", "torch.HalfStorage", 2},
                                                      {"BF16", "torch.BFloat16Storage", 2},
                                                      {"I64", "torch.LongStorage", 8},
                                                      {"I32", "torch.IntStorage", 4},
                                                      {"I16", "torch.ShortStorage", 2},
                                                      {"I8", "torch.CharStorage", 1},
                                                      {"U8", "torch.ByteStorage", 1},
                                                      {"BOOL", "torch.BoolStorage", 1}}};

// Returns the row of a dtype.
constexpr const DtypeRow& row_of(Dtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)];
}

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // of JSON, pickle and zip directory; as safetensors
inline constexpr size_t kMaxDims = 64;                    // dimensions of a tensor
inline constexpr size_t kMaxDepth = 64;                   // dictionaries in dictionaries of a .pt file
inline constexpr size_t kMaxOperations = 4'000'000;       // of a pickle below 20 MB; a tensor takes about 40

// One tensor of a file.
struct Tensor {
  std::string name;              // unique in the file, UTF-8
  Dtype dtype = Dtype::kF32;     // type of the elements
  std::vector<int64_t> shape;    // sizes of the dimensions; empty for a scalar
  std::vector<int64_t> strides;  // in elements, 0 or more; row-major in a safetensors file
  uint64_t elements = 1;         // product of the shape
  uint64_t offset = 0;           // of the first element, in bytes from the beginning of the file
  size_t record = SIZE_MAX;      // of a .pt file: the record that holds the bytes; tensors may share one

  // Size of the elements in bytes.
  uint64_t bytes() const { return elements * row_of(dtype).bytes; }
  // Returns true if the elements lie in the file in row-major order, without gaps.
  bool contiguous() const {
    int64_t expected = 1;
    for (size_t d = shape.size(); elements > 0 && d-- > 0; expected *= shape[d]) {
      if (shape[d] != 1 && strides[d] != expected) return false;
    }
    return true;
  }
};

// One tensor to write. `bytes` is called once, when the tensor's turn comes. It returns the elements in
// row-major order. They must stay where they are until the next tensor's turn.
struct Source {
  std::string name;                    // unique in the file, UTF-8
  Dtype dtype = Dtype::kF32;           // type of the elements
  std::vector<int64_t> shape;          // sizes of the dimensions; empty for a scalar
  std::function<const void*()> bytes;  // returns the elements
};

// Returns true if the name of a file ends as that of a .pt file: in .pt or .pth.
constexpr bool is_pt_name(std::string_view path) {
  return path.ends_with(".pt") || path.ends_with(".pth");
}

// Receives the bytes of a file from its beginning to its end.
using Sink = std::function<void(const void* bytes, size_t size)>;

namespace detail {

inline bool valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<uint8_t>(text[i]);
    const size_t more = lead < 0x80 ? 0 : lead >> 5 == 6 ? 1 : lead >> 4 == 14 ? 2 : lead >> 3 == 30 ? 3 : 9;
    if (more == 9 || text.size() - i <= more) return false;
    uint32_t code = more == 0 ? lead : lead & (0x3fu >> more);
    for (size_t k = 1; k <= more; ++k) {
      const auto next = static_cast<uint8_t>(text[i + k]);
      if (next >> 6 != 2) return false;
      code = code << 6 | (next & 0x3fu);
    }
    constexpr uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
    if (code < kLeast[more] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
    i += more + 1;
  }
  return true;
}

// Prints a part of a message. Texts, which come from the file, are cut to 200 bytes.
template <typename Part>
void print(std::ostringstream& text, const Part& part) {
  text << part;
}
inline void print(std::ostringstream& text, const std::string_view& part) {
  size_t size = std::min<size_t>(part.size(), 200);
  while (size > 196 && size < part.size() && static_cast<uint8_t>(part[size]) >> 6 == 2) --size;
  text << part.substr(0, size) << (size < part.size() ? "…" : "");
}
inline void print(std::ostringstream& text, const std::string& part) {
  print(text, std::string_view(part));
}

// Throws a FileError. The first part is the path, which is not cut.
template <typename First, typename... Parts>
[[noreturn]] void fail(const First& first, const Parts&... parts) {
  std::ostringstream text;
  text << first;
  (print(text, parts), ...);
  std::string message = text.str();  // with parts of the file, which may hold any bytes
  const bool is_text = valid_utf8(message);
  for (char& c : message) {
    const auto code = static_cast<uint8_t>(c);
    if (code < 0x20 || code == 0x7f || (code > 0x7f && !is_text)) c = '?';
  }
  throw FileError(message);
}

inline std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t n : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "]";
}

// Returns the number of elements, or nothing if it overflows. Dimensions of 0 count as 1 in the overflow,
// because readers store strides too.
inline std::optional<uint64_t> elements_of(const std::vector<int64_t>& shape) {
  uint64_t product = 1;
  bool empty = false;
  for (const int64_t n : shape) {
    const uint64_t factor = n > 1 ? static_cast<uint64_t>(n) : 1;
    if (product > static_cast<uint64_t>(INT64_MAX) / 8 / factor) return std::nullopt;
    product *= factor;
    empty = empty || n == 0;
  }
  return empty ? 0 : product;
}

inline std::vector<int64_t> row_major(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<int64_t>(shape[d], 1);
  return strides;
}

// Returns the decimal digits of an integer that is stored as two's complement, least byte first.
inline std::string decimal(std::string_view bytes) {
  std::vector<uint8_t> rest(bytes.rbegin(), bytes.rend());
  const bool negative = !rest.empty() && rest[0] >= 0x80;
  for (size_t i = rest.size(), carry = 1; negative && i-- > 0;) {
    carry += static_cast<uint8_t>(~rest[i]);
    rest[i] = static_cast<uint8_t>(carry);
    carry >>= 8;
  }
  std::string digits;
  while (std::any_of(rest.begin(), rest.end(), [](uint8_t byte) { return byte != 0; })) {
    uint32_t remainder = 0;
    for (uint8_t& byte : rest) {
      remainder = remainder << 8 | byte;
      byte = static_cast<uint8_t>(remainder / 10);
      remainder %= 10;
    }
    digits += static_cast<char>('0' + remainder);
  }
  if (digits.empty()) digits = "0";
  if (negative) digits += '-';
  return {digits.rbegin(), digits.rend()};
}

// Returns a number as Python's repr() does: 0.1, 3.0, 1e+16.
inline std::string python_float(double value) {
  std::array<char, 64> text{};
  const double size = value < 0 ? -value : value;
  const bool fixed = value == 0 || (size >= 1e-4 && size < 1e16);
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string printed(text.data(), end.ptr);
  if (value != value) return "nan";
  return fixed && printed.find('.') == printed.npos ? printed + ".0" : printed;
}

inline uint64_t number_at(std::string_view bytes, size_t at, size_t count) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data() + at, count);
  return value;
}

inline void append(std::string& out, uint64_t value, size_t count) {
  out.append(reinterpret_cast<const char*>(&value), count);
}

// CRC-32 of zip, eight bytes at a time. `crc` is the value for the bytes before.
inline uint32_t crc32(const void* bytes, size_t size, uint32_t crc = 0) {
  using Tables = std::array<std::array<uint32_t, 256>, 8>;
  static constexpr Tables kTables = [] {
    Tables tables{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int k = 0; k < 8; ++k) c = c & 1 ? 0xedb88320u ^ c >> 1 : c >> 1;
      tables[0][i] = c;
    }
    for (size_t t = 1; t < 8; ++t)
      for (size_t i = 0; i < 256; ++i)
        tables[t][i] = tables[t - 1][i] >> 8 ^ tables[0][tables[t - 1][i] & 255];
    return tables;
  }();
  const char* at = static_cast<const char*>(bytes);
  crc = ~crc;
  for (; size >= 8; size -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    word ^= crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][word >> 8 * k & 255];
  }
  for (; size > 0; --size, ++at) crc = crc >> 8 ^ kTables[0][(crc ^ static_cast<uint8_t>(*at)) & 255];
  return ~crc;
}

// Reads the only form that the JSON header of a safetensors file may have:
//   {name: {"dtype": text, "shape": [n…], "data_offsets": [n, n]}, …, "__metadata__": {text: text …}}
// It throws at the first difference. It builds no tree of values, so neither depth nor size costs memory.
class SafetensorsHeader {
 public:
  struct Entry {
    Tensor tensor;
    uint64_t end = 0;
  };

  SafetensorsHeader(const std::string& path, std::string_view text) : path_(path), text_(text) {}

  std::vector<Entry> entries;  // offsets are those in the header
  std::map<std::string, std::string> metadata;

  void parse() {
    if (text_.empty() || text_[0] != '{')
      fail(path_, ": not a safetensors file: the header does not begin with {");
    if (at_ = std::min(text_.find('\0'), text_.size()); at_ < text_.size()) not_json("a zero byte");
    at_ = 0;
    std::set<std::string> names;
    members([&](const std::string& name) {
      name_ = "\"" + name + "\"";
      if (!names.insert(name).second) refuse("occurs twice");
      need('{');
      if (name == "__metadata__") return members([&](const std::string& key) { read_metadata(key); });
      read_tensor(name);
    });
    if (peek() != 0) not_json("text after the header's end");
  }

 private:
  void read_metadata(const std::string& key) {
    if (metadata.count(key)) refuse("the key \"", key, "\" twice");
    metadata[key] = text();
  }
  void read_tensor(const std::string& name) {
    Entry entry;
    entry.tensor.name = name;
    int seen = 0;
    members([&](const std::string& field) {
      const int bit = field == "dtype" ? 1 : field == "shape" ? 2 : field == "data_offsets" ? 4 : 0;
      if (bit == 0) refuse("an unknown field \"", field, "\"");
      if (seen & bit) refuse("the field \"", field, "\" twice");
      seen |= bit;
      if (bit == 1) entry.tensor.dtype = dtype();
      if (bit == 2) entry.tensor.shape = numbers();
      if (bit != 4) return;
      const std::vector<int64_t> offsets = numbers();
      if (offsets.size() != 2) refuse("data_offsets has ", offsets.size(), " numbers, not 2");
      entry.tensor.offset = static_cast<uint64_t>(offsets[0]);
      entry.end = static_cast<uint64_t>(offsets[1]);
    });
    if (seen != 7) refuse("needs dtype, shape and data_offsets");
    entries.push_back(std::move(entry));
  }
  Dtype dtype() {
    const std::string name = text();
    for (size_t i = 0; i < kDtypes.size(); ++i) {
      if (kDtypes[i].name == name) return static_cast<Dtype>(i);
    }
    refuse("unknown dtype \"", name, "\"; known are F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL");
  }

  // Reads an object, whose { is next. `each` reads the value behind the key that it receives.
  template <typename Each>
  void members(const Each& each) {
    ++at_;
    if (peek() == '}') return void(++at_);
    for (;;) {
      if (peek() != '"') not_json("a key is expected");
      const std::string key = text();
      if (peek() != ':') not_json("a colon is expected");
      ++at_;
      each(key);
      if (peek() == '}') return void(++at_);
      if (peek() != ',') not_json("a comma or } is expected");
      ++at_;
    }
  }
  std::vector<int64_t> numbers() {
    std::vector<int64_t> values;
    need('[');
    ++at_;
    if (peek() == ']') return ++at_, values;
    for (;; ++at_) {
      if (values.size() == kMaxDims) refuse("more than ", kMaxDims, " dimensions");
      values.push_back(number());
      if (peek() == ']') return ++at_, values;
      if (peek() != ',') not_json("a comma or ] is expected");
    }
  }
  int64_t number() {
    need('0');
    const size_t begin = at_;
    const auto take = [&](char c) {
      const bool is_next = at_ < text_.size() && text_[at_] == c;
      at_ += is_next ? 1 : 0;
      return is_next;
    };
    const auto digits = [&] {
      const size_t first = at_;
      while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
      if (at_ == first) not_json("a digit is expected");
    };
    bool integer = true;
    const bool negative = take('-');
    if (!take('0')) digits();
    if (take('.')) digits(), integer = false;
    if (take('e') || take('E')) take('+') || take('-'), digits(), integer = false;
    const std::string_view word = text_.substr(begin, at_ - begin);
    if (!integer) refuse("the number ", word, " is not an integer");
    if (negative) refuse("the number ", word, " is negative");
    int64_t value = 0;
    if (std::from_chars(word.data(), word.data() + word.size(), value).ec != std::errc())
      refuse("the number ", word, " is too large");
    return value;
  }
  std::string text() {
    need('"');
    const size_t begin = at_++;
    std::string value;
    for (; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (static_cast<uint8_t>(text_[at_]) < 0x20) not_json("a control character in a text");
      if (text_[at_] == '\\') {
        escape(value);
      } else {
        value += text_[at_];
      }
    }
    if (at_ == text_.size()) not_json("a text without an end");
    if (!valid_utf8(value)) at_ = begin, not_json("a text that is not UTF-8");
    return ++at_, value;
  }
  void escape(std::string& value) {
    constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    const size_t found = ++at_ < text_.size() ? kFrom.find(text_[at_]) : kFrom.npos;
    if (found != kFrom.npos) return void(value += kTo[found]);
    uint32_t code = unit();
    if (code >= 0xd800 && code < 0xdc00 && text_.substr(at_ + 1, 2) == "\\u") {
      at_ += 2;
      const uint32_t low = unit();
      code = low >= 0xdc00 && low < 0xe000 ? 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00) : 0xd800;
    }
    if (code >= 0xd800 && code < 0xe000) not_json("half of a surrogate pair");
    const int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    constexpr uint32_t kLead[] = {0, 0xc0, 0xe0, 0xf0};
    value += static_cast<char>(kLead[more] | code >> 6 * more);
    for (int k = more; k-- > 0;) value += static_cast<char>(0x80 | (code >> 6 * k & 0x3f));
  }
  // Reads uXXXX. Leaves at_ on its last digit.
  uint32_t unit() {
    const std::string hex(text_.substr(std::min(at_ + 1, text_.size()), 4));
    uint32_t code = 0;
    const bool is_unit = at_ < text_.size() && text_[at_] == 'u' && hex.size() == 4;
    if (!is_unit || std::from_chars(hex.data(), hex.data() + 4, code, 16).ptr != hex.data() + 4)
      not_json("an unknown escape");
    return at_ += 4, code;
  }

  // Returns the next character that is not blank, or 0 at the end.
  char peek() {
    while (at_ < text_.size() && std::string_view(" \t\n\r").find(text_[at_]) != std::string_view::npos)
      ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  // Refuses the next value unless it begins with `first`, where '0' stands for any number.
  void need(char first) {
    const char c = peek();
    const bool is_number = c == '-' || (c >= '0' && c <= '9');
    if (c == first || (first == '0' && is_number)) return;
    const char* kind = c == '{'               ? "a JSON object"
                       : c == '['             ? "a JSON array"
                       : c == '"'             ? "a string"
                       : c == 't' || c == 'f' ? "a boolean"
                       : c == 'n'             ? "null"
                       : is_number            ? "a number"
                                              : nullptr;
    if (!kind) not_json("a value is expected");
    refuse(kind, " where the format has none");
  }
  template <typename... Parts>
  [[noreturn]] void refuse(const Parts&... parts) {
    fail(path_, ": header: ", name_, ": ", parts...);
  }
  [[noreturn]] void not_json(const char* why) {
    fail(path_, ": the header is not JSON at offset ", 8 + at_, ": ", why);
  }

  const std::string& path_;
  std::string_view text_;
  size_t at_ = 0;
  std::string name_ = "top level";
};

// A record of a zip file: a range of the file and the checksum of its bytes.
struct Record {
  std::string name;
  uint64_t at = 0, size = 0;
  uint32_t crc = 0;
  bool stored = true;    // neither compressed nor encrypted
  bool checked = false;  // the checksum was compared
};

// A value of a pickle. Containers hold the numbers of other values.
struct PickleValue {
  enum class Kind : uint8_t {
    kNone,
    kBool,
    kInt,
    kFloat,
    kText,
    kTuple,
    kList,
    kDict,
    kGlobal,
    kLong,
    kStorage,
    kUntyped,
    kTensor
  };

  PickleValue(Kind its_kind = Kind::kNone, int64_t its_number = 0) : kind(its_kind), number(its_number) {}

  Kind kind;
  int64_t number;    // bool and int; bits of a float; elements of a storage; place of a tensor in `tensors`
  std::string text;  // text; name of a global; key of a storage; decimal digits of a long
  std::vector<uint32_t> items;  // a dictionary has keys and values in turn
  Dtype dtype = Dtype::kF32;    // of a storage
};

// Parses the pickle of a state_dict. It knows the operations and globals that torch.save uses for
// dictionaries of tensors, numbers and texts, and refuses everything else. It never calls anything.
class Unpickler {
 public:
  using Kind = PickleValue::Kind;

  // What a tensor of the pickle says about itself. Nothing of it is checked yet.
  struct RawTensor {
    uint32_t storage = 0;
    int64_t offset = 0;
    uint32_t shape = 0, strides = 0;  // tuples of integers that are not negative
  };

  Unpickler(const std::string& path, std::string_view bytes) : path_(path), bytes_(bytes) {}

  std::vector<PickleValue> values;
  std::vector<RawTensor> tensors;

  // Returns the numbers of a tuple of integers.
  std::vector<int64_t> numbers(uint32_t tuple) const {
    std::vector<int64_t> found;
    found.reserve(values[tuple].items.size());
    for (const uint32_t item : values[tuple].items) found.push_back(values[item].number);
    return found;
  }

  // Returns the number of the value that the pickle stands for.
  uint32_t parse() {
    // The pickle of write_pt() has at least 5 bytes for each operation, so that it is below the limit.
    const size_t limit = std::max(kMaxOperations, bytes_.size() / 5);
    for (size_t operations = 0;; ++operations) {
      if (operations == limit) damaged("more than ", limit, " operations; save fewer values in one file");
      begin_ = at_;
      const auto code = static_cast<uint8_t>(take(1)[0]);
      if (code == '.') break;
      if (!plain(code) && !container(code) && !memory(code) && !call(code)) {
        damaged("the operation ", static_cast<int>(code), " is not of a state_dict; ", kRemedy);
      }
    }
    const uint32_t result = pop();
    if (!stack_.empty() || at_ != bytes_.size()) damaged("the pickle goes on behind its end", "; ", kAgain);
    return result;
  }

 private:
  static constexpr uint32_t kMark = UINT32_MAX;
  static constexpr size_t kMaxKey = 64;    // bytes of a storage's name; torch.save uses numbers
  static constexpr size_t kMaxLong = 128;  // bytes of an int
  static constexpr const char* kAgain = "the file is damaged; copy or save it again";
  static constexpr const char* kRemedy =
      "nothing of the file was executed; save tensors only, with torch.save(model.state_dict(), FILE)";

  // Operations that push one value without parts.
  bool plain(uint8_t code) {
    switch (code) {
      case 0x80:
        return void(take(1)), true;  // PROTO
      case 0x95:
        return void(take(8)), true;  // FRAME
      case 'N':
        return push({}), true;  // NONE
      case 0x88:
        return push({Kind::kBool, 1}), true;  // NEWTRUE
      case 0x89:
        return push({Kind::kBool, 0}), true;  // NEWFALSE
      case 'J':
        return push({Kind::kInt, static_cast<int32_t>(count(4))}), true;  // BININT
      case 'K':
        return push({Kind::kInt, static_cast<int64_t>(count(1))}), true;  // BININT1
      case 'M':
        return push({Kind::kInt, static_cast<int64_t>(count(2))}), true;  // BININT2
      case 0x8a:
        return long_number(count(1)), true;  // LONG1
      case 0x8b:
        return long_number(count(4)), true;  // LONG4
      case 'G':
        return binary_float(), true;  // BINFLOAT
      case 0x8c:
        return push_text(count(1)), true;  // SHORT_BINUNICODE
      case 'X':
        return push_text(count(4)), true;  // BINUNICODE
      case 0x8d:
        return push_text(count(8)), true;  // BINUNICODE8
      default:
        return false;
    }
  }
  // Operations that make and fill tuples, lists and dictionaries.
  bool container(uint8_t code) {
    switch (code) {
      case '(':
        return stack_.push_back(kMark), true;  // MARK
      case ')':
        return push({Kind::kTuple}), true;  // EMPTY_TUPLE
      case ']':
        return push({Kind::kList}), true;  // EMPTY_LIST
      case '}':
        return push({Kind::kDict}), true;  // EMPTY_DICT
      case 0x85:
      case 0x86:
      case 0x87:
        return tuple(pop(code - 0x84u)), true;  // TUPLE1, TUPLE2, TUPLE3
      case 't':
        return tuple(pop_to_mark()), true;  // TUPLE
      case 'a':
        return extend(Kind::kList, pop(1)), true;  // APPEND
      case 'e':
        return extend(Kind::kList, pop_to_mark()), true;  // APPENDS
      case 's':
        return extend(Kind::kDict, pop(2)), true;  // SETITEM
      case 'u':
        return extend(Kind::kDict, pop_to_mark()), true;  // SETITEMS
      default:
        return false;
    }
  }
  // Operations on the memo.
  bool memory(uint8_t code) {
    switch (code) {
      case 'q':
        return memo_[count(1)] = top(), true;  // BINPUT
      case 'r':
        return memo_[count(4)] = top(), true;  // LONG_BINPUT
      case 0x94:
        return memo_[memo_.size()] = top(), true;  // MEMOIZE
      case 'h':
        return stack_.push_back(remembered(count(1))), true;  // BINGET
      case 'j':
        return stack_.push_back(remembered(count(4))), true;  // LONG_BINGET
      default:
        return false;
    }
  }
  // Operations that name globals, and those that Python would execute.
  bool call(uint8_t code) {
    if (code == 'c') {  // GLOBAL
      const std::string module = line();
      global(module, line());
    } else if (code == 0x93) {  // STACK_GLOBAL
      const std::string name = text_of(pop());
      global(text_of(pop()), name);
    } else if (code == 'R') {  // REDUCE
      const std::vector<uint32_t>& arguments = values[expect(pop(), Kind::kTuple)].items;
      reduce(values[expect(pop(), Kind::kGlobal)].text, arguments);
    } else if (code == 'Q') {  // BINPERSID
      storage(values[expect(pop(), Kind::kTuple)].items);
    } else if (code == 'b') {  // BUILD
      // It sets attributes, such as _metadata of a state_dict, which hold no tensors.
      pop();
      expect(top(), Kind::kDict);
    } else {
      return false;
    }
    return true;
  }

  void global(const std::string& module, const std::string& name) {
    const std::string whole = module + "." + name;
    static constexpr std::string_view kKnown[] = {
        "collections.OrderedDict", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_tensor_v3", "torch.storage.UntypedStorage"};
    const bool is_storage = std::any_of(kDtypes.begin(), kDtypes.end(),
                                        [&](const DtypeRow& row) { return row.storage == whole; });
    if (!is_storage && std::find(std::begin(kKnown), std::end(kKnown), whole) == std::end(kKnown)) {
      const bool is_dtype = module == "torch" && (name.ends_with("Storage") || tensors_of_dtype_);
      damaged("the ", is_dtype ? "dtype " : "global ", whole, " is refused; ",
              is_dtype ? "convert the tensor before it is saved, for example with tensor.to(torch.float32)"
                       : remedy_of(name));
    }
    tensors_of_dtype_ = tensors_of_dtype_ || whole == kKnown[3];
    PickleValue value{Kind::kGlobal};
    value.text = whole;
    push(std::move(value));
  }
  static const char* remedy_of(const std::string& name) {
    if (name == "_rebuild_parameter_with_state")
      return "the parameter has attributes of its own: save parameter.detach() in its place";
    if (name == "_rebuild_from_type_v2")
      return "the tensor is of a subclass or has attributes of its own: save "
             "tensor.detach().as_subclass(torch.Tensor) in its place";
    return kRemedy;
  }
  void reduce(const std::string& function, const std::vector<uint32_t>& arguments) {
    if (function == "collections.OrderedDict" && arguments.empty()) return push({Kind::kDict});
    if (function == "torch._utils._rebuild_parameter" && arguments.size() == 3)
      return stack_.push_back(expect(arguments[0], Kind::kTensor));
    if (function != "torch._utils._rebuild_tensor_v2" || arguments.size() < 6 || arguments.size() > 7)
      damaged("the call of ", function, " with ", arguments.size(), " arguments is refused; ", kRemedy);
    RawTensor tensor;
    tensor.storage = expect(arguments[0], Kind::kStorage);
    tensor.offset = values[expect(arguments[1], Kind::kInt)].number;
    tensor.shape = dimensions(arguments[2]);
    tensor.strides = dimensions(arguments[3]);
    if (values[tensor.shape].items.size() != values[tensor.strides].items.size())
      damaged("a tensor's shape and strides differ in length; ", kAgain);
    // The metadata says that the elements stand for their conjugates or negatives.
    const bool has_metadata = arguments.size() == 7 && values[arguments[6]].kind != Kind::kNone;
    if (has_metadata && !values[expect(arguments[6], Kind::kDict)].items.empty())
      damaged("a tensor that is a lazy conjugate or negative is refused; ",
              "save tensor.resolve_conj() or tensor.resolve_neg() in its place");
    tensors.push_back(tensor);
    push({Kind::kTensor, static_cast<int64_t>(tensors.size() - 1)});
  }
  // ("storage", class, key, device, elements)
  void storage(const std::vector<uint32_t>& parts) {
    if (parts.size() != 5 || text_of(parts[0]) != "storage")
      damaged("a persistent id that is not of a storage", "; ", kAgain);
    PickleValue value{Kind::kStorage, values[expect(parts[4], Kind::kInt)].number};
    const std::string& type = values[expect(parts[1], Kind::kGlobal)].text;
    value.text = text_of(parts[2]).substr(0, kMaxKey + 1);
    if (value.text.size() > kMaxKey) damaged("the name of a storage is too long; ", kAgain);
    text_of(parts[3]);
    const auto row = std::find_if(kDtypes.begin(), kDtypes.end(),
                                  [&](const DtypeRow& known) { return known.storage == type; });
    if (row != kDtypes.end()) {
      value.dtype = static_cast<Dtype>(row - kDtypes.begin());
    } else if (type == "torch.storage.UntypedStorage" && tensors_of_dtype_) {
      value.kind = Kind::kUntyped;  // the tensor's dtype comes next and is refused by its name
    } else {
      damaged("the storage class ", type, " is refused; ", kRemedy);
    }
    push(std::move(value));
  }
  // Checks a tuple of sizes or strides.
  uint32_t dimensions(uint32_t tuple) {
    const std::vector<uint32_t>& items = values[expect(tuple, Kind::kTuple)].items;
    if (items.size() > kMaxDims) damaged("a tensor has more than ", kMaxDims, " dimensions; reshape it");
    for (const uint32_t item : items) {
      const int64_t number = values[expect(item, Kind::kInt)].number;
      if (number < 0) damaged("a shape or stride is negative: ", number, "; ", kAgain);
    }
    return tuple;
  }

  void push(PickleValue value) {
    values.push_back(std::move(value));
    stack_.push_back(static_cast<uint32_t>(values.size() - 1));
  }
  void push_text(uint64_t size) {
    PickleValue value{Kind::kText};
    value.text = take(size);
    if (!valid_utf8(value.text)) damaged("a text that is not UTF-8", "; ", kAgain);
    push(std::move(value));
  }
  void long_number(uint64_t size) {
    const std::string_view digits = take(size);
    PickleValue value{Kind::kInt};
    if (size > kMaxLong) damaged("an int of ", size, " bytes is refused; save it as a text");
    if (size > 8) {
      value.kind = Kind::kLong;
      value.text = decimal(digits);
    } else if (size > 0) {
      const uint64_t sign = digits.back() & 0x80 ? ~uint64_t{0} : 0;
      const uint64_t bits = number_at(digits, 0, size);
      value.number = static_cast<int64_t>(size == 8 ? bits : bits | sign << 8 * size);
    }
    push(std::move(value));
  }
  void binary_float() {
    uint64_t bits = 0;
    for (const char c : take(8)) bits = bits << 8 | static_cast<uint8_t>(c);
    push({Kind::kFloat, static_cast<int64_t>(bits)});
  }
  void tuple(std::vector<uint32_t> items) {
    PickleValue value{Kind::kTuple};
    value.items = std::move(items);
    push(std::move(value));
  }
  void extend(Kind kind, const std::vector<uint32_t>& more) {
    if (kind == Kind::kDict && more.size() % 2 != 0)
      damaged("a dictionary has a key without a value", "; ", kAgain);
    std::vector<uint32_t>& items = values[expect(top(), kind)].items;
    items.insert(items.end(), more.begin(), more.end());
  }

  std::string_view take(uint64_t size) {
    if (size > bytes_.size() - at_) damaged("the pickle ends too early", "; ", kAgain);
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  uint64_t count(size_t size) { return number_at(take(size), 0, size); }
  std::string line() {
    const size_t end = bytes_.substr(at_, 256).find('\n');
    if (end == std::string_view::npos) damaged("the name of a global has no end", "; ", kAgain);
    const std::string text(take(end));
    take(1);
    if (!valid_utf8(text)) damaged("the name of a global is not UTF-8", "; ", kAgain);
    return text;
  }
  uint32_t top() {
    if (stack_.empty() || stack_.back() == kMark) damaged("an operand is missing", "; ", kAgain);
    return stack_.back();
  }
  uint32_t pop() {
    const uint32_t value = top();
    stack_.pop_back();
    return value;
  }
  std::vector<uint32_t> pop(size_t size) {
    std::vector<uint32_t> popped(size);
    for (size_t i = size; i-- > 0;) popped[i] = pop();
    return popped;
  }
  std::vector<uint32_t> pop_to_mark() {
    const auto mark = std::find(stack_.rbegin(), stack_.rend(), kMark).base();
    if (mark == stack_.begin()) damaged("a mark is missing", "; ", kAgain);
    std::vector<uint32_t> popped(mark, stack_.end());
    stack_.erase(mark - 1, stack_.end());
    return popped;
  }
  uint32_t remembered(uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) damaged("the memo has no entry ", key, "; ", kAgain);
    return found->second;
  }
  uint32_t expect(uint32_t value, Kind kind) {
    if (values[value].kind != kind) damaged("a value of another kind is expected", "; ", kAgain);
    return value;
  }
  const std::string& text_of(uint32_t value) { return values[expect(value, Kind::kText)].text; }
  template <typename... Parts>
  [[noreturn]] void damaged(const Parts&... parts) {
    fail(path_, ": data.pkl, offset ", begin_, ": ", parts...);
  }

  const std::string& path_;
  std::string_view bytes_;
  size_t at_ = 0, begin_ = 0;  // next byte; beginning of the operation
  // True if the pickle has named _rebuild_tensor_v3, which is for dtypes without a storage class.
  bool tensors_of_dtype_ = false;
  std::vector<uint32_t> stack_;
  std::map<uint64_t, uint32_t> memo_;
};

}  // namespace detail

// A file that is open for reading. Opening reads and checks what describes the tensors. The tensors' bytes
// are read on demand, in ranges. Errors: FileError. Not thread-safe.
class File {
 public:
  // Reads `size` bytes from `offset` of a file. The range lies inside the file.
  using ReadAt = std::function<void(uint64_t offset, void* out, size_t size)>;

  // Opens a safetensors or .pt file. Its content decides which one it is.
  explicit File(const std::string& path) : path_(path) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) {
      detail::fail(path, ": ", error ? "cannot open: " + error.message() : "is not a regular file");
    }
    const auto in = std::make_shared<std::ifstream>(path, std::ios::binary);
    if (!*in) detail::fail(path, ": cannot open");
    size_ = std::filesystem::file_size(path, error);
    if (error) detail::fail(path, ": cannot read its size: ", error.message());
    read_at_ = [in, path](uint64_t offset, void* out, size_t size) {
      in->clear();
      in->seekg(static_cast<std::streamoff>(offset));
      if (!in->read(static_cast<char*>(out), static_cast<std::streamsize>(size)))
        detail::fail(path, ": cannot read ", size, " bytes at offset ", offset,
                     "; the file was cut meanwhile, or its disk is damaged");
    };
    open();
    make_index();
  }

  // Opens a file of `size` bytes that lies elsewhere, such as in memory. `name` is for messages.
  File(std::string name, uint64_t size, ReadAt read_at)
      : path_(std::move(name)), size_(size), read_at_(std::move(read_at)) {
    open();
    make_index();
  }

  // The format of the file.
  Format format() const { return format_; }
  // The tensors in the order of the file. Tensors in dictionaries of dictionaries have dotted names, such as
  // "model.fc.bias". Items of lists and tuples are named by their position.
  const std::vector<Tensor>& tensors() const& { return tensors_; }
  // The tensors of a file that is only needed for them: for (const Tensor& tensor : File(path).tensors()).
  std::vector<Tensor> tensors() && {
    by_name_.clear();
    return std::move(tensors_);
  }
  // "__metadata__" of a safetensors file. Numbers, texts, booleans and None of a .pt file, by dotted names,
  // as Python prints them: {"epoch", "3"}.
  const std::map<std::string, std::string>& metadata() const& { return metadata_; }
  const std::map<std::string, std::string>& metadata() && = delete;
  // Returns the tensor of this name, or null.
  const Tensor* find(std::string_view name) const& {
    const auto found =
        std::lower_bound(by_name_.begin(), by_name_.end(), name,
                         [this](size_t i, std::string_view other) { return tensors_[i].name < other; });
    return found != by_name_.end() && tensors_[*found].name == name ? &tensors_[*found] : nullptr;
  }
  const Tensor* find(std::string_view name) && = delete;

  // Compares the checksum of the tensor's record with its bytes. Does nothing for a record that was compared
  // before and for safetensors files, which have no checksums.
  void verify(const Tensor& tensor) {
    if (tensor.record < records_.size()) verify(records_[tensor.record]);
  }

  // `tensor` is one of tensors(). Copies `count` elements from the number `first` on, in row-major order, to
  // `out`. Calls verify().
  void read(const Tensor& tensor, uint64_t first, uint64_t count, void* out) {
    if (first > tensor.elements || count > tensor.elements - first) {
      detail::fail(path_, ": tensor \"", tensor.name, "\" has ", tensor.elements, " elements, not ", first,
                   " + ", count);
    }
    verify(tensor);
    const uint64_t item = row_of(tensor.dtype).bytes;
    if (count == 0) return;
    if (tensor.contiguous()) return read_at_(tensor.offset + first * item, out, count * item);
    read_strided(tensor, first, count, static_cast<char*>(out));
  }

  // Returns all elements of a tensor of tensors() in row-major order.
  std::vector<std::byte> read(const Tensor& tensor) {
    std::vector<std::byte> bytes(tensor.bytes());
    read(tensor, 0, tensor.elements, bytes.data());
    return bytes;
  }

 private:
  static constexpr const char* kAgain = "; copy or save the file again";

  void open() {
    const std::string head = range(0, std::min<uint64_t>(size_, 64));
    const bool may_be_json = head.size() > 8 && head[8] == '{';
    if (head.starts_with("version https://git-lfs"))
      detail::fail(path_, ": is a pointer of Git LFS, not the file; fetch the file with git lfs pull");
    if (!may_be_json && (head.starts_with("<!") || head.starts_with("<html") || head.starts_with("<?xml")))
      detail::fail(path_, ": is a web page, not a file of weights; download the file itself");
    if (head.starts_with("PK") && !may_be_json) return open_pt();
    static constexpr std::string_view kLegacy("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 14);
    const std::string remedy =
        ". Save it again with PyTorch 1.6 or later: torch.save(torch.load(FILE, "
        "weights_only=True), FILE)";
    if (head.starts_with(kLegacy)) detail::fail(path_, ": has the format of PyTorch before 1.6", remedy);
    if (is_pt_name(path_) && !may_be_json)
      detail::fail(path_, ": is not a zip archive, which torch.save writes", remedy);
    open_safetensors(head);
  }

  void open_safetensors(const std::string& head) {
    format_ = Format::kSafetensors;
    if (size_ < 8) detail::fail(path_, ": truncated: ", size_, " bytes, a safetensors file has at least 8");
    const uint64_t length = detail::number_at(head, 0, 8);
    if (length > kMaxHeaderBytes || length > size_ - 8) {
      detail::fail(path_, ": not a safetensors file, or truncated: its first 8 bytes announce a header of ",
                   length, " bytes, ", size_ - 8, " bytes follow and ", kMaxHeaderBytes, " are allowed");
    }
    const std::string text = range(8, length);
    detail::SafetensorsHeader header(path_, text);
    header.parse();
    metadata_ = std::move(header.metadata);
    check_layout(header.entries, size_ - 8 - length);
    for (auto& entry : header.entries) {
      entry.tensor.offset += 8 + length;
      tensors_.push_back(std::move(entry.tensor));
    }
  }

  // Checks that the tensors cover the bytes after the header exactly, one after another.
  void check_layout(std::vector<detail::SafetensorsHeader::Entry>& entries, uint64_t data_bytes) {
    for (auto& entry : entries) check_size(entry);
    std::vector<const detail::SafetensorsHeader::Entry*> order;
    order.reserve(entries.size());
    for (const auto& entry : entries) order.push_back(&entry);
    std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
      return std::pair(a->tensor.offset, a->end) < std::pair(b->tensor.offset, b->end);
    });
    uint64_t next = 0;
    for (const auto* entry : order) {
      const uint64_t begin = entry->tensor.offset;
      if (begin != next) {
        detail::fail(path_, ": header: \"", entry->tensor.name, "\" begins at offset ", begin,
                     ", but the tensor before it ends at ", next,
                     begin < next ? " (they overlap)" : " (there is a gap)");
      }
      if (entry->end > data_bytes) {
        detail::fail(path_, ": truncated: \"", entry->tensor.name, "\" ends at offset ", entry->end,
                     ", but the file has ", data_bytes, " bytes after its header");
      }
      next = entry->end;
    }
    if (next != data_bytes)
      detail::fail(path_, ": ", data_bytes - next, " bytes follow the last tensor, which ends at offset ",
                   next);
  }

  void check_size(detail::SafetensorsHeader::Entry& entry) const {
    Tensor& tensor = entry.tensor;
    set_elements(tensor, "header");
    tensor.strides = detail::row_major(tensor.shape);
    if (entry.end < tensor.offset || entry.end - tensor.offset != tensor.bytes()) {
      detail::fail(path_, ": header: \"", tensor.name, "\": ", row_of(tensor.dtype).name, " ",
                   detail::shape_text(tensor.shape), " takes ", tensor.bytes(),
                   " bytes, but its offsets are ", tensor.offset, " to ", entry.end);
    }
  }

  void set_elements(Tensor& tensor, const char* place) const {
    const std::optional<uint64_t> elements = detail::elements_of(tensor.shape);
    if (!elements) {
      detail::fail(path_, ": ", place, ": \"", tensor.name, "\": the shape ",
                   detail::shape_text(tensor.shape),
                   " overflows; the file is damaged; copy or save it again");
    }
    tensor.elements = *elements;
  }

  void open_pt() {
    format_ = Format::kPt;
    read_directory();
    if (find_record("constants.pkl") != SIZE_MAX)
      detail::fail(
          path_,
          ": is an archive of C++'s torch::save or a TorchScript module. In C++, save the weights with "
          "starling::save_model(). In Python, save them with torch.save(module.state_dict(), FILE)");
    if (find_record("byteorder") != SIZE_MAX) {
      const std::string order = content("byteorder");
      if (order != "little") {
        detail::fail(path_, ": has the byte order \"", order,
                     "\"; save it again on a little-endian machine: "
                     "torch.save(torch.load(FILE, weights_only=True), FILE)");
      }
    }
    const std::string pickle = content("data.pkl");
    detail::Unpickler unpickler(path_, pickle);
    const uint32_t root = unpickler.parse();
    if (unpickler.values[root].kind != Kind::kDict)
      detail::fail(path_,
                   ": holds no dictionary of names; save one with torch.save(model.state_dict(), FILE)");
    Walk walk{unpickler, 10'000 + 4 * pickle.size(),
              (uint64_t{1} << 26) + 16 * std::min(size_, uint64_t{1} << 58)};
    visit(walk, root, "", 0);
  }

  // Sorts the tensors by name, for find().
  void make_index() {
    by_name_.resize(tensors_.size());
    std::iota(by_name_.begin(), by_name_.end(), size_t{0});
    const auto name = [this](size_t i) -> const std::string& { return tensors_[i].name; };
    std::sort(by_name_.begin(), by_name_.end(), [&](size_t a, size_t b) { return name(a) < name(b); });
    const auto twice = std::adjacent_find(by_name_.begin(), by_name_.end(),
                                          [&](size_t a, size_t b) { return name(a) == name(b); });
    if (twice != by_name_.end())
      detail::fail(path_, ": tensor \"", name(*twice), "\": the name occurs twice; rename one of them");
  }

  using Kind = detail::PickleValue::Kind;

  // The way through the values of a pickle.
  struct Walk {
    const detail::Unpickler& pickle;
    uint64_t visits = 0;  // values that may still come; containers may share values
    uint64_t memory = 0;  // bytes that names, texts and tensors may still take
    uint64_t tensor_bytes = 0;
  };

  void take_memory(Walk& walk, uint64_t bytes, const std::string& name) const {
    if (bytes > walk.memory) too_many(name);
    walk.memory -= bytes;
  }
  [[noreturn]] void too_many(const std::string& name) const {
    detail::fail(path_, ": \"", name, "\": too many or too deeply nested values; save fewer in one file");
  }

  // Adds the tensors and numbers in `value` under `name`.
  void visit(Walk& walk, uint32_t value, const std::string& name, size_t depth) {
    const detail::PickleValue& v = walk.pickle.values[value];
    take_memory(walk, name.size(), name);
    if (depth > kMaxDepth || walk.visits-- == 0) too_many(name);
    if (v.kind == Kind::kTensor)
      return add_tensor(walk, walk.pickle.tensors[static_cast<size_t>(v.number)], name);
    const bool is_dict = v.kind == Kind::kDict;
    if (!is_dict && v.kind != Kind::kList && v.kind != Kind::kTuple) {
      take_memory(walk, 128 + v.text.size(), name);  // with the parts of a map's node
      metadata_[name] = text_of(v, name);
      return;
    }
    const std::string before = depth == 0 ? "" : name + ".";
    for (size_t i = 0; i < v.items.size(); i += is_dict ? 2 : 1) {
      const std::string key = is_dict ? key_of(walk.pickle.values[v.items[i]], name) : std::to_string(i);
      visit(walk, v.items[is_dict ? i + 1 : i], before + key, depth + 1);
    }
  }

  std::string key_of(const detail::PickleValue& key, const std::string& name) const {
    if (key.kind != Kind::kText && key.kind != Kind::kInt && key.kind != Kind::kLong)
      detail::fail(path_, ": \"", name, "\": a key of the dictionary is neither text nor integer; rename it");
    return text_of(key, name);
  }

  std::string text_of(const detail::PickleValue& value, const std::string& name) const {
    switch (value.kind) {
      case Kind::kNone:
        return "None";
      case Kind::kBool:
        return value.number ? "True" : "False";
      case Kind::kInt:
        return std::to_string(value.number);
      case Kind::kText:
      case Kind::kLong:
        return value.text;
      case Kind::kFloat:
        return detail::python_float(std::bit_cast<double>(value.number));
      default:
        detail::fail(path_, ": \"", name,
                     "\" is neither a tensor nor a number, text, list or dictionary; leave it out");
    }
  }

  void add_tensor(Walk& walk, const detail::Unpickler::RawTensor& raw, const std::string& name) {
    const detail::PickleValue& storage = walk.pickle.values[raw.storage];
    take_memory(walk, 2 * sizeof(Tensor) + 16 * walk.pickle.values[raw.shape].items.size(), name);
    Tensor tensor;
    tensor.name = name;
    tensor.dtype = storage.dtype;
    tensor.shape = walk.pickle.numbers(raw.shape);
    tensor.strides = walk.pickle.numbers(raw.strides);
    set_elements(tensor, "data.pkl");
    const auto refuse = [&](const auto&... why) { detail::fail(path_, ": tensor \"", name, "\": ", why...); };
    tensor.record = find_record("data/" + storage.text);
    if (tensor.record == SIZE_MAX) refuse("the file has no record data/", storage.text, "; it is damaged");
    require_stored(records_[tensor.record]);
    const uint64_t item = row_of(tensor.dtype).bytes, held = records_[tensor.record].size;
    const auto numel = static_cast<uint64_t>(storage.number);
    // torch.save rounds the elements of a storage down, so that bytes may be left over.
    if (storage.number < 0 || numel > held / item)
      refuse("its storage has ", storage.number, " elements and data/", storage.text, " has ", held,
             " bytes; the file is damaged; copy or save it again");
    // A tensor without elements may begin anywhere.
    const bool empty = tensor.elements == 0;
    uint64_t last = empty ? 0 : static_cast<uint64_t>(raw.offset);
    bool inside = raw.offset >= 0 && (empty || last < numel);
    for (size_t d = 0; inside && !empty && d < tensor.shape.size(); ++d) {
      const auto steps = static_cast<uint64_t>(tensor.shape[d] - 1),
                 stride = static_cast<uint64_t>(tensor.strides[d]);
      inside = steps == 0 || stride == 0 || steps <= (numel - 1 - last) / stride;
      if (inside) last += steps * stride;
    }
    if (!inside) {
      refuse("shape ", detail::shape_text(tensor.shape), ", strides ", detail::shape_text(tensor.strides),
             " and offset ", raw.offset, " reach beyond the ", numel,
             " elements of its storage; the file is damaged; copy or save it again");
    }
    // A tensor that repeats elements, and tensors that share them, may be larger than the file, but not
    // without end.
    const uint64_t limit = (uint64_t{1} << 30) + 16 * std::min<uint64_t>(size_, uint64_t{1} << 58);
    const uint64_t begin = empty ? 0 : static_cast<uint64_t>(raw.offset);
    walk.tensor_bytes += std::min(read_of(tensor, empty ? 0 : last - begin + 1), limit + 1);
    if (walk.tensor_bytes > limit)
      refuse("the tensors repeat the elements of the file to more than ", limit,
             " bytes; save them with tensor.clone(), or in several files");
    tensor.offset = records_[tensor.record].at + begin * item;
    tensors_.push_back(std::move(tensor));
  }

  // Reads the directory at the end of the zip file.
  void read_directory() {
    const uint64_t tail_at = size_ - std::min<uint64_t>(size_, 22 + 65535);
    const std::string tail = range(tail_at, size_ - tail_at);
    size_t at = tail.rfind("PK\5\6");
    while (at != tail.npos &&
           (tail.size() - at < 22 || at + 22 + detail::number_at(tail, at + 20, 2) != tail.size()))
      at = at == 0 ? tail.npos : tail.rfind("PK\5\6", at - 1);
    if (at == tail.npos)
      detail::fail(path_, ": truncated: the zip archive has no directory at its end", kAgain);
    uint64_t entries = detail::number_at(tail, at + 10, 2), bytes = detail::number_at(tail, at + 12, 4);
    uint64_t begin = detail::number_at(tail, at + 16, 4), end = tail_at + at;
    if (at >= 20 && tail.compare(at - 20, 4, "PK\6\7") == 0) {  // zip64
      const uint64_t where = detail::number_at(tail, at - 12, 8);
      if (where > end || end - where < 76)
        detail::fail(path_, ": damaged: the zip64 directory is not in the file", kAgain);
      const std::string record = range(where, 56);
      if (!record.starts_with("PK\6\6"))
        detail::fail(path_, ": damaged: there is no zip64 directory at ", where, kAgain);
      entries = detail::number_at(record, 32, 8), bytes = detail::number_at(record, 40, 8);
      begin = detail::number_at(record, 48, 8), end = where;
    }
    if (begin > end || bytes > end - begin || bytes > kMaxHeaderBytes || entries > bytes / 46)
      detail::fail(path_, ": damaged: the zip directory of ", entries, " entries and ", bytes, " bytes at ",
                   begin, " does not fit", kAgain);
    read_entries(range(begin, bytes), entries, begin);
  }

  void read_entries(const std::string& directory, uint64_t entries, uint64_t end) {
    std::string_view rest = directory;
    std::string folder;
    uint64_t total = 0;  // below 2^64, because each size is below that of the file
    for (uint64_t i = 0; i < entries; ++i) {
      if (rest.size() < 46 || !rest.starts_with("PK\1\2"))
        detail::fail(path_, ": damaged: zip directory, entry ", i, kAgain);
      const size_t name = detail::number_at(rest, 28, 2), extra = detail::number_at(rest, 30, 2);
      const size_t whole = 46 + name + extra + detail::number_at(rest, 32, 2);
      if (rest.size() < whole) detail::fail(path_, ": damaged: zip directory, entry ", i, " is cut", kAgain);
      detail::Record record = entry_of(rest.substr(0, 46 + name + extra), name, end);
      const size_t slash = record.name.find('/');
      if (slash == record.name.npos || (i > 0 && record.name.compare(0, slash + 1, folder) != 0))
        detail::fail(path_, ": is a zip archive, but not one of torch.save: \"", record.name,
                     "\" is not in its folder");
      if (i == 0) folder = record.name.substr(0, slash + 1);
      if (record.stored) total += 30 + name + record.size;
      if (total > end)
        detail::fail(path_, ": damaged: the records of the zip archive overlap at \"", record.name, "\"",
                     kAgain);
      record.name.erase(0, slash + 1);
      if (!places_.emplace(record.name, records_.size()).second)
        detail::fail(path_, ": damaged: the zip archive has \"", record.name, "\" twice", kAgain);
      records_.push_back(std::move(record));
      rest.remove_prefix(whole);
    }
  }

  // Returns the record of one entry of the directory. `end` is where the records end in the file.
  detail::Record entry_of(std::string_view entry, size_t name, uint64_t end) const {
    detail::Record record;
    record.name = entry.substr(46, name);
    record.crc = static_cast<uint32_t>(detail::number_at(entry, 16, 4));
    uint64_t stored = detail::number_at(entry, 20, 4), local = detail::number_at(entry, 42, 4);
    record.size = detail::number_at(entry, 24, 4);
    std::string_view extra = entry.substr(46 + name);
    while (extra.size() >= 4) {
      const size_t size = detail::number_at(extra, 2, 2);
      std::string_view field = extra.substr(4, size);
      const bool zip64 = detail::number_at(extra, 0, 2) == 1;
      for (uint64_t* value : {&record.size, &stored, &local}) {
        if (!zip64 || *value != UINT32_MAX || field.size() < 8) continue;
        *value = detail::number_at(field, 0, 8);
        field.remove_prefix(8);
      }
      extra.remove_prefix(std::min(extra.size(), 4 + size));
    }
    record.stored = (detail::number_at(entry, 8, 2) & 1) == 0 && detail::number_at(entry, 10, 2) == 0 &&
                    stored == record.size;
    if (local > end || end - local < 30 + name)
      detail::fail(path_, ": damaged: \"", record.name, "\" is not in the file", kAgain);
    const std::string head = range(local, 30 + name);
    const uint64_t before = 30 + name + detail::number_at(head, 28, 2);
    if (!head.starts_with("PK\3\4") || detail::number_at(head, 26, 2) != name ||
        head.substr(30) != record.name)
      detail::fail(path_, ": damaged: \"", record.name, "\" does not begin at offset ", local, kAgain);
    if (before > end - local || stored > end - local - before)
      detail::fail(path_, ": truncated: \"", record.name, "\" has ", stored, " bytes, which do not fit",
                   kAgain);
    record.at = local + before;
    return record;
  }

  void require_stored(const detail::Record& record) const {
    if (record.stored) return;
    detail::fail(path_, ": \"", record.name,
                 "\" is compressed or encrypted, which torch.save does not do; unpack ",
                 "the archive and pack it again with zip -0, or save it again with torch.save");
  }

  size_t find_record(const std::string& name) const {
    const auto found = places_.find(name);
    return found == places_.end() ? SIZE_MAX : found->second;
  }

  // Returns the checked bytes of a record that describes tensors.
  std::string content(const std::string& name) {
    const size_t found = find_record(name);
    if (found == SIZE_MAX)
      detail::fail(path_, ": has no record ", name, "; it was not written by torch.save");
    if (records_[found].size > kMaxHeaderBytes)
      detail::fail(path_, ": ", name, " has ", records_[found].size, " bytes, and ", kMaxHeaderBytes,
                   " are allowed");
    require_stored(records_[found]);
    verify(records_[found]);
    return range(records_[found].at, records_[found].size);
  }

  void verify(detail::Record& record) {
    if (record.checked) return;
    std::string part(std::min<uint64_t>(record.size, 1 << 20), '\0');
    uint32_t crc = 0;
    for (uint64_t done = 0; done < record.size; done += part.size()) {
      part.resize(std::min<uint64_t>(part.size(), record.size - done));
      read_at_(record.at + done, part.data(), part.size());
      crc = detail::crc32(part.data(), part.size(), crc);
    }
    if (crc != record.crc)
      detail::fail(path_, ": damaged: the checksum of ", record.name,
                   " differs; copy the file again, or save it again without ",
                   "torch.serialization.set_crc32_options(False)");
    record.checked = true;
  }

  // A strided tensor is read in ranges that have at most kSpare bytes, or kWaste times its bytes.
  static constexpr uint64_t kWaste = 16, kSpare = 4096;

  // Returns the most bytes that a read of a whole tensor takes, whose elements lie in a range of `span`.
  static uint64_t read_of(const Tensor& tensor, uint64_t span) {
    const uint64_t item = row_of(tensor.dtype).bytes,
                   most = kSpare + kWaste * std::min(tensor.bytes(), span * item);
    return std::max(tensor.bytes(), std::min(span * item, most));
  }

  // Copies the elements of a tensor that is not contiguous. Reads the range of the file that holds them. If
  // other elements take most of that range, copies each half of the elements on its own.
  void read_strided(const Tensor& tensor, uint64_t first, uint64_t count, char* out) const {
    const uint64_t item = row_of(tensor.dtype).bytes;
    const auto place = [&](uint64_t element) {
      uint64_t at = 0;
      for (size_t d = tensor.shape.size(); d-- > 0; element /= static_cast<uint64_t>(tensor.shape[d]))
        at += element % static_cast<uint64_t>(tensor.shape[d]) * static_cast<uint64_t>(tensor.strides[d]);
      return at;
    };
    // The dimensions before `same` have one index for all elements. Those behind it may have any.
    uint64_t inner = tensor.elements, rest = 0;
    size_t same = 0;
    for (; same < tensor.shape.size(); ++same) {
      inner /= static_cast<uint64_t>(tensor.shape[same]);
      if (first / inner != (first + count - 1) / inner) break;
    }
    for (size_t d = same + 1; d < tensor.shape.size(); ++d)
      rest += static_cast<uint64_t>(tensor.shape[d] - 1) * static_cast<uint64_t>(tensor.strides[d]);
    const uint64_t begin = count == 1 ? place(first) : place(first / inner * inner);
    const uint64_t end = count == 1 ? begin + 1 : place((first + count - 1) / inner * inner) + rest + 1;
    if (count > 1 && (end - begin) * item > kSpare && (end - begin) / kWaste > count) {
      read_strided(tensor, first, count / 2, out);
      return read_strided(tensor, first + count / 2, count - count / 2, out + count / 2 * item);
    }
    const std::string bytes = range(tensor.offset + begin * item, (end - begin) * item);
    for (uint64_t i = 0; i < count; ++i)
      std::memcpy(out + i * item, bytes.data() + (place(first + i) - begin) * item, item);
  }

  std::string range(uint64_t offset, uint64_t size) const {
    std::string bytes(size, '\0');
    if (size > 0) read_at_(offset, bytes.data(), bytes.size());
    return bytes;
  }

  std::string path_;
  uint64_t size_ = 0;
  ReadAt read_at_;
  Format format_ = Format::kPt;
  std::vector<Tensor> tensors_;
  std::vector<size_t> by_name_;  // places in tensors_
  std::map<std::string, std::string> metadata_;
  std::vector<detail::Record> records_;
  std::map<std::string, size_t> places_;  // of records_, by name
};

namespace detail {

inline void check_sources(const std::vector<Source>& sources) {
  std::set<std::string_view> names;
  for (const Source& source : sources) {
    const auto refuse = [&](const char* why) {
      fail("tensor \"", source.name, "\" cannot be written: ", why);
    };
    if (!names.insert(source.name).second) refuse("another tensor has this name");
    if (!valid_utf8(source.name)) refuse("its name is not UTF-8");
    if (source.name == "__metadata__") refuse("the format has another use for this name");
    if (source.name.size() > kMaxHeaderBytes / 2 || source.shape.size() > kMaxDims ||
        !elements_of(source.shape) ||
        std::any_of(source.shape.begin(), source.shape.end(), [](int64_t n) { return n < 0; })) {
      refuse("its name or shape is too large, or a dimension is negative");
    }
  }
}

inline uint64_t bytes_of(const Source& source) {
  return *elements_of(source.shape) * row_of(source.dtype).bytes;
}

// Appends a JSON text with its quotes.
inline void append_json(std::string& out, std::string_view text) {
  if (!valid_utf8(text)) fail("the metadata \"", text, "\" cannot be written: it is not UTF-8");
  constexpr std::string_view kFrom = "\"\\\b\f\n\r\t", kTo = "\"\\bfnrt";
  out += '"';
  for (const char c : text) {
    if (const size_t found = kFrom.find(c); found != kFrom.npos) {
      (out += '\\') += kTo[found];
    } else if (static_cast<uint8_t>(c) < 0x20) {
      (out += c < 0x10 ? "\\u000" : "\\u001") += "0123456789abcdef"[c & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

// Writes a zip file whose records are stored and aligned as torch.save does.
class ZipWriter {
 public:
  explicit ZipWriter(const Sink& sink) : sink_(sink) {}

  void add(const std::string& record, const void* bytes, uint64_t size) {
    const std::string name = "archive/" + record;
    const uint32_t crc = crc32(bytes, size);
    const uint64_t at = at_;
    std::string head("PK\3\4");
    append_fields(head, crc, size);
    append(head, name.size(), 2);
    std::string extra = size >= UINT32_MAX ? zip64({size, size}) : std::string();
    const uint64_t padding = 63 - (at + 30 + name.size() + extra.size() + 4 + 63) % 64;
    append(extra += "FB", padding, 2);
    extra.append(padding, 'Z');
    append(head, extra.size(), 2);
    write((head += name) += extra);
    sink_(bytes, size);
    at_ += size;
    std::vector<uint64_t> large(size >= UINT32_MAX ? 2 : 0, size);
    if (at >= UINT32_MAX) large.push_back(at);
    extra = large.empty() ? std::string() : zip64(large);
    append(directory_ += "PK\1\2", 45, 2);
    append_fields(directory_, crc, size);
    append(directory_, name.size(), 2);
    append(directory_, extra.size(), 2);
    directory_.append(10, '\0');  // comment, disk, attributes
    append(directory_, std::min<uint64_t>(at, UINT32_MAX), 4);
    (directory_ += name) += extra;
    ++entries_;
    for (const char c : record) id_ = (id_ ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
    id_ = (id_ ^ crc) * 0x100000001b3u;
  }

  // A number that depends on the names and checksums of the records so far.
  std::string id() const {
    const std::string digits = std::to_string(id_);
    return std::string(40 - digits.size(), '0') + digits;
  }

  void finish() {
    const uint64_t begin = at_, bytes = directory_.size();
    std::string end = std::move(directory_);
    append(end += "PK\6\6", 44, 8);
    append(end, 45 | 45 << 16, 4);
    append(end, 0, 8);
    for (const uint64_t value : {entries_, entries_, bytes, begin}) append(end, value, 8);
    append(end += "PK\6\7", 0, 4);
    append(end, begin + bytes, 8);
    append(end, 1, 4);
    append(end += "PK\5\6", 0, 4);
    for (int twice = 0; twice < 2; ++twice) append(end, std::min<uint64_t>(entries_, UINT16_MAX), 2);
    append(end, std::min<uint64_t>(bytes, UINT32_MAX), 4);
    append(end, std::min<uint64_t>(begin, UINT32_MAX), 4);
    append(end, 0, 2);
    write(end);
  }

 private:
  // The fields that the head of a record and its entry in the directory have in common.
  static void append_fields(std::string& out, uint32_t crc, uint64_t size) {
    append(out, 45, 2);                  // version 4.5, which has zip64
    append(out, 0x800, 2);               // names are UTF-8
    append(out, 0, 2);                   // stored
    append(out, uint32_t{33} << 16, 4);  // 1980-01-01
    append(out, crc, 4);
    for (int twice = 0; twice < 2; ++twice) append(out, std::min<uint64_t>(size, UINT32_MAX), 4);
  }
  static std::string zip64(const std::vector<uint64_t>& values) {
    std::string field;
    append(field, 1, 2);
    append(field, 8 * values.size(), 2);
    for (const uint64_t value : values) append(field, value, 8);
    return field;
  }
  void write(const std::string& bytes) {
    sink_(bytes.data(), bytes.size());
    at_ += bytes.size();
  }

  const Sink& sink_;
  uint64_t at_ = 0, entries_ = 0, id_ = 0xcbf29ce484222325u;
  std::string directory_;
};

inline void append_text(std::string& pickle, std::string_view text) {
  append(pickle += 'X', text.size(), 4);
  pickle += text;
}

inline void append_number(std::string& pickle, uint64_t number) {
  if (number <= INT32_MAX) return append(pickle += 'J', number, 4);
  append(pickle += "\x8a\x08", number, 8);
}

inline void append_numbers(std::string& pickle, const std::vector<int64_t>& numbers) {
  pickle += '(';
  for (const int64_t n : numbers) append_number(pickle, static_cast<uint64_t>(n));
  pickle += 't';
}

// Returns the pickle of an OrderedDict whose tensor i has the storage i.
inline std::string pickle_of(const std::vector<Source>& sources) {
  const std::string dict = "ccollections\nOrderedDict\n)R";
  std::string pickle = "\x80\x02" + dict;
  for (size_t i = 0; i < sources.size(); ++i) {
    const Source& source = sources[i];
    append_text(pickle, source.name);
    append_text(pickle += "ctorch._utils\n_rebuild_tensor_v2\n((", "storage");
    ((pickle += "ctorch\n") += row_of(source.dtype).storage.substr(6)) += '\n';
    append_text(pickle, std::to_string(i));
    append_text(pickle, "cpu");
    append_number(pickle, *elements_of(source.shape));
    append_number(pickle += "tQ", 0);
    append_numbers(pickle, source.shape);
    append_numbers(pickle, row_major(source.shape));
    ((pickle += '\x89') += dict) += "tRs";
  }
  return pickle += '.';
}

}  // namespace detail

// Writes a safetensors file. Tensors with larger elements come first, so that all are aligned, and then the
// order is that of the names. Errors: FileError for a tensor that the format cannot hold.
inline void write_safetensors(const Sink& sink, std::vector<Source> sources,
                              const std::map<std::string, std::string>& metadata = {}) {
  detail::check_sources(sources);
  std::sort(sources.begin(), sources.end(), [](const Source& a, const Source& b) {
    const uint64_t x = row_of(a.dtype).bytes, y = row_of(b.dtype).bytes;
    return x != y ? x > y : a.name < b.name;
  });
  std::string header = "{";
  for (const auto& [key, value] : metadata) {
    header += header.size() > 1 ? "," : "\"__metadata__\":{";
    detail::append_json(header, key);
    detail::append_json(header += ':', value);
  }
  if (!metadata.empty()) header += '}';
  uint64_t offset = 0;
  for (const Source& source : sources) {
    if (header.size() > 1) header += ',';
    detail::append_json(header, source.name);
    ((header += ":{\"dtype\":\"") += row_of(source.dtype).name) += "\",\"shape\":[";
    for (size_t d = 0; d < source.shape.size(); ++d)
      (header += d > 0 ? "," : "") += std::to_string(source.shape[d]);
    (header += "],\"data_offsets\":[") += std::to_string(offset);
    ((header += ',') += std::to_string(offset += detail::bytes_of(source))) += "]}";
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  if (length > kMaxHeaderBytes)
    detail::fail("the header of ", length, " bytes is too large; write several files");
  sink(&length, 8);
  sink(header.data(), header.size());
  for (const Source& source : sources) sink(source.bytes(), detail::bytes_of(source));
}

// Writes a .pt file that torch.load(FILE, weights_only=True) reads as an OrderedDict of tensors. The order is
// that of `sources`. Errors: as write_safetensors().
inline void write_pt(const Sink& sink, const std::vector<Source>& sources) {
  detail::check_sources(sources);
  detail::ZipWriter zip(sink);
  const auto add = [&](const char* name, const std::string& text) {
    zip.add(name, text.data(), text.size());
  };
  const std::string pickle = detail::pickle_of(sources);
  if (pickle.size() > kMaxHeaderBytes)
    detail::fail("the names and shapes take ", pickle.size(),
                 " bytes, which is too much; write several files");
  // No .format_version: it says that torch may compute where the records lie, by rules that only hold for the
  // archives of PyTorch's own writer. Without it torch reads the heads of the records.
  add("data.pkl", pickle);
  add(".storage_alignment", "64");
  add("byteorder", "little");
  for (size_t i = 0; i < sources.size(); ++i)
    zip.add("data/" + std::to_string(i), sources[i].bytes(), detail::bytes_of(sources[i]));
  add("version", "3\n");
  add(".data/serialization_id", zip.id());
  zip.finish();
}

namespace detail {

// A new file beside a target, which takes the target's place in the end. It is removed otherwise.
class NewFile {
 public:
  explicit NewFile(const std::string& target) : target_(target) {
    std::error_code error;
    const auto type = std::filesystem::status(target, error).type();
    if (type != std::filesystem::file_type::not_found && type != std::filesystem::file_type::regular)
      fail("cannot write: it is not a regular file, or cannot be looked up",
           error ? ": " + error.message() : "");
    std::random_device random;
    for (int tries = 0; file_ == nullptr && tries < 100; ++tries) {
      name_ = target + "." + std::to_string(random()) + ".tmp";
      file_ = std::fopen(name_.c_str(), "wbx");  // x: fails if there is such a file
      if (file_ == nullptr && errno != EEXIST) break;
    }
    if (file_ == nullptr) refuse("cannot make " + name_);
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    if (file_ != nullptr) std::fclose(file_);
    std::error_code ignored;
    if (!renamed_) std::filesystem::remove(name_, ignored);
  }

  void write(const void* bytes, size_t size) {
    if (size > 0 && std::fwrite(bytes, 1, size, file_) != size) refuse("cannot write");
  }
  void commit() {
    bool failed = std::fflush(file_) != 0;
#if __has_include(<unistd.h>)
    failed = failed || ::fsync(::fileno(file_)) != 0;
#endif
    if (failed) refuse("cannot write");
    failed = std::fclose(std::exchange(file_, nullptr)) != 0;
    if (failed) refuse("cannot write");
    std::error_code error;
    std::filesystem::rename(name_, target_, error);
    if (error) fail("cannot rename ", name_, ": ", error.message());
    renamed_ = true;
  }

 private:
  [[noreturn]] static void refuse(const std::string& what) {
    fail(what, ": ", std::error_code(errno, std::generic_category()).message());
  }

  std::string target_, name_;
  std::FILE* file_ = nullptr;
  bool renamed_ = false;
};

}  // namespace detail

// Writes a file: .pt if its name ends in .pt or .pth, and safetensors otherwise. The content is written
// beside `path` under another name that ends in .tmp, and renamed, so that a failure leaves the old file. A
// .pt file does not hold metadata. Errors: FileError.
inline void write_file(const std::string& path, const std::vector<Source>& sources,
                       const std::map<std::string, std::string>& metadata = {}) {
  try {
    detail::NewFile file(path);
    const Sink sink = [&](const void* bytes, size_t size) { file.write(bytes, size); };
    is_pt_name(path) ? write_pt(sink, sources) : write_safetensors(sink, sources, metadata);
    file.commit();
  } catch (const FileError& error) {
    detail::fail(path, ": ", error.what());
  }
}

}  // namespace v1
}  // namespace starling::weights

#endif  // STARLING_WEIGHTS_FILE_H_
