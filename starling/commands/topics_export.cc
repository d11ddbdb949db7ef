#include "starling/commands/topics_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <span>
#include <system_error>
#include <utility>

#include "starling/base/atomic_file.h"
#include "starling/base/error.h"
#include "starling/factor/npy.h"
#include "starling/job/job_checkpoint.h"

namespace starling {
namespace {

constexpr int64_t kMostAtOnce = 1000;  // words
constexpr size_t kTopWords = 20;       // of a topic, in topics.txt
constexpr size_t kTopicsGatheredAtOnce = 1000;

// A word of a topic. Likelier words come first.
struct TopWord {
  float value = 0;    // φ
  int64_t word = -1;  // −1: none
  bool operator<(const TopWord& other) const {
    return value != other.value ? value > other.value : word < other.word;
  }
};

// The words with the largest φ of each topic.
class TopWords {
 public:
  explicit TopWords(size_t topics) : best_(topics) {}
  void add(size_t topic, const TopWord& entry) {
    auto& list = best_[topic];
    if (list.size() == kTopWords && !(entry < list.back())) return;
    list.insert(std::upper_bound(list.begin(), list.end(), entry), entry);
    if (list.size() > kTopWords) list.pop_back();
  }
  // Takes the words of all ranks. Collective.
  void gather(Group& group) {
    if (group.size() == 1) return;
    const auto ranks = static_cast<size_t>(group.size());
    for (size_t begin = 0; begin < best_.size(); begin += kTopicsGatheredAtOnce) {
      const size_t count = std::min(kTopicsGatheredAtOnce, best_.size() - begin);
      std::vector<TopWord> own(count * kTopWords), all(ranks * own.size());
      for (size_t k = 0; k < count; ++k)
        std::copy(best_[begin + k].begin(), best_[begin + k].end(), own.begin() + offset(k));
      all_gather(group, own.data(), all.data(), own.size() * sizeof(TopWord), DataType::kUint8);
      for (size_t k = 0; k < count; ++k) best_[begin + k].clear();
      for (size_t i = 0; i < all.size(); ++i) {
        if (all[i].word >= 0) add(begin + i % own.size() / kTopWords, all[i]);
      }
    }
  }
  std::string text(const std::vector<std::string>& vocabulary) const {
    std::string out;
    for (size_t k = 0; k < best_.size(); ++k) {
      out += fmt::format("{}:", k);
      for (const auto& [value, word] : best_[k]) {
        out += ' ';
        out += vocabulary.empty() ? std::to_string(word + 1) : vocabulary[static_cast<size_t>(word)];
      }
      out += '\n';
    }
    return out;
  }

 private:
  static std::ptrdiff_t offset(size_t topic) { return static_cast<std::ptrdiff_t>(topic * kTopWords); }
  std::vector<std::vector<TopWord>> best_;  // by topic, sorted
};

// Writes the rank's part of the rows.
void write_rows(const Group& group, const std::string& path, const TopicModel& model, const ReadTopics& read,
                size_t words_at_once, TopWords& top) {
  const auto topics = static_cast<size_t>(model.topics);
  const int64_t first = int64_t{model.words} * group.rank() / group.size();
  const int64_t end = int64_t{model.words} * (group.rank() + 1) / group.size();
  const int64_t step = std::clamp<int64_t>(static_cast<int64_t>(words_at_once), 1, kMostAtOnce);
  TopicRows rows;
  std::vector<float> values;
  for (int64_t begin = first; begin < end; begin += step) {
    std::vector<int64_t> words(static_cast<size_t>(std::min(step, end - begin)));
    std::iota(words.begin(), words.end(), begin);
    read(words, rows);
    values.clear();
    for (size_t i = 0; i < words.size(); ++i) {
      values.insert(values.end(), rows.common.begin(), rows.common.end());
      const BasicRow<float> row = rows.rows.row(i);
      for (size_t j = 0; j < row.index.size(); ++j) {
        const auto k = static_cast<size_t>(row.index[j]);
        const float value = values[i * topics + k] += row.value[j];
        top.add(k, {value, words[i]});
      }
    }
    write_npy_rows(path, model.words, model.topics, begin, values);
  }
}

void write_text(const std::string& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace

void export_topics(Group& group, const std::string& folder, const std::vector<std::string>& vocabulary,
                   const TopicModel& model, const ReadTopics& read, size_t words_at_once) {
  const std::string path = folder + "/phi.npy", part = path + ".part";
  const bool first = group.rank() == 0;
  const auto remove_part = [&] {
    std::error_code ignored;
    if (first) std::filesystem::remove(part, ignored);
  };
  remove_part();  // of a run that was ended
  try {
    agree_on_success(group, [&] {
      if (first) write_npy_rows(part, model.words, model.topics, 0, {});
    });
    TopWords top(static_cast<size_t>(model.topics));
    agree_on_success(group, [&] {
      if (!std::filesystem::exists(part))
        throw DataError(
            fmt::format("--save-topics: rank {} does not see {}, which rank 0 has made: give a folder "
                        "that all hosts share",
                        group.rank(), part));
      write_rows(group, part, model, read, words_at_once, top);
    });
    top.gather(group);
    agree_on_success(group, [&] {
      if (!first) return;
      write_text(folder + "/topics.txt", top.text(vocabulary));
      std::error_code error;
      std::filesystem::rename(part, path, error);
      if (error) throw DataError(fmt::format("{}: cannot be renamed: {}", part, error.message()));
    });
  } catch (const Error&) {
    remove_part();
    throw;
  }
}

}  // namespace starling
