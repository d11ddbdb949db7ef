#include "starling/commands/topics_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "starling/base/error.h"
#include "starling/commands/interrupted_text.h"
#include "starling/commands/progress_lines.h"
#include "starling/commands/result_folder.h"
#include "starling/commands/topics_export.h"
#include "starling/job/job_checkpoint.h"
#include "starling/run/rank_program.h"
#include "starling/server/local_row_store.h"
#include "starling/server/row_host.h"
#include "starling/spec/strategy_table.h"
#include "starling/telemetry/output.h"
#include "starling/telemetry/text_style.h"
#include "starling/topics/corpus_split.h"
#include "starling/topics/generated_corpus.h"
#include "starling/topics/read_corpus.h"
#include "starling/topics/topic_match.h"
#include "starling/topics/topic_score.h"
#include "starling/topics/train_topics.h"

namespace starling {
namespace {

constexpr int32_t kExampleTopics = 20, kUsualTopics = 100;
constexpr double kFoundCosine = 0.9;     // of a topic that is found
constexpr int32_t kMostCompared = 2000;  // topics, because an assignment takes K³ time
constexpr double kLeastLimitMb = 1;

int32_t topics_of(const TopicsSpec& what) {
  if (what.topics > 0) return what.topics;
  return what.data.empty() ? kExampleTopics : kUsualTopics;
}

bool is_scored(const TopicsSpec& what) {
  return !what.held_out.empty() || what.test_share > 0;
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
  std::vector<float> truth;             // φ at [w · K + k], of a generated corpus
  std::vector<std::string> vocabulary;  // on rank 0, if there is a file of it
};

Corpus generated_corpus(const TopicsSpec& what, const TopicModel& model, uint64_t seed, const Group& group,
                        std::vector<float>& truth) {
  GeneratedCorpus made;
  made.model = model;
  made.model.words = what.words;
  made.documents = what.documents;
  made.seed = seed;
  try {
    truth = true_topics(made);
    return generate_corpus(made, truth, group.rank(), group.size());
  } catch (const std::bad_alloc&) {
    throw Error(
        ErrorCode::kMemory,
        fmt::format("a generated corpus of {} documents, {} words and {} topics does not fit into memory; "
                    "generate less of them",
                    what.documents, what.words, model.topics));
  }
}

// Refuses held-out documents without a token to score. Collective.
void check_held_out(const TopicsSpec& what, const TopicData& data, Group& group) {
  // The held-out documents with two tokens, and the tokens of all documents.
  int64_t sums[] = {0, std::ssize(data.training.word) + std::ssize(data.held_out.word)};
  for (size_t d = 0; d < data.held_out.count(); ++d) sums[0] += data.held_out.document(d).size() < 2 ? 0 : 1;
  if (group.size() > 1) all_reduce(group, sums, std::size(sums), DataType::kInt64, ReduceOp::kSum);
  if (sums[0] > 0) return;
  if (sums[1] == 0)
    throw DataError(data.training.name + ": no document has a token; give documents with words");
  if (!what.held_out.empty())
    throw DataError(what.held_out +
                    ": no document has two tokens; give longer documents, or use --test-share");
  if (what.test_share * static_cast<double>(data.training.documents) < 1)
    throw ConfigError("--test-share",
                      fmt::format("{} of {} documents is less than one document; use a larger share, "
                                  "--held-out, or 0",
                                  what.test_share, data.training.documents));
  throw ConfigError("--test-share",
                    fmt::format("{} of {} documents holds out no document with two tokens; use a "
                                "larger share, --held-out, or 0",
                                what.test_share, data.training.documents));
}

TopicData topic_data(const TopicsSpec& what, const TopicModel& model, uint64_t seed, Group& group) {
  TopicData data;
  agree_on_success(group, [&] {
    Corpus all = what.data.empty() ? generated_corpus(what, model, seed, group, data.truth)
                                   : read_corpus(what.data, group.rank(), group.size());
    if (!what.vocabulary.empty() && group.rank() == 0)
      data.vocabulary = read_vocabulary(what.vocabulary, all.words);
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
  if (is_scored(what)) check_held_out(what, data, group);
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

// What rank 0 prints about topics, besides the result of the run.
struct TopicReport {
  std::optional<TopicScore> score, known_score;
  std::vector<double> cosines;  // of the true topics with those that were found
  bool too_many = false;        // topics to compare with the true ones
  uint64_t bytes_sent = 0, bytes_received = 0, shard_bytes = 0;
  uint64_t score_bytes = 0;  // the most that rank 0 held of rows while it scored

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
                                 {"score_bytes", report.score_bytes},
                                 {"shard_bytes", report.shard_bytes}};
  if (report.score)
    line["perplexity"] = report.score->perplexity, line["scored_tokens"] = report.score->tokens;
  if (report.known_score) line["true_perplexity"] = report.known_score->perplexity;
  if (!report.cosines.empty()) line["topics_found"] = report.found(), line["cosines"] = report.cosines;
  return line.dump();
}

std::string result_text(const TopicResult& result, const TopicReport& report, const TopicOptions& how) {
  std::string text =
      fmt::format("{} after {} in {:.2f} s; the start took {:.2f} s", counted(how.model.topics, "topic"),
                  counted(result.sweeps, "sweep"), result.seconds, result.start_seconds);
  if (report.score)
    text += fmt::format("\nperplexity {:.1f} on {}", report.score->perplexity,
                        counted(report.score->tokens, "held-out token"));
  if (report.known_score)
    text += fmt::format("; that of the true topics is {:.1f}", report.known_score->perplexity);
  if (!report.cosines.empty())
    text += fmt::format("\n{} of {} true topics are found, with a cosine of at least {}", report.found(),
                        report.cosines.size(), kFoundCosine);
  if (report.too_many)
    text += fmt::format("\nthe topics are not compared with the true ones, because there are more than {}",
                        kMostCompared);
  text += fmt::format("\nmodel {}; rank 0 sent {} and received {}", bytes_text(result.model_bytes),
                      bytes_text(report.bytes_sent), bytes_text(report.bytes_received));
  return text;
}

std::string opening_text(const Corpus& corpus, int32_t topics, int ranks) {
  return fmt::format("Topics of {}: {}, {}, {}, {}", corpus.name, counted(corpus.documents, "document"),
                     counted(corpus.words, "word"), counted(topics, "topic"), counted(ranks, "rank"));
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

// Refuses options that would have no effect beside others.
void check_effects(const TopicsSpec& what) {
  const TopicsSpec usual;
  const bool has_data = !what.data.empty();
  const auto refuse = [](bool wrong, const char* option, const char* why) {
    if (wrong) throw ConfigError(option, why);
  };
  refuse(has_data && what.documents != usual.documents, "--documents",
         "DOCWORD has its own documents; leave out one of the two");
  refuse(has_data && what.words != usual.words, "--words",
         "DOCWORD has its own words; leave out one of the two");
  refuse(what.sampler == "saber" && what.cycles != usual.cycles, "--cycles",
         "the sampler saber makes no proposals; leave it out, or use --sampler light");
  refuse(what.checkpoint.empty() && what.checkpoint_every != usual.checkpoint_every, "--checkpoint-every",
         "without --checkpoint, nothing is stored; give --checkpoint, too");
  refuse(!what.held_out.empty() && what.test_share > 0 && what.test_share != usual.test_share, "--test-share",
         "--held-out gives the documents for testing; leave out one of the two");
  refuse(what.score_every > 0 && !is_scored(what), "--score-every",
         "no document is held out; leave it out, or hold documents out by --test-share or --held-out");
  refuse(!what.vocabulary.empty() && what.save.empty(), "--vocabulary",
         "the words are for topics.txt; give --save-topics, too");
  if (what.score.empty()) return;
  refuse(!is_scored(what), "--score", "no document is held out; use --test-share or --held-out");
  const std::pair<bool, const char*> unused[] = {{what.sampler != usual.sampler, "--sampler"},
                                                 {what.start != usual.start, "--start"},
                                                 {what.sweeps != usual.sweeps, "--sweeps"},
                                                 {what.warm_sweeps != usual.warm_sweeps, "--warm-sweeps"},
                                                 {what.cycles != usual.cycles, "--cycles"},
                                                 {what.slices != usual.slices, "--slices"},
                                                 {what.memory_limit_mb != 0, "--memory-limit"},
                                                 {what.score_every != usual.score_every, "--score-every"},
                                                 {!what.save.empty(), "--save-topics"},
                                                 {!what.checkpoint.empty(), "--checkpoint"},
                                                 {has_data && what.topics != usual.topics, "--topics"},
                                                 {has_data && what.beta != usual.beta, "--beta"}};
  for (const auto& [given, option] : unused)
    refuse(given, option, "--score samples nothing; leave out one of the two");
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
  check_effects(what);
  if (what.memory_limit_mb > 0 && what.memory_limit_mb < kLeastLimitMb)
    throw ConfigError("--memory-limit", fmt::format("{} MB; give at least {}, or 0 for no limit",
                                                    what.memory_limit_mb, kLeastLimitMb));
  const std::string& name = spec.exchange.name;
  if (name != exchange_table().front().name)  // the first row is the default
    throw ConfigError("--exchange",
                      fmt::format("topics keeps its counts on shards and has no exchange; leave "
                                  "out \"{}\"",
                                  name));
  if (what.data.empty() && !what.held_out.empty())
    throw ConfigError("--held-out", "a generated corpus holds documents of its own out; use --test-share");
  check_result_folder("--save-topics", what.save);
}

int run_topics(const TopicsSpec& what, const CommandOptions& options, Session& session) {
  const RunSpec& spec = session.spec();
  const RunEnvironment environment = session.run_environment();
  Group& group = environment.group;
  const bool speaks = group.rank() == 0, prints = speaks && options.verbosity >= 0;
  make_result_folder(group, "--save-topics", what.save);
  TopicOptions how = topic_options(spec, what);
  const TopicData data = topic_data(what, how.model, spec.train.seed, group);
  if (!what.score.empty()) return score_only(what, data, group, options.json);
  how.model.words = data.training.words;
  const bool scores = is_scored(what);
  const size_t at_once = words_at_once(how.memory_limit, how.model.topics);
  TopicTable table(environment, {.width = how.model.topics,
                                 .workers = group.size(),
                                 .memory_limit = shard_limit(how.memory_limit),
                                 .totals = true});
  RowStore& rows = table.rows();
  const ReadTopics read = topics_of_counts(rows, how.model);
  const ScoreOptions scoring{.topics = how.model.topics, .alpha = how.model.alpha, .words_at_once = at_once};
  TopicReport report;
  const auto score = [&](const ReadTopics& topics) {
    const TopicScore found = score_topics(group, data.held_out, topics, scoring);
    report.score_bytes = std::max(report.score_bytes, found.bytes);
    return found;
  };
  if (scores && !data.truth.empty())
    report.known_score = score(topics_of_matrix(data.truth, how.model.topics));
  TopicParts parts{.group = group, .corpus = data.training, .rows = rows, .clock = environment.process.clock};
  parts.stop = &environment.process.stop;
  ProgressLines lines(environment.process.clock, how.sweeps, options.json || options.verbosity > 0);
  parts.on_sweep = [&](const TopicSweep& sweep) {
    session.note_loop_step(sweep.sweep);
    report.score.reset();
    const bool due =
        sweep.sweep == how.sweeps || (what.score_every > 0 && sweep.sweep % what.score_every == 0);
    if (scores && due) report.score = score(read);
    if (prints && lines.is_due(sweep.sweep, due)) print_line(sweep_line(sweep, report.score, options.json));
  };
  if (prints && !options.json) {
    print_line(opening_text(data.training, how.model.topics, group.size()));
    parts.on_resumed = [&](int64_t sweep) {
      print_line(fmt::format("resumed after sweep {} of {}", sweep, what.checkpoint));
    };
  }
  const TopicResult result = train_topics(how, parts);
  report.bytes_sent = rows.bytes_sent();
  report.bytes_received = rows.bytes_received();
  const bool whole = !result.interrupted;
  if (whole && scores && !report.score) report.score = score(read);  // of a run that was finished before
  report.too_many = !data.truth.empty() && how.model.topics > kMostCompared;
  if (whole && !data.truth.empty() && !report.too_many)
    report.cosines = match_topics(group, data.truth, how.model.words, how.model.topics, read, at_once);
  if (whole && !what.save.empty()) export_topics(group, what.save, data.vocabulary, how.model, read, at_once);
  report.shard_bytes = table.finish();
  if (speaks && options.json) print_line(result_json(result, report, how, data.training, group.size()));
  if (speaks && !options.json)
    print_line(whole ? result_text(result, report, how)
                     : interrupted_text({"sweep", result.sweeps, how.sweeps, what.checkpoint}));
  return whole ? 0 : interrupted_status(session);
}

}  // namespace starling
