#include "starling/commands/mcmc_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "starling/base/atomic_file.h"
#include "starling/base/error.h"
#include "starling/commands/generated_options.h"
#include "starling/commands/interrupted_text.h"
#include "starling/commands/read_samples.h"
#include "starling/factor/npy.h"
#include "starling/mcmc/gaussian_posterior.h"
#include "starling/mcmc/logistic_posterior.h"
#include "starling/mcmc/sample_posterior.h"
#include "starling/run/rank_program.h"
#include "starling/spec/strategy_table.h"
#include "starling/telemetry/output.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

constexpr int kExampleSubPosteriors = 4;
constexpr double kLargestRHat = 1.05;  // of chains that are long enough
constexpr size_t kShownParameters = 20;

bool is_gaussian(const McmcSpec& what) {
  return what.model == "gaussian" || (what.model.empty() && what.data.empty());
}

McmcOptions mcmc_options(const RunSpec& spec, const McmcSpec& what) {
  McmcOptions options;
  options.sub_posteriors = what.sub_posteriors;
  if (options.sub_posteriors == 0 && is_gaussian(what))
    options.sub_posteriors = std::max(kExampleSubPosteriors, static_cast<int>(spec.train.ranks));
  options.draws = what.draws;
  options.chain.sampler = what.sampler == "hmc" ? Sampler::kHmc : Sampler::kRandomWalk;
  options.chain.warmup = what.warmup;
  options.chain.target_acceptance = what.target_acceptance;
  options.combination = combination_named(what.combine);
  options.seed = spec.train.seed;
  options.checkpoint = what.checkpoint;
  options.checkpoint_every = what.checkpoint_every;
  return options;
}

// The posterior of a run, with what it refers to.
struct SampledModel {
  SampleTable samples;                          // of logistic regression
  std::unique_ptr<GaussianPosterior> gaussian;  // or null
  std::unique_ptr<LogisticPosterior> logistic;  // or null
  std::string name;

  const Posterior& posterior() const {
    return gaussian ? static_cast<const Posterior&>(*gaussian) : *logistic;
  }
};

std::unique_ptr<SampledModel> make_sampled_model(const McmcSpec& what, uint64_t seed) {
  auto model = std::make_unique<SampledModel>();
  if (is_gaussian(what)) {
    model->gaussian =
        std::make_unique<GaussianPosterior>(GaussianProblem{.dimensions = what.features,
                                                            .samples = what.samples,
                                                            .prior_deviation = 1 / std::sqrt(what.ridge),
                                                            .seed = seed});
    model->name = "mean of a Gaussian";
    return model;
  }
  model->samples = read_samples({.data = what.data, .label = what.label, .positive = what.positive},
                                {.count = what.samples, .features = what.features, .seed = seed});
  model->logistic = std::make_unique<LogisticPosterior>(model->samples, what.ridge);
  model->name = fmt::format("logistic regression on {}", model->samples.name);
  return model;
}

// The file for the draws, which only rank 0 writes. It keeps its old content until write().
class DrawsFile {
 public:
  // Makes a temporary file beside `path`, so that a wrong path ends the run at its start.
  DrawsFile(const std::string& path, bool writes) {
    if (!path.empty() && writes) file_.emplace(path);
  }
  void write(const PosteriorDraws& draws) {
    if (!file_) return;
    const std::string bytes = npy_matrix(draws.values, draws.dimensions);
    file_->write(bytes.data(), bytes.size());
    file_->commit();
  }

 private:
  std::optional<AtomicFile> file_;
};

// How far an estimate is from the known moments.
struct MomentErrors {
  double mean = 0;       // the largest error of a mean, in standard deviations of the posterior
  double deviation = 0;  // the largest relative error of a standard deviation
};

MomentErrors errors_of(const Moments& found, const Moments& exact) {
  MomentErrors errors;
  for (size_t j = 0; j < exact.mean.size(); ++j) {
    const double deviation = exact.deviation(j);
    errors.mean = std::max(errors.mean, std::abs(found.mean[j] - exact.mean[j]) / deviation);
    errors.deviation = std::max(errors.deviation, std::abs(found.deviation(j) / deviation - 1));
  }
  return errors;
}

