#include "starling/commands/topics_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "starling/base/atomic_file.h"
#include "starling/base/error.h"
#include "starling/factor/npy.h"
#include "starling/job/job_checkpoint.h"
#include "starling/run/rank_program.h"
#include "starling/server/local_row_store.h"
#include "starling/server/row_host.h"
#include "starling/spec/strategy_table.h"
#include "starling/telemetry/output.h"
#include "starling/topics/corpus_split.h"
#include "starling/topics/generated_corpus.h"
#include "starling/topics/read_corpus.h"
#include "starling/topics/topic_match.h"
#include "starling/topics/topic_score.h"
#include "starling/topics/train_topics.h"

namespace starling {
namespace {

constexpr int32_t kExampleTopics = 20, kUsualTopics = 100;
constexpr double kFoundCosine = 0.9;       // of a topic that is found
constexpr int64_t kExportedAtOnce = 1000;  // words
constexpr size_t kTopWords = 20;           // of a topic, in topics.txt

int32_t topics_of(const TopicsSpec& what) {
  if (what.topics > 0) return what.topics;
  return what.data.empty() ? kExampleTopics : kUsualTopics;
}

TopicOptions topic_options(const RunSpec& spec, const TopicsSpec& what) {
  TopicOptions options;
  options.model.topics = topics_of(what);
  options.model.alpha = what.alpha;
  options.model.beta = what.beta;
  options.sampler = what.sampler == "saber" ? SamplerKind::kSaber : SamplerKind::kLight;
  options.sweeps = what.sweeps;
  options.warm_sweeps = what.warm_sweeps;
  options.anchors = what.start == "anchors";
  options.cycles = what.cycles;
  options.slices = what.slices;
  options.memory_limit = static_cast<uint64_t>(what.memory_limit_mb * 1e6);
  options.seed = spec.train.seed;
  options.checkpoint = what.checkpoint;
  options.checkpoint_every = what.checkpoint_every;
  return options;
}

// The documents of a rank, and the truth if it is known.
struct TopicData {
  Corpus training, held_out;
  std::vector<float> truth;  // φ at [w · K + k], of a generated corpus
};

TopicData topic_data(const TopicsSpec& what, const TopicModel& model, uint64_t seed, Group& group) {
  TopicData data;
  agree_on_success(group, [&] {
    Corpus all;
    if (what.data.empty()) {
      GeneratedCorpus made;
      made.model = model;
      made.model.words = what.words;
      made.documents = what.documents;
      made.seed = seed;
      data.truth = true_topics(made);
      all = generate_corpus(made, data.truth, group.rank(), group.size());
    } else {
      all = read_corpus(what.data, group.rank(), group.size());
    }
    if (what.held_out.empty()) {
      std::tie(data.training, data.held_out) = split_corpus(all, what.test_share);
      return;
    }
    data.training = std::move(all);
    data.held_out = read_corpus(what.held_out, group.rank(), group.size());
    if (data.held_out.words != data.training.words)
      throw DataError(fmt::format("{} has {} words, and {} has {}: both need one vocabulary", what.held_out,
                                  data.held_out.words, what.data, data.training.words));
  });
  return data;
}

// The row table of a run: in this process, or with a shard in each rank.
class TopicTable {
 public:
  TopicTable(const RunEnvironment& environment, RowTableOptions options) {
    if (environment.group.size() == 1) {
      options.staleness.reset();  // with one worker, no push needs to be held back
      local_ = std::make_unique<LocalRowStore>(options);
      return;
    }
    if (environment.store == nullptr)
      throw ConfigError("--ranks",
                        "the shards of the model need the store of the launcher: start the job with -n, "
                        "torchrun or srun");
    ServerRendezvous rendezvous = environment.rendezvous;
    rendezvous.name = "topics";
    host_ = std::make_unique<RowHost>(*environment.store, rendezvous, environment.group.rank(), options);
  }
  RowStore& rows() { return host_ ? static_cast<RowStore&>(host_->rows()) : *local_; }
  // Ends the use of the table. Returns the most bytes that this rank's shard held, or 0 if it is not known.
  uint64_t finish() { return host_ ? host_->finish().stats.peak_bytes : 0; }

