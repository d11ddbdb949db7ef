// TextStore: text as token ids, one a character. Torch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace starling {

// The characters of a text in the order of their code points; the id of a character is its place.
class Vocabulary {
 public:
  Vocabulary() = default;
  // The distinct characters of `text`.
  explicit Vocabulary(const std::u32string& text);
  int64_t size() const { return static_cast<int64_t>(characters_.size()); }
  // -1 if it is not there.
  int64_t id_of(char32_t character) const;
  // UTF-8, in the order of the ids.
  std::string text() const;

 private:
  std::u32string characters_;
};

// Errors: DataError with `name` and the byte offset for what is not UTF-8 (over-long forms, surrogates, cut
// sequences).
std::u32string decode_utf8(const std::string& bytes, const std::string& name);
std::string encode_utf8(const std::u32string& text);

// Thread-safe.
class TextStore {
 public:
  virtual ~TextStore() = default;
  virtual const Vocabulary& vocabulary() const = 0;
  // Samples of `tokens` tokens each.
  virtual int64_t samples(int64_t tokens) const = 0;
  // Writes tokens + 1 ids: those of sample `index` and the one that follows. shift: 0 … tokens - 1, moves all
  // windows to the right (the last one as far as it can go).
  virtual void read(int64_t index, int64_t tokens, int64_t shift, int64_t* out) const = 0;
};

struct TextParts {
  std::shared_ptr<const TextStore> train;
  std::shared_ptr<const TextStore> test;  // may be null
};

// The file `path`, plain or gzip, as characters; sample i is the window [i * tokens, (i + 1) * tokens). The
// last `validation` share of the characters is the test part (0: no test part). like: null, or the store
// whose vocabulary rules (a test text of its own; then all of it is the training part of the result). Errors:
// DataError for a missing file, for bytes that are not UTF-8, for characters outside the vocabulary (each
// with its offset) and where a part is shorter than one sample.
TextParts open_text(const std::string& path, double validation, int64_t tokens,
                    const TextStore* like = nullptr);

}  // namespace starling