// Prints how far each estimator is from the known posterior.
void compare_estimators(const McmcResult& result, const Moments& exact, uint64_t seed, bool json) {
  std::vector<PosteriorDraws> parts;
  for (const SubPosteriorResult& part : result.sub_posteriors) parts.push_back(part.draws);
  if (!json)
    print_line("Estimators and the known posterior. Errors of means are in posterior standard deviations:");
  for (const CombinationName& row : combination_names()) {
    const CombinedDraws combined = combine_draws(row.combination, parts, seed);
    const MomentErrors errors = errors_of(combined.moments, exact);
    print_line(json ? nlohmann::ordered_json{{"event", "estimator"},
                                             {"estimator", row.name},
                                             {"mean_error", errors.mean},
                                             {"deviation_error", errors.deviation},
                                             {"acceptance", combined.acceptance}}
                          .dump()
                    : fmt::format("  {:<18} means within {:.3f}, deviations within {:.1f} %", row.name,
                                  errors.mean, 100 * errors.deviation));
  }
}

std::string parameters_text(const Moments& found, const Moments* exact) {
  std::string text = fmt::format("{:<10} {:>12} {:>12}", "parameter", "mean", "deviation");
  if (exact != nullptr) text += fmt::format(" {:>12} {:>15}", "known mean", "known deviation");
  const size_t shown = std::min(found.mean.size(), kShownParameters);
  for (size_t j = 0; j < shown; ++j) {
    text += fmt::format("\n{:<10} {:>12.6f} {:>12.6f}", j, found.mean[j], found.deviation(j));
    if (exact != nullptr) text += fmt::format(" {:>12.6f} {:>15.6f}", exact->mean[j], exact->deviation(j));
  }
  if (shown < found.mean.size()) text += fmt::format("\n… and {} more", found.mean.size() - shown);
  return text;
}

std::string mcmc_result_text(const McmcResult& result, const McmcOptions& how, const Moments* exact) {
  double r_hat = 0, size = 1e300, draws = 0, accepted = 0, diverged = 0;
  int64_t resumed_from = -1;
  for (const SubPosteriorResult& part : result.sub_posteriors) {
    resumed_from = std::max(resumed_from, part.resumed_from);
    r_hat = std::max(r_hat, part.largest_r_hat);
    size = std::min(size, part.smallest_size);
    draws += part.chain.draws;
    accepted += part.chain.accepted;
    diverged += part.chain.diverged;
  }
  std::string text =
      resumed_from < 0 ? "" : fmt::format("resumed after transition {} of the chains\n", resumed_from);
  text += fmt::format(
      "sampling took {:.2f} s and sent {} bytes; comparing settings sent {} bytes, and gathering draws {} "
      "bytes\nchains: acceptance {:.2f}, largest R-hat {:.3f}, fewest effective draws {:.0f} of {}\n",
      result.sampling_s, result.bytes.sampling, result.bytes.start, result.bytes.gathering, accepted / draws,
      r_hat, size, how.draws);
  if (r_hat > kLargestRHat)
    text += fmt::format("R-hat is above {}: the chains are too short; increase --warmup and --draws\n",
                        kLargestRHat);
  if (diverged > 0)
    text += fmt::format(
        "{:.0f} of {:.0f} transitions diverged: the step size is too large in places; increase "
        "--target-acceptance\n",
        diverged, draws);
  text += fmt::format("combined by the {} estimator", name_of(how.combination));
  if (result.combined.acceptance < 1)
    text += fmt::format(", with acceptance {:.3f}", result.combined.acceptance);
  return text + "\n" + parameters_text(result.combined.moments, exact);
}

