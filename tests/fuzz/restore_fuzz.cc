// Resumes a topic model, a lasso, a chain or a factorization from a checkpoint with any arrays and scalars.
// The job must refuse it with an Error, or go on without a fault. All hashes are right.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/factor/factor_checkpoint.h"
#include "starling/factor/row_priority.h"
#include "starling/lasso/solve_lasso.h"
#include "starling/mcmc/draws_checkpoint.h"
#include "starling/topics/topic_checkpoint.h"
#include "tests/fuzz/job_folder.h"
#include "tests/fuzz/lone_group.h"

namespace starling {

// Takes the place of the function in comm/bootstrap.cc, whose group has an engine.
std::unique_ptr<Group> make_single_group(const GroupOptions&, int) {
  return std::make_unique<LoneGroup>();
}

namespace {

constexpr std::array kArrays = {"documents", "begin", "topics", "residual", "weights", "progress",
                                "active",    "chain", "draws",  "W",        "H"};
constexpr std::array kValues = {"l1",         "bound",      "updates", "passes",
                                "since_pass", "since_look", "mass",    "settled"};

// The files of one kind of job. They are written once by the job itself, and then replaced for each input.
struct Job {
  explicit Job(const std::function<void(const std::string& folder)>& save) {
    save(folder.path().string());
    manifest = folder.manifest();
  }
  // Replaces the checkpoint: its step, its ranks and, for each array or scalar, a name and a content.
  void replace(FuzzInput& input) const {
    const int step = input.byte(), ranks = 1 + input.byte() % 3;
    const int64_t steps = step == 255 ? int64_t{1} << 53 : step;
    std::array<CheckpointArrays, 3> parts;
    nlohmann::json changed = manifest;
    for (int i = 0; i < 24 && !input.empty(); ++i) {
      const size_t name = input.byte() % (kArrays.size() + kValues.size());
      if (name >= kArrays.size()) {
        changed["values"][kValues[name - kArrays.size()]] = input.text(input.byte() % 32);
        continue;
      }
      const size_t rank = input.byte() % parts.size();
      const std::string content = input.text(input.number() % 512);
      parts[rank].put<char>(kArrays[name], content);
    }
    changed["step"] = steps;
    changed["ranks"] = ranks;
    for (int rank = 0; rank < ranks; ++rank)
      folder.write_part(parts[static_cast<size_t>(rank)], steps, rank, ranks);
    folder.write_manifest(changed);
  }