 private:
  std::unique_ptr<LocalRowStore> local_;
  std::unique_ptr<RowHost> host_;
};

// The words with the largest φ of each topic.
class TopWords {
 public:
  explicit TopWords(size_t topics) : best_(topics) {}
  void add(size_t topic, float value, int64_t word) {
    auto& list = best_[topic];
    const std::pair<float, int64_t> entry{-value, word};
    if (list.size() == kTopWords && !(entry < list.back())) return;
    list.insert(std::upper_bound(list.begin(), list.end(), entry), entry);
    if (list.size() > kTopWords) list.pop_back();
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
  std::vector<std::vector<std::pair<float, int64_t>>> best_;  // by topic: −φ and the word, ascending
};

// Writes φ as phi.npy, with a row for each word, and topics.txt. Reads some rows at a time.
void export_topics(const std::string& folder, const std::string& vocabulary_file, const TopicModel& model,
                   const ReadTopics& read) {
  std::vector<std::string> vocabulary;
  if (!vocabulary_file.empty()) vocabulary = read_vocabulary(vocabulary_file, model.words);
  const auto topics = static_cast<size_t>(model.topics);
  TopWords top(topics);
  TopicRows rows;
  std::vector<float> values;
  for (int64_t begin = 0; begin < model.words; begin += kExportedAtOnce) {
    std::vector<int64_t> words(static_cast<size_t>(std::min<int64_t>(kExportedAtOnce, model.words - begin)));
    std::iota(words.begin(), words.end(), begin);
    read(words, rows);
    values.clear();
    for (size_t i = 0; i < words.size(); ++i) {
      values.insert(values.end(), rows.common.begin(), rows.common.end());
      const BasicRow<float> row = rows.rows.row(i);
      for (size_t j = 0; j < row.index.size(); ++j) {
        const auto k = static_cast<size_t>(row.index[j]);
        const float value = values[i * topics + k] += row.value[j];
        top.add(k, value, words[i]);
      }
    }
    write_npy_rows(folder + "/phi.npy", model.words, model.topics, begin, values);
  }
  AtomicFile file(folder + "/topics.txt");
  const std::string text = top.text(vocabulary);
  file.write(text.data(), text.size());
  file.commit();
}

// What rank 0 prints about topics, besides the result of the run.
struct TopicReport {
  std::optional<TopicScore> score, known_score;
  std::vector<double> cosines;  // of the true topics with those that were found
  uint64_t bytes_sent = 0, bytes_received = 0, shard_bytes = 0;

