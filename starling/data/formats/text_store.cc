#include "starling/data/formats/text_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "starling/base/error.h"
#include "starling/base/utf8.h"
#include "starling/data/formats/byte_file.h"

namespace starling {
namespace {

constexpr uint64_t kMaxText = uint64_t{1} << 33;

// A contiguous part of a text in memory.
class FileText final : public TextStore {
 public:
  FileText(Vocabulary vocabulary, std::vector<int32_t> ids)
      : vocabulary_(std::move(vocabulary)), ids_(std::move(ids)) {}
  const Vocabulary& vocabulary() const override { return vocabulary_; }
  int64_t samples(int64_t tokens) const override { return (static_cast<int64_t>(ids_.size()) - 1) / tokens; }
  void read(int64_t index, int64_t tokens, int64_t shift, int64_t* out) const override {
    const int64_t last = static_cast<int64_t>(ids_.size()) - tokens - 1;
    const auto first = ids_.begin() + std::min(index * tokens + shift, last);
    std::copy(first, first + tokens + 1, out);
  }

 private:
  Vocabulary vocabulary_;
  std::vector<int32_t> ids_;
};

std::vector<int32_t> ids_of(const std::u32string& text, const Vocabulary& vocabulary,
                            const std::string& path) {
  std::vector<int32_t> ids(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const int64_t id = vocabulary.id_of(text[i]);
    if (id < 0) {
      throw DataError(fmt::format(
          "{}: offset {}: the character {} does not occur in the training text; remove it or train "
          "on a text that has it",
          path, encode_utf8(text.substr(0, i)).size(), encode_utf8(text.substr(i, 1))));
    }
    ids[i] = static_cast<int32_t>(id);
  }
  return ids;
}

std::shared_ptr<const TextStore> text_part(const std::string& path, const char* what,
                                           const Vocabulary& vocabulary, std::vector<int32_t> ids,
                                           int64_t tokens) {
  const int64_t characters = static_cast<int64_t>(ids.size());
  if (characters < tokens + 1) {
    throw DataError(fmt::format(
        "{}: offset {}: the {} has {} characters, one sample needs {}; use a longer text, a smaller "
        "model.tokens or another data.validation",
        path, characters, what, characters, tokens + 1));
  }
  return std::make_shared<FileText>(vocabulary, std::move(ids));
}

}  // namespace

Vocabulary::Vocabulary(const std::u32string& text) : characters_(text) {
  std::sort(characters_.begin(), characters_.end());
  characters_.erase(std::unique(characters_.begin(), characters_.end()), characters_.end());
}

int64_t Vocabulary::id_of(char32_t character) const {
  const auto at = std::lower_bound(characters_.begin(), characters_.end(), character);
  return at != characters_.end() && *at == character ? at - characters_.begin() : -1;
}

std::string Vocabulary::text() const {
  return encode_utf8(characters_);
}

std::u32string decode_utf8(const std::string& bytes, const std::string& name) {
  std::u32string text;
  text.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    const size_t start = at;
    const char32_t code = next_code_point(bytes, at);
    if (code == kNoCodePoint) {
      throw DataError(fmt::format("{}: offset {}: byte 0x{:02x} is not UTF-8; convert the text to UTF-8",
                                  name, start, static_cast<unsigned char>(bytes[start])));
    }
    text.push_back(code);
  }
  return text;
}

std::string encode_utf8(const std::u32string& text) {
  std::string bytes;
  for (const char32_t c : text) {
    if (c < 0x80) {
      bytes.push_back(static_cast<char>(c));
      continue;
    }
    const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    constexpr unsigned kLead[] = {0, 0xC0, 0xE0, 0xF0};
    bytes.push_back(static_cast<char>(kLead[more] | (c >> (6 * more))));
    for (int i = more - 1; i >= 0; --i) bytes.push_back(static_cast<char>(0x80 | ((c >> (6 * i)) & 0x3F)));
  }
  return bytes;
}

std::shared_ptr<const TextStore> make_text(Vocabulary vocabulary, std::vector<int32_t> ids) {
  return std::make_shared<FileText>(std::move(vocabulary), std::move(ids));
}

TextParts open_text(const std::string& path, double validation, int64_t tokens, const TextStore* like) {
  ByteFile file(path);
  const std::vector<uint8_t> bytes = file.read_all(kMaxText);
  if (bytes.empty()) file.fail(0, "the file is empty");
  const std::u32string text = decode_utf8(std::string(bytes.begin(), bytes.end()), path);
  const Vocabulary vocabulary = like != nullptr ? like->vocabulary() : Vocabulary(text);
  std::vector<int32_t> ids = ids_of(text, vocabulary, path);
  const double share = like != nullptr ? 0.0 : validation;
  const auto kept = static_cast<std::ptrdiff_t>(std::floor(static_cast<double>(ids.size()) * (1.0 - share)));
  TextParts parts;
  if (share > 0) {
    parts.test = text_part(path, "validation part", vocabulary, {ids.begin() + kept, ids.end()}, tokens);
    ids.resize(static_cast<size_t>(kept));
  }
  parts.train = text_part(path, share > 0 ? "training part" : "text", vocabulary, std::move(ids), tokens);
  return parts;
}

}  // namespace starling
