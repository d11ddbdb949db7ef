#include "starling/plan/schedule_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/read_file.h"

namespace starling {
namespace {

constexpr int kLargest = 1 << 20;  // the largest number of ranks, chunks, stages or micro-batches

struct Word {
  std::string_view text;
  int line;
  int column;
};

std::vector<Word> split(std::string_view text) {
  std::vector<Word> words;
  int line = 1;
  size_t line_begin = 0;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '\n') {
      ++line;
      line_begin = ++i;
    } else if (c == '#') {
      while (i < text.size() && text[i] != '\n') ++i;
    } else if (c == ' ' || c == '\t' || c == '\r') {
      ++i;
    } else {
      const size_t end = std::min(text.find_first_of(" \t\r\n#", i), text.size());
      words.push_back({text.substr(i, end - i), line, static_cast<int>(i - line_begin) + 1});
      i = end;
    }
  }
  return words;
}

std::optional<int> number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > kLargest)
    return std::nullopt;
  return value;
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& source) : words_(split(text)) {
    schedule_.source = source;
  }

  Schedule parse() {
    while (at_ < words_.size()) {
      const Word word = words_[at_++];
      if (word.text == "schedule") {
        say_once(word);
        schedule_.name = std::string(next(word).text);
      } else if (word.text == "ranks") {
        say_once(word);
        schedule_.ranks = positive(word);
      } else if (word.text == "chunks") {
        say_once(word);
        schedule_.chunks = positive(word);
      } else if (word.text == "micro-batches") {
        say_once(word);
        schedule_.micro_batches = positive(word);
      } else if (word.text == "rank") {
        begin_rank(word);
      } else {
        add_action(word);
      }
    }
    if (!said_.contains("ranks"))
      throw ConfigError(schedule_.source, "the number of ranks is missing; write `ranks N`");
    if (!said_.contains("micro-batches"))
      throw ConfigError(schedule_.source, "the number of micro-batches is missing; write `micro-batches M`");
    if (int64_t{schedule_.ranks} * schedule_.chunks > kLargest)
      throw ConfigError(schedule_.source,
                        fmt::format("{} ranks with {} chunks each are too many stages; the largest number of "
                                    "stages is {}",
                                    schedule_.ranks, schedule_.chunks, kLargest));
    if (schedule_.name.empty()) schedule_.name = schedule_.source;
    return std::move(schedule_);
  }

 private:
  [[noreturn]] void refuse(const Word& word, const std::string& message) const {
    throw ConfigError(fmt::format("{}:{}:{}", schedule_.source, word.line, word.column), message);
  }

  // Notes that a key of the head was given. A second value would disagree with the lines before it.
  void say_once(const Word& key) {
    if (!said_.insert(key.text).second)
      refuse(key, fmt::format("`{}` occurs twice; remove one of them", key.text));
  }

  Word next(const Word& before) {
    if (at_ == words_.size())
      refuse(before, fmt::format("`{}` is the last word: its value is missing", before.text));
    return words_[at_++];
  }

  int positive(const Word& key) {
    const Word word = next(key);
    const std::optional<int> value = number(word.text);
    if (!value || *value < 1)
      refuse(word, fmt::format("{} is \"{}\", but must be a positive whole number", key.text, word.text));
    return *value;
  }

  void begin_rank(const Word& key) {
    Word word = next(key);
    if (!word.text.ends_with(':')) refuse(word, "write a rank's line as in `rank 0:`");
    word.text.remove_suffix(1);
    const std::optional<int> rank = number(word.text);
    if (!said_.contains("ranks")) refuse(word, "write `ranks N` before the first rank");
    if (!rank || *rank >= schedule_.ranks)
      refuse(word, fmt::format("no rank \"{}\": there are ranks 0 … {}", word.text, schedule_.ranks - 1));
    schedule_.actions.resize(schedule_.ranks);
    if (!schedule_.actions[*rank].empty()) refuse(word, fmt::format("rank {} occurs twice", *rank));
    rank_ = *rank;
  }

  void add_action(const Word& word) {
    const size_t digits = std::min(word.text.find_first_of("0123456789"), word.text.size());
    const std::string_view code = word.text.substr(0, digits);
    std::string_view rest = word.text.substr(digits);
    Action action;
    action.line = word.line;
    action.column = word.column;
    int kind = 0;
    while (kind < 6 && code_of(static_cast<ActionKind>(kind)) != code) ++kind;
    if (kind == 6 || rest.empty()) {
      refuse(word,
             fmt::format(
                 "\"{}\" is not an action; actions are F B SA RA SG RG with a micro-batch, as in F0 or, with "
                 "chunks, F0.1",
                 word.text));
    }
    action.kind = static_cast<ActionKind>(kind);
    if (const size_t dot = rest.find('.'); dot != std::string_view::npos) {
      const std::optional<int> chunk = number(rest.substr(dot + 1));
      if (!chunk) refuse(word, fmt::format("\"{}\": the chunk after the dot is not a number", word.text));
      action.chunk = *chunk;
      rest = rest.substr(0, dot);
    }
    const std::optional<int> micro_batch = number(rest);
    if (!micro_batch) refuse(word, fmt::format("\"{}\": \"{}\" is not a micro-batch", word.text, rest));
    action.micro_batch = *micro_batch;
    if (rank_ < 0) refuse(word, fmt::format("the action {} comes before the first `rank N:`", word.text));
    schedule_.actions[rank_].push_back(action);
  }

  std::vector<Word> words_;
  size_t at_ = 0;
  int rank_ = -1;
  std::set<std::string_view> said_;  // the keys of the head that were given
  Schedule schedule_;
};

}  // namespace

Schedule parse_schedule(std::string_view text, const std::string& source) {
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos)
    throw ConfigError(source, fmt::format("has a zero byte at offset {}; give a text file", zero));
  return Parser(text, source).parse();
}

Schedule read_schedule(const std::string& path) {
  const FileText file = read_file_or_pipe(path);
  if (file.error != 0)
    throw ConfigError("--schedule",
                      fmt::format("cannot read the schedule file \"{}\": {}", path, file.reason()));
  return parse_schedule(file.text, path);
}

std::string print_schedule(const Schedule& s) {
  std::string text = fmt::format("schedule {}\nranks {}\nchunks {}\nmicro-batches {}\n", s.name, s.ranks,
                                 s.chunks, s.micro_batches);
  for (size_t r = 0; r < s.actions.size(); ++r) {
    std::string line = fmt::format("rank {}:", r);
    for (const Action& a : s.actions[r]) {
      std::string word = fmt::format(" {}{}", code_of(a.kind), a.micro_batch);
      if (s.chunks > 1) word += fmt::format(".{}", a.chunk);
      if (line.size() + word.size() > 110) {
        text += line + "\n";
        line = "       ";
      }
      line += word;
    }
    text += line + "\n";
  }
  return text;
}

}  // namespace starling
