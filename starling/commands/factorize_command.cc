#include "starling/commands/factorize_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "starling/base/error.h"
#include "starling/commands/generated_options.h"
#include "starling/commands/interrupted_text.h"
#include "starling/commands/result_folder.h"
#include "starling/factor/factorize.h"
#include "starling/factor/npy.h"
#include "starling/run/rank_program.h"
#include "starling/server/serve.h"
#include "starling/spec/strategy_table.h"
#include "starling/telemetry/output.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

constexpr double kMostEpochs = 1e15;

bool by_tables(const RunSpec& spec) {
  const ExchangeTraits& exchange = exchange_traits(spec);
  return exchange.servers && exchange.lockstep == Lockstep::kByStaleness;
}

FactorizeOptions factor_options(const RunSpec& spec, const FactorizeSpec& what) {
  FactorizeOptions options;
  options.factors = what.factors;
  options.epochs = static_cast<int64_t>(std::llround(spec.train.epochs));
  options.lr = spec.optimizer.lr;
  options.lr_decay = what.lr_decay;
  options.l2 = what.l2;
  options.test_share = what.test_share;
  options.row_share = what.priority;
  options.seed = spec.train.seed;
  return options;
}

std::unique_ptr<RatingSource> ratings_of(const FactorizeSpec& what, uint64_t seed) {
  if (!what.ratings.empty()) return open_ratings(what.ratings);
  GeneratedRatings made;
  made.rows = what.rows;
  made.columns = what.columns;
  made.count = what.entries;
  made.seed = seed;
  return make_ratings(made);
}

std::optional<int64_t> staleness_of(const RunSpec& spec) {
  if (spec.exchange.staleness == "inf") return std::nullopt;
  return std::stoll(spec.exchange.staleness);
}

std::string epoch_line(const FactorizeEpoch& epoch, bool json) {
  if (json) {
    return nlohmann::ordered_json{{"event", "epoch"},
                                  {"epoch", epoch.epoch},
                                  {"train_rmse", epoch.train_rmse},
                                  {"seconds", epoch.seconds}}
        .dump();
  }
  return fmt::format("epoch {:>3}  rmse {:.4f}  {:.2f} s", epoch.epoch, epoch.train_rmse, epoch.seconds);
}

std::string result_line(const FactorizeResult& result, const RunSpec& spec, bool json) {
  const double visits = by_tables(spec) ? static_cast<double>(result.ratings) *
                                              static_cast<double>(result.epochs - result.resumed_from)
                                        : static_cast<double>(result.steps);
  const double speed = result.seconds > 0 ? visits / result.seconds : 0;
  const double peak = *std::max_element(result.peak_bytes.begin(), result.peak_bytes.end());
  if (json) {
    return nlohmann::ordered_json{{"event", "result"},
                                  {"form", by_tables(spec) ? "tables" : "rotation"},
                                  {"ranks", result.peak_bytes.size()},
                                  {"train_rmse", result.train_rmse},
                                  {"test_rmse", result.test_rmse},
                                  {"ratings", result.ratings},
                                  {"epochs", result.epochs},
                                  {"resumed_from", result.resumed_from},
                                  {"interrupted", result.interrupted},
                                  {"row_updates", result.row_updates},
                                  {"steps", result.steps},
                                  {"ratings_per_s", speed},
                                  {"wall_s", result.seconds},
                                  {"bytes_sent", result.bytes_sent},
                                  {"peak_bytes", result.peak_bytes},
                                  {"matrix_bytes", result.matrix_bytes}}
        .dump();
  }
  const std::string test = result.test_rmse >= 0 ? fmt::format("{:.4f} on test entries", result.test_rmse)
                                                 : "there are no test entries";
  return fmt::format(
      "rmse {:.4f}, {}; {:.3g} entries/s; a rank held at most {}, and all entries and factors are {}",
      result.train_rmse, test, speed, bytes_text(static_cast<uint64_t>(peak)),
      bytes_text(static_cast<uint64_t>(result.matrix_bytes)));
}

// Writes this rank's part of W.npy and H.npy.
void save_factors(const std::string& folder, const Factors<float>& factors, const RatingSource& source,
                  bool h) {
  const auto put = [&](const char* name, const FactorBlock<float>& block, int64_t rows) {
    write_npy_rows(folder + "/" + name, rows, block.factors, block.range.begin,
                   {block.values.data(), block.size()});
  };
  put("W.npy", factors.w, source.rows());
  if (h) put("H.npy", factors.h, source.columns());
}

}  // namespace

