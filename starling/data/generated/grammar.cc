#include "starling/data/generated/grammar.h"

#include <cctype>
#include <string_view>

#include "starling/data/random.h"

namespace starling {
namespace {

constexpr uint64_t kGrammarKey = 0x6772616D6D6172ULL;
constexpr std::u32string_view kCharacters = U"\n ,.?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

// Writes sentences from the draws of one generator.
class ParagraphWriter {
 public:
  explicit ParagraphWriter(uint64_t key) : random_(key) {}

  std::string paragraph() {
    text_.clear();
    const int64_t sentences = 2 + random_.below(4);
    for (int64_t i = 0; i < sentences; ++i) {
      if (i > 0) text_ += ' ';
      sentence();
    }
    text_ += '\n';
    return std::move(text_);
  }

 private:
  template <size_t N>
  std::string_view pick(const std::string_view (&words)[N]) {
    // The smaller of two draws makes some words frequent and others rare.
    const int64_t a = random_.below(static_cast<int64_t>(N)), b = random_.below(static_cast<int64_t>(N));
    return words[a < b ? a : b];
  }
  bool chance(double p) { return random_.uniform() < p; }
  void word(std::string_view w) {
    if (!text_.empty() && text_.back() != ' ' && text_.back() != '\n') text_ += ' ';
    text_ += w;
  }

  void sentence() {
    const size_t start = text_.size();
    const bool question = chance(0.12);
    if (question) {
      const bool plural = chance(0.4);
      word(plural ? "do" : "does");
      noun_phrase(plural, 1);
      verb_phrase(true, 1);  // the bare form is that of the plural
    } else {
      if (chance(0.2)) place_phrase(), text_ += ',';
      clause(2);
      if (chance(0.25)) text_ += ',', word(chance(0.5) ? "and" : "but"), clause(1);
    }
    text_ += question ? '?' : '.';
    text_[start] = static_cast<char>(std::toupper(static_cast<unsigned char>(text_[start])));
  }

  void clause(int depth) {
    const bool plural = chance(0.4);
    noun_phrase(plural, depth);
    verb_phrase(plural, depth);
  }

  void noun_phrase(bool plural, int depth) {
    static constexpr std::string_view kOne[] = {"the", "a", "this", "every"};
    static constexpr std::string_view kMany[] = {"the", "many", "these", "some"};
    static constexpr std::string_view kAdjectives[] = {"small",  "quiet",   "red",   "hungry",
                                                       "clever", "distant", "broken"};
    static constexpr std::string_view kNouns[] = {"bird",   "sailor", "farmer", "river", "garden",  "teacher",
                                                  "window", "letter", "dog",    "clock", "mountain"};
    word(plural ? pick(kMany) : pick(kOne));
    if (chance(0.35)) word(pick(kAdjectives));
    word(pick(kNouns));
    if (plural) text_ += 's';
    if (depth > 0 && chance(0.15)) {
      word("that");
      verb_phrase(plural, depth - 1);
    } else if (depth > 0 && chance(0.12)) {
      place_phrase();
    }
  }

  void verb_phrase(bool plural, int depth) {
    static constexpr std::string_view kWithObject[] = {"find", "follow", "remember", "paint",
                                                       "need", "visit",  "break"};
    static constexpr std::string_view kAlone[] = {"sleep", "wait", "sing", "return", "listen", "vanish"};
    static constexpr std::string_view kManner[] = {"slowly", "again", "often", "gladly", "alone"};
    const bool object = depth > 0 && chance(0.6);
    const std::string_view verb = object ? pick(kWithObject) : pick(kAlone);
    word(verb);
    if (!plural) text_ += verb.ends_with("sh") ? "es" : "s";
    if (object) noun_phrase(chance(0.4), depth - 1);
    if (chance(0.25)) word(pick(kManner));
  }

  void place_phrase() {
    static constexpr std::string_view kWhere[] = {"near", "behind", "above", "in", "under"};
    static constexpr std::string_view kPlaces[] = {"the house", "the harbour", "the old bridge", "the forest",
                                                   "the sea"};
    word(pick(kWhere));
    word(pick(kPlaces));
  }

  SampleRandom random_;
  std::string text_;
};

class GrammarText final : public TextStore {
 public:
  GrammarText(uint64_t seed, int64_t samples)
      : seed_(seed), samples_(samples), vocabulary_(std::u32string(kCharacters)) {}
  const Vocabulary& vocabulary() const override { return vocabulary_; }
  int64_t samples(int64_t) const override { return samples_; }
  // A sample begins at a random place in its first paragraph. `shift` moves the beginning further.
  void read(int64_t index, int64_t tokens, int64_t shift, int64_t* out) const override {
    const uint64_t key = key_of(seed_, static_cast<uint64_t>(index), kGrammarKey);
    ParagraphWriter writer(key);
    std::string text = writer.paragraph();
    const size_t start =
        static_cast<size_t>(SampleRandom(~key).below(static_cast<int64_t>(text.size())) + shift);
    while (text.size() < start + static_cast<size_t>(tokens) + 1) text += writer.paragraph();
    for (int64_t i = 0; i <= tokens; ++i) {
      out[i] = vocabulary_.id_of(static_cast<unsigned char>(text[start + static_cast<size_t>(i)]));
    }
  }

 private:
  uint64_t seed_;
  int64_t samples_;
  Vocabulary vocabulary_;
};

}  // namespace

std::string grammar_paragraph(uint64_t seed, int64_t index) {
  return ParagraphWriter(key_of(seed, static_cast<uint64_t>(index), kGrammarKey)).paragraph();
}

std::shared_ptr<const TextStore> make_grammar(uint64_t seed, int64_t samples) {
  return std::make_shared<GrammarText>(seed, samples);
}

}  // namespace starling