std::string mcmc_result_json(const McmcResult& result, const McmcOptions& how, const Posterior& posterior,
                             int ranks, const Moments* exact) {
  nlohmann::ordered_json line = {{"event", "result"},
                                 {"interrupted", result.interrupted},
                                 {"ranks", ranks},
                                 {"sub_posteriors", sub_posteriors_of(how, ranks)},
                                 {"samples", posterior.samples()},
                                 {"parameters", posterior.dimensions()}};
  if (result.interrupted) return line.dump();
  nlohmann::ordered_json chains = nlohmann::ordered_json::array();
  for (const SubPosteriorResult& part : result.sub_posteriors)
    chains.push_back({{"acceptance", part.chain.accepted / part.chain.draws},
                      {"divergences", part.chain.diverged},
                      {"evaluations", part.chain.evaluations},
                      {"step", part.chain.step},
                      {"r_hat", part.largest_r_hat},
                      {"effective_draws", part.smallest_size},
                      {"resumed_from", part.resumed_from},
                      {"wall_s", part.seconds}});
  const Moments& moments = result.combined.moments;
  line["estimator"] = name_of(how.combination);
  line["draws"] = result.combined.draws.count();
  line["acceptance"] = result.combined.acceptance;
  line["mean"] = moments.mean;
  line["covariance"] = moments.covariance.values;
  if (exact != nullptr) {
    line["known_mean"] = exact->mean;
    line["known_covariance"] = exact->covariance.values;
  }
  line["sampling_s"] = result.sampling_s;
  line["start_bytes"] = result.bytes.start;
  line["sampling_bytes"] = result.bytes.sampling;
  line["gathering_bytes"] = result.bytes.gathering;
  line["chains"] = chains;
  return line.dump();
}

}  // namespace

void check_mcmc_command(const RunSpec& spec, const McmcSpec& what) {
  if (!what.model.empty() && what.model != "gaussian" && what.model != "logistic")
    throw ConfigError("--model",
                      fmt::format("\"{}\" is no posterior of mcmc; write gaussian or logistic, or write "
                                  "a program of your own (docs/explanation/mcmc.md)",
                                  what.model));
  if (what.model == "gaussian" && !what.data.empty())
    throw ConfigError("--model", "gaussian generates its samples; leave out DATA, or write --model logistic");
  if (what.sampler != "hmc" && what.sampler != "random-walk")
    throw ConfigError("--sampler",
                      fmt::format("\"{}\" is no sampler; write hmc or random-walk", what.sampler));
  if (!(what.ridge > 0) || !std::isfinite(what.ridge))
    throw ConfigError("--ridge", fmt::format("{} gives no prior; use a positive number", what.ridge));
  check_mcmc(mcmc_options(spec, what), static_cast<int>(spec.train.ranks));
  const std::string& name = spec.exchange.name;
  if (name != exchange_table().front().name)  // the first row is the default
    throw ConfigError("--exchange", fmt::format("mcmc has no exchange; leave out \"{}\"", name));
  check_label_column(what.label);
  const McmcSpec usual;
  refuse_beside_data(
      what.data, "DATA",
      {{what.samples != usual.samples, "--samples"}, {what.features != usual.features, "--features"}});
  check_sample_source(what.data, "mcmc");
}

int run_mcmc(const McmcSpec& what, const CommandOptions& options, Session& session) {
  const RunSpec& spec = session.spec();
  const RunEnvironment environment = session.run_environment();
  const int ranks = environment.group.size();
  const bool speaks = environment.group.rank() == 0;
  const bool tells = speaks && options.verbosity >= 0 && !options.json;
  const McmcOptions how = mcmc_options(spec, what);
  const auto model = make_sampled_model(what, spec.train.seed);
  DrawsFile file(what.save, speaks);
  if (tells)
    print_line(
        fmt::format("Embarrassingly parallel MCMC: {}, {} samples, {} parameters, {} sub-posteriors, {}, "
                    "{} draws each",
                    model->name, model->posterior().samples(), model->posterior().dimensions(),
                    sub_posteriors_of(how, ranks), ranks_text(ranks), how.draws));
  const McmcResult result = sample_posterior(
      how, {.group = environment.group,
            .posterior = model->posterior(),
            .clock = environment.process.clock,
            .stop = &environment.process.stop,
            .on_transition = [&session](int64_t number) { session.note_loop_step(number); }});
  if (!speaks) return result.interrupted ? interrupted_status(session) : 0;
  std::optional<Moments> exact;
  if (model->gaussian) exact = model->gaussian->exact_moments();
  const Moments* known = exact ? &*exact : nullptr;
  if (!result.interrupted) {
    file.write(result.combined.draws);
    if (!options.json) print_line(mcmc_result_text(result, how, known));
    if (known != nullptr && options.verbosity >= 0)
      compare_estimators(result, *known, how.seed, options.json);
  }
  if (result.interrupted && !options.json) print_line(interrupted_text({.checkpoint = what.checkpoint}));
  if (options.json) print_line(mcmc_result_json(result, how, model->posterior(), ranks, known));
  return result.interrupted ? interrupted_status(session) : 0;
}

}  // namespace starling
