// TextStore holds text as token ids, one per character. Torch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace starling {

// The characters of a text in the order of their code points. The id of a character is its position.
class Vocabulary {
 public:
  // Makes an empty vocabulary.
  Vocabulary() = default;
  // Makes the vocabulary of the distinct characters of `text`.
  explicit Vocabulary(const std::u32string& text);
  // The number of characters.
  int64_t size() const { return static_cast<int64_t>(characters_.size()); }
  // Returns the id of a character, or -1 if the vocabulary does not have it.
  int64_t id_of(char32_t character) const;
  // Returns the characters as UTF-8 in the order of their ids.
  std::string text() const;

 private:
  std::u32string characters_;
};

// Decodes UTF-8. Errors: DataError with `name` and the byte offset for over-long forms, surrogates, cut
// sequences and other bytes that are not UTF-8.
std::u32string decode_utf8(const std::string& bytes, const std::string& name);
// Encodes characters as UTF-8.
std::string encode_utf8(const std::u32string& text);

// A text that is divided into samples. Thread-safe.
class TextStore {
 public:
  virtual ~TextStore() = default;
  // The vocabulary of the token ids.
  virtual const Vocabulary& vocabulary() const = 0;
  // Returns the number of samples of `tokens` tokens each.
  virtual int64_t samples(int64_t tokens) const = 0;
  // Writes tokens + 1 ids: those of sample `index` and the id that follows. `shift` (0 … tokens - 1) moves
  // every window to the right; the last window moves only as far as the text goes.
  virtual void read(int64_t index, int64_t tokens, int64_t shift, int64_t* out) const = 0;
};

// A training part and an optional test part with one vocabulary.
struct TextParts {
  std::shared_ptr<const TextStore> train;
  std::shared_ptr<const TextStore> test;  // may be null
};

// Returns a store of these ids, of which there are at least two. Each is below vocabulary.size().
std::shared_ptr<const TextStore> make_text(Vocabulary vocabulary, std::vector<int32_t> ids);

// Opens a text file, plain or gzip. Sample i is the window [i * tokens, (i + 1) * tokens) of its characters.
// The last `validation` share of the characters is the test part; 0 means no test part. `like` is null or a
// store whose vocabulary the text must use. With `like`, the whole text becomes the training part of the
// result. Errors: DataError for a missing file, and for a part that is shorter than one sample. DataError
// with the offset for bytes that are not UTF-8, and for characters outside the vocabulary.
TextParts open_text(const std::string& path, double validation, int64_t tokens,
                    const TextStore* like = nullptr);

}  // namespace starling