void check_factorize(const RunSpec& spec, const FactorizeSpec& what) {
  const std::string& name = spec.exchange.name;
  if (name != exchange_table().front().name && !by_tables(spec))  // the first row is the default
    throw ConfigError("--exchange",
                      fmt::format("factorize rotates blocks through the ranks, or keeps H on servers "
                                  "(--exchange parameter-server); \"{}\" is neither",
                                  name));
  if (!(spec.train.epochs >= 0.5 && spec.train.epochs <= kMostEpochs))  // checked before it is rounded
    throw ConfigError(
        "--epochs", fmt::format("{} epochs; give a number from 1 to {:.0f}", spec.train.epochs, kMostEpochs));
  if (!(what.priority > 0 && what.priority <= 1))
    throw ConfigError("--priority", fmt::format("{}: give a number above 0, at most 1", what.priority));
  if (what.priority < 1 && by_tables(spec))
    throw ConfigError("--priority", "only the rotation chooses rows; leave it out with --exchange");
  const FactorizeSpec usual;
  refuse_beside_data(what.ratings, "RATINGS",
                     {{what.rows != usual.rows, "--rows"},
                      {what.columns != usual.columns, "--columns"},
                      {what.entries != usual.entries, "--entries"}});
  const std::string& s = spec.exchange.staleness;
  if (s != "inf" && (s.empty() || s.size() > 9 || s.find_first_not_of("0123456789") != std::string::npos))
    throw ConfigError("--staleness", fmt::format("\"{}\" must be 0, a number of steps, or inf", s));
  check_result_folder("--save-factors", what.save);
}

int factorize(const FactorizeSpec& what, const CommandOptions& options, Session& session) {
  const RunSpec& spec = session.spec();
  const RunEnvironment environment = session.run_environment();
  if (session.server() >= 0) {
    serve_shard(*environment.store, environment.rendezvous, session.server(),
                factor_table_options(static_cast<int>(spec.train.ranks), staleness_of(spec)),
                DataType::kFp32);
    return 0;
  }
  make_result_folder(environment.group, "--save-factors", what.save);
  const auto source = ratings_of(what, spec.train.seed);
  const FactorizeOptions how = factor_options(spec, what);
  const int ranks = environment.group.size(), rank = environment.group.rank();
  if (source->rows() < ranks || source->columns() < ranks)
    throw ConfigError("--ranks",
                      fmt::format("{} ranks for {} and {}: some would have none; use at most -n {}", ranks,
                                  counted(source->rows(), "row"), counted(source->columns(), "column"),
                                  std::min(source->rows(), source->columns())));
  MemoryBudget budget(static_cast<size_t>(what.memory_limit_mb * 1e6));
  FactorizeParts parts{environment.group, *source, budget, environment.process.clock, {}};
  const bool speaks = rank == 0;
  if (speaks && options.verbosity >= 0)
    parts.on_epoch = [&](const FactorizeEpoch& epoch) { print_line(epoch_line(epoch, options.json)); };
  parts.checkpoint = what.checkpoint;
  parts.checkpoint_every = what.checkpoint_every;
  parts.stop = &environment.process.stop;
  if (speaks && options.verbosity >= 0 && !options.json)
    parts.on_resumed = [&](int64_t epoch) {
      print_line(fmt::format("resumed after epoch {} of {}", epoch, what.checkpoint));
    };
  const auto save = [&](const Factors<float>& factors, bool h) {
    if (!what.save.empty()) save_factors(what.save, factors, *source, h);
  };
  FactorizeResult result;
  if (by_tables(spec)) {
    if (environment.store == nullptr)
      throw ConfigError("--exchange",
                        "servers need processes of their own: start the job with -n, torchrun or srun");
    result = factorize_by_tables<float>(
        how, parts, *environment.store, environment.rendezvous,
        [&](const Factors<float>& factors, ServerClient<float>&) { save(factors, rank == 0); });
  } else {
    result =
        factorize_by_rotation<float>(how, parts, [&](const Factors<float>& factors) { save(factors, true); });
  }
  barrier(environment.group);  // now all parts of the files are written
  if (speaks && result.interrupted && !options.json) {
    print_line(interrupted_text({"epoch", result.epochs, how.epochs, what.checkpoint,
                                 what.save.empty() ? "" : what.save + " has the factors so far"}));
  } else if (speaks) {
    print_line(result_line(result, spec, options.json));
  }
  return result.interrupted ? interrupted_status(session) : 0;
}

}  // namespace starling