  int64_t found() const {
    return std::count_if(cosines.begin(), cosines.end(), [](double c) { return c >= kFoundCosine; });
  }
};

std::string sweep_line(const TopicSweep& sweep, const std::optional<TopicScore>& score, bool json) {
  if (json) {
    nlohmann::ordered_json line = {{"event", "sweep"},         {"sweep", sweep.sweep},
                                   {"moved", sweep.moved},     {"beta", sweep.beta},
                                   {"seconds", sweep.seconds}, {"wait_s", sweep.wait_seconds}};
    if (score) line["perplexity"] = score->perplexity;
    return line.dump();
  }
  std::string line =
      fmt::format("sweep {:>4}  moved {:5.1f} %  {:.2f} s", sweep.sweep, 100 * sweep.moved, sweep.seconds);
  if (score) line += fmt::format("  perplexity {:.1f}", score->perplexity);
  return line;
}

std::string result_json(const TopicResult& result, const TopicReport& report, const TopicOptions& how,
                        const Corpus& corpus, int ranks) {
  const double visits = static_cast<double>(result.tokens) *
                        static_cast<double>(result.sweeps - std::max<int64_t>(0, result.resumed_from));
  nlohmann::ordered_json line = {{"event", "result"},
                                 {"sampler", how.sampler == SamplerKind::kLight ? "light" : "saber"},
                                 {"ranks", ranks},
                                 {"topics", how.model.topics},
                                 {"words", how.model.words},
                                 {"documents", corpus.documents},
                                 {"tokens", result.tokens},
                                 {"sweeps", result.sweeps},
                                 {"resumed_from", result.resumed_from},
                                 {"interrupted", result.interrupted},
                                 {"anchors", result.anchors},
                                 {"slices", result.slices.size()},
                                 {"wall_s", result.seconds},
                                 {"start_s", result.start_seconds},
                                 {"tokens_per_s", result.seconds > 0 ? visits / result.seconds : 0},
                                 {"bytes_sent", report.bytes_sent},
                                 {"bytes_received", report.bytes_received},
                                 {"model_bytes", result.model_bytes},
                                 {"slice_bytes", result.slice_bytes},
                                 {"shard_bytes", report.shard_bytes}};
  if (report.score)
    line["perplexity"] = report.score->perplexity, line["scored_tokens"] = report.score->tokens;
  if (report.known_score) line["true_perplexity"] = report.known_score->perplexity;
  if (!report.cosines.empty()) line["topics_found"] = report.found(), line["cosines"] = report.cosines;
  return line.dump();
}

std::string result_text(const TopicResult& result, const TopicReport& report, const TopicOptions& how) {
  std::string text = fmt::format("{} topics after {} sweeps in {:.2f} s; the start took {:.2f} s",
                                 how.model.topics, result.sweeps, result.seconds, result.start_seconds);
  if (report.score)
    text += fmt::format("\nperplexity {:.1f} on {} held-out tokens", report.score->perplexity,
                        report.score->tokens);
  if (report.known_score)
    text += fmt::format("; that of the true topics is {:.1f}", report.known_score->perplexity);
  if (!report.cosines.empty())
    text += fmt::format("\n{} of {} true topics are found, with a cosine of at least {}", report.found(),
                        report.cosines.size(), kFoundCosine);
  text += fmt::format("\nmodel {:.1f} MB; rank 0 sent {:.1f} MB and received {:.1f} MB",
                      result.model_bytes / 1e6, report.bytes_sent / 1e6, report.bytes_received / 1e6);
  return text;
}

// Scores an exported φ, and samples nothing.
int score_only(const TopicsSpec& what, const TopicData& data, Group& group, bool json) {
  const TopicMatrix phi = read_topic_matrix(what.score);
  if (phi.words != data.held_out.words)
    throw DataError(fmt::format("{} has a row for each of {} words, and the documents have {}", what.score,
                                phi.words, data.held_out.words));
  const TopicScore score = score_topics(group, data.held_out, topics_of_matrix(phi.values, phi.topics),
                                        {.topics = phi.topics, .alpha = what.alpha});
  if (group.rank() != 0) return 0;
  print_line(json ? nlohmann::ordered_json{{"event", "result"},
                                           {"topics", phi.topics},
                                           {"perplexity", score.perplexity},
                                           {"documents", score.documents},
                                           {"scored_tokens", score.tokens}}
                        .dump()
                  : fmt::format("perplexity {:.1f} on {} held-out tokens of {} documents", score.perplexity,
                                score.tokens, score.documents));
  return 0;
}

void check_word(const std::string& value, const char* option, const char* first, const char* second) {
  if (value != first && value != second)
    throw ConfigError(option, fmt::format("\"{}\" is unknown; write {} or {}", value, first, second));
}

}  // namespace

void check_topics_command(const RunSpec& spec, const TopicsSpec& what) {
  check_word(what.sampler, "--sampler", "light", "saber");
  check_word(what.start, "--start", "anchors", "random");
  check_topics(topic_options(spec, what));
  const std::string& name = spec.exchange.name;
  if (name != exchange_table().front().name)  // the first row is the default
    throw ConfigError("--exchange",
                      fmt::format("topics keeps its counts on shards and has no exchange; leave "
                                  "out \"{}\"",
                                  name));
  if (what.data.empty() && !what.held_out.empty())
    throw ConfigError("--held-out", "a generated corpus holds documents of its own out; use --test-share");
  if (!what.save.empty() && !std::filesystem::is_directory(what.save))
    throw ConfigError(
        "--save-topics",
        fmt::format("{} is not a folder: make it first; rank 0 writes phi.npy and topics.txt into it",
                    what.save));
}

int run_topics(const TopicsSpec& what, const CommandOptions& options, Session& session) {
  const RunSpec& spec = session.spec();
  const RunEnvironment environment = session.run_environment();
  Group& group = environment.group;
  const bool speaks = group.rank() == 0, prints = speaks && options.verbosity >= 0;
  TopicOptions how = topic_options(spec, what);
  const TopicData data = topic_data(what, how.model, spec.train.seed, group);
  if (!what.score.empty()) return score_only(what, data, group, options.json);
  how.model.words = data.training.words;
  const bool scores = !what.held_out.empty() || what.test_share > 0;
  TopicTable table(environment, {.width = how.model.topics,
                                 .workers = group.size(),
                                 .memory_limit = shard_limit(how.memory_limit),
                                 .totals = true});
  RowStore& rows = table.rows();
  const ReadTopics read = topics_of_counts(rows, how.model);
  const ScoreOptions scoring{.topics = how.model.topics, .alpha = how.model.alpha};
  TopicReport report;
  const auto score = [&](const ReadTopics& topics) {
    return score_topics(group, data.held_out, topics, scoring);
  };
  if (scores && !data.truth.empty())
    report.known_score = score(topics_of_matrix(data.truth, how.model.topics));
  TopicParts parts{.group = group, .corpus = data.training, .rows = rows, .clock = environment.process.clock};
  parts.stop = &environment.process.stop;
  parts.on_sweep = [&](const TopicSweep& sweep) {
    session.note_loop_step(sweep.sweep);
    report.score.reset();
    const bool due =
        sweep.sweep == how.sweeps || (what.score_every > 0 && sweep.sweep % what.score_every == 0);
    if (scores && due) report.score = score(read);
    if (prints) print_line(sweep_line(sweep, report.score, options.json));
  };
  if (prints && !options.json) {
    print_line(fmt::format("Topics of {}: {} documents, {} words, {} topics, {} rank{}", data.training.name,
                           data.training.documents, how.model.words, how.model.topics, group.size(),
                           group.size() == 1 ? "" : "s"));
    parts.on_resumed = [&](int64_t sweep) {
      print_line(fmt::format("resumed after sweep {} of {}", sweep, what.checkpoint));
    };
  }
  const TopicResult result = train_topics(how, parts);
  report.bytes_sent = rows.bytes_sent();
  report.bytes_received = rows.bytes_received();
  const bool whole = !result.interrupted;
  if (whole && scores && !report.score) report.score = score(read);  // of a run that was finished before
  agree_on_success(group, [&] {
    if (!speaks || !whole) return;
    if (!data.truth.empty())
      report.cosines = match_topics(data.truth, how.model.words, how.model.topics, read);
    if (!what.save.empty()) export_topics(what.save, what.vocabulary, how.model, read);
  });
  report.shard_bytes = table.finish();
  if (speaks)
    print_line(options.json ? result_json(result, report, how, data.training, group.size())
                            : result_text(result, report, how));
  return whole ? 0 : interrupted_status(session);
}

}  // namespace starling