  JobFolder folder;
  nlohmann::json manifest;
};

// A store of rows that is never used.
struct NoRows final : RowStore {
  int32_t width() const override { return 3; }
  bool totals() const override { return true; }
  void push(std::span<const RowDelta>) override {}
  void restore(std::span<const RowDelta>) override {}
  uint64_t start_pull(std::span<const int64_t>) override { return 0; }
  void wait(uint64_t, RowBatch&) override {}
  void clock() override {}
  int64_t clocks() const override { return 0; }
  int shards() const override { return 1; }
  void scan(int, const Visit&) override {}
  uint64_t bytes_sent() const override { return 0; }
  uint64_t bytes_received() const override { return 0; }
};

void resume_topics(FuzzInput& input) {
  static const Corpus corpus{"corpus", 3, 4, {0, 1, 3}, {0, 3, 4, 6}, {0, 1, 1, 2, 0, 2}};
  static const SystemClock clock;
  LoneGroup group;
  NoRows rows;
  const TopicParts parts{group, corpus, rows, clock};
  TopicOptions options;
  options.model.topics = 3;
  options.model.words = 3;
  static const Job job([&](const std::string& folder) {
    options.checkpoint = folder;
    Documents documents(corpus, 3);
    documents.assign(std::vector<Topic>{0, 1, 2, 0, 1, 2});
    TopicCheckpoint(options, parts).save(1, documents);
  });
  job.replace(input);
  options.checkpoint = job.folder.path().string();
  Documents documents(corpus, 3);
  TopicCheckpoint checkpoint(options, parts);
  require_property(checkpoint.resume(documents) >= 0);
  for (const Topic topic : documents.topics()) require_property(topic < 3);
  checkpoint.save(5, documents);
  Documents again(corpus, 3);
  require_property(checkpoint.resume(again) == 5);
  require_property(std::equal(again.topics().begin(), again.topics().end(), documents.topics().begin()));
}

LassoResult solve(const std::string& folder, ScheduleKind schedule, int64_t most_updates) {
  static const SystemClock clock;
  LoneGroup group;
  LassoData data{"data", 4, 3, 0, 4, {1, 2, -1, 0, 0, 1, 1, 3, 2, 2, -1, 1}, {1, 3, -2, 1}};
  LassoOptions options;
  options.schedule = schedule;
  options.updates = 2;
  options.max_updates = most_updates;
  options.checkpoint = folder;
  options.checkpoint_every = 0;
  return solve_lasso(options, {group, data, clock});
}

void resume_lasso(FuzzInput& input) {
  const auto schedule = static_cast<ScheduleKind>(input.byte() % 6);
  static std::array<std::unique_ptr<Job>, 6> jobs;
  auto& job = jobs[static_cast<size_t>(schedule)];
  if (!job) {
    job = std::make_unique<Job>([&](const std::string& folder) { solve(folder, schedule, 3); });
  }
  job->replace(input);
  const LassoResult result = solve(job->folder.path().string(), schedule, 12);
  require_property(result.weights.size() == 3);
}

// A standard normal density of two parameters.
struct Normal final : Posterior {
  int64_t dimensions() const override { return 2; }
  int64_t samples() const override { return 0; }
  double log_prior(std::span<const double> x, std::span<double> gradient) const override {
    for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = -x[i];
    const double density = -(x[0] * x[0] + x[1] * x[1]) / 2;
    return std::isfinite(density) ? density : -std::numeric_limits<double>::infinity();
  }
  double log_likelihood(std::span<const double>, int64_t, int64_t,
                        std::span<double> gradient) const override {
    std::fill(gradient.begin(), gradient.end(), 0.0);
    return 0;
  }
};

void resume_chain(FuzzInput& input, Sampler sampler) {
  static const Normal normal;
  McmcOptions options;
  options.chain.sampler = sampler;
  options.chain.warmup = 44;
  options.chain.most_steps = 3;
  const auto each = [&](const auto& work) {
    SubPosterior density(normal, 0, 1);
    const auto chain = make_chain(options.chain, density, {0, 0}, 7);
    DrawsCheckpoint checkpoint(options, normal, 0, 1, {});
    work(*chain, checkpoint);
  };
  static std::array<std::unique_ptr<Job>, 2> jobs;
  const size_t index = sampler == Sampler::kHmc ? 0 : 1;
  if (!jobs[index]) {
    jobs[index] = std::make_unique<Job>([&](const std::string& folder) {
      // The job's files are in a folder of the sub-posterior.
      std::filesystem::create_directory_symlink(".", folder + "/sub-posterior-0-of-1");
      options.checkpoint = folder;
      each([&](Chain& chain, DrawsCheckpoint& checkpoint) { checkpoint.save(0, chain, {2, {}}); });
    });
  }
  jobs[index]->replace(input);
  options.checkpoint = jobs[index]->folder.path().string();
  each([&](Chain& chain, DrawsCheckpoint& checkpoint) {
    PosteriorDraws draws{2, {}};
    const int64_t transitions = checkpoint.load(chain, draws);
    require_property(draws.count() == std::max<int64_t>(0, transitions - 44));
    require_property(chain.report().draws == static_cast<double>(draws.count()));
    for (int i = 0; i < 3; ++i) chain.advance();
    for (const double x : chain.position()) require_property(std::isfinite(x));
  });
}

// Six entries of a matrix of 5 rows and 4 columns.
struct SixRatings final : RatingSource {
  int64_t rows() const override { return 5; }
  int64_t columns() const override { return 4; }
  int64_t count() const override { return 6; }
  double mean() const override { return 3; }
  void visit(const Take& take) const override {
    static const Rating entries[] = {{0, 0, 3}, {0, 3, 1}, {1, 2, 5}, {2, 1, 4}, {3, 0, 2}, {4, 3, 3}};
    take(entries);
  }
};

template <typename T>
void resume_factors(FuzzInput& input, FactorForm form) {
  static const SystemClock clock;
  static const SixRatings source;
  LoneGroup group;
  MemoryBudget budget;
  FactorizeParts parts{group, source, budget, clock, {}};
  FactorizeOptions options;
  options.factors = 2;
  options.row_share = form == FactorForm::kRotation ? 0.5 : 1;
  const RatingStripe stripe(source, 1, 0, 1, options, budget);
  Factors<T> factors{{{0, 5}, 5, 2, budget}, {{0, 4}, 4, 2, budget}};
  RowPriority<T> priority(options.row_share, factors.w, budget);
  static std::array<std::unique_ptr<Job>, 2> jobs;
  auto& job = jobs[static_cast<size_t>(form)];
  if (!job) {
    job = std::make_unique<Job>([&](const std::string& folder) {
      parts.checkpoint = folder;
      FactorCheckpoint<T>(options, parts, form, stripe).save(1, factors, priority.progress());
    });
  }
  job->replace(input);
  parts.checkpoint = job->folder.path().string();
  FactorCheckpoint<T> checkpoint(options, parts, form, stripe);
  require_property(checkpoint.resume(factors, &priority.progress()) >= 0);
  priority.begin_epoch(0, 1, factors.w);
  const auto chosen = priority.chosen();
  require_property(chosen.empty() || std::count(chosen.begin(), chosen.end(), 1) == priority.count());
  const VisitOrder order(stripe.training(0).size(), 1);
  sgd_pass(stripe.training(0), order, 0, stripe.training(0).size(), 0.1, 0.1, factors.w, factors.h, chosen);
  priority.end_epoch(factors.w);
  checkpoint.save(5, factors, priority.progress());
  require_property(checkpoint.resume(factors, &priority.progress()) == 5);
}

}  // namespace
}  // namespace starling

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  FuzzInput input(data, size);
  const int kind = input.byte() % 8;
  try {
    if (kind == 0) resume_topics(input);
    if (kind == 1) resume_lasso(input);
    if (kind == 2) resume_chain(input, Sampler::kHmc);
    if (kind == 3) resume_chain(input, Sampler::kRandomWalk);
    if (kind == 4) resume_factors<float>(input, FactorForm::kRotation);
    if (kind == 5) resume_factors<double>(input, FactorForm::kRotation);
    if (kind == 6) resume_factors<float>(input, FactorForm::kTables);
    if (kind == 7) resume_factors<double>(input, FactorForm::kTables);
  } catch (const Error& error) {
    require_property(error.code() == ErrorCode::kCheckpoint || error.code() == ErrorCode::kNumeric);
  }
  return 0;
}
