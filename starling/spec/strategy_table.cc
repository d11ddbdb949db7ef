#include "starling/spec/strategy_table.h"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "starling/base/error.h"
#include "starling/spec/codec_table.h"
#include "starling/spec/enum_words.h"
#include "starling/spec/extensions.h"

namespace starling {
namespace {

#define STARLING_EXCHANGE(maker, ...) ExchangeTraits{__VA_ARGS__},
constexpr ExchangeTraits kExchanges[] = {
#include "starling/spec/exchanges.inc"
};
#undef STARLING_EXCHANGE

// Returns line `number`, counted from 0, of a text. A text with fewer lines has empty ones.
std::string_view line_of(std::string_view text, int number) {
  for (; number > 0; --number) {
    const size_t end = text.find('\n');
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return text.substr(0, text.find('\n'));
}

std::string joined_names() {
  std::string names;
  for (const ExchangeTraits& exchange : kExchanges) {
    if (!names.empty()) names += ' ';
    names += exchange.name;
  }
  return names;
}

std::vector<StrategyRow> rows_of_threads_optimizers_and_commands() {
  return {
      {"--threads-mode layer", "A pipeline inside one process: each core computes some of the layers.",
       "one process should use all cores", "`bubble`, `bubble_planned`", "explanation/pipeline.md"},
      {"--threads-mode hogwild",
       "Threads of a rank train one model without locks: each has its own mini-batches and adds its updates "
       "atomically (train.hogwild, train.thread_updates). Works with -n 1, and with local-sgd, easgd and "
       "parallel-sgd.",
       "gradients are sparse, so that threads seldom update the same element",
       "`thread_updates`, `touched_share`, `mean_delay`, `largest_delay`, `retries`; bytes within a rank: 0",
       "explanation/exchanges.md#threads-without-locks"},
      {"--optimizer NAME",
       "lars and lamb scale the rate of each tensor for large batches, also if a tensor is divided over "
       "ranks. sgd takes Nesterov's momentum (optimizer.nesterov). With any optimizer: no "
       "decay of biases and norms (optimizer.exempt_vectors), an average of the weights "
       "(optimizer.ema_decay), and a rate that grows with the batch (schedule.scale).",
       "the batch is large, because many ranks share it", "", "explanation/optimizers.md"},
      {"starling lbfgs",
       "Sandblaster L-BFGS: a coordinator sends scalars, the vectors stay on the ranks, and samples are "
       "computed in small portions with backup copies of the slowest.",
       "the loss is convex and its minimum is wanted exactly",
       "`instructions`, `scalar_bytes`, `portion_bytes`, `vector_bytes`, `portions`, `copies`",
       "explanation/sandblaster.md"},
      {"starling factorize",
       "A matrix is factorized over the ranks: blocks of one factor rotate, or are on parameter servers.",
       "the data are a large matrix with few known entries", "`train_rmse`, `test_rmse`, `bytes_sent`",
       "explanation/factorization.md"},
      {"starling compress",
       "Trained weights are pruned, clustered and Huffman-coded, and trained again (Deep Compression).",
       "weights must be small in a file", "`ratio`, `file_bytes`", "explanation/compressed-weights.md"},
  };
}

std::vector<StrategyRow> all_rows() {
  static const std::string codecs =
      "Gradients, or with local-sgd the differences of weights, are compressed: " + codec_list(false, false) +
      "; in stacks: " + codec_stacks(false, ", ") + ".";
  static const std::string weight_codecs =
      "The weights that a server sends are compressed: " + codec_list(true, false) +
      "; in stacks: " + codec_stacks(true, ", ") + ".";
  std::vector<StrategyRow> rows;
  for (const ExchangeTraits& e : kExchanges)
    rows.push_back({std::string(e.name), e.summary, e.use_when, e.statistics, e.page, &e});
  const std::vector<StrategyRow> others = {
      {"--codec NAME", codecs, "the network is slow",
       "`message_bytes`, `compression`, `message_balance`, `by_reduce_scatter`, `residual_norm`; servers: "
       "`push_message_bytes`, `push_compression`",
       "reference/codecs.md"},
      {"--pull-codec NAME", weight_codecs, "workers pull over a slow network",
       "`pull_message_bytes`, `pull_compression`", "reference/codecs.md"},
      {"--shard WHAT",
       "ZeRO 1, 2 and 3: each rank holds a part of the optimizer states, also of the gradients, or also of "
       "the parameters. In ZeRO 1 and 2, --codec compresses the gradients.",
       "optimizer states do not fit each rank",
       "`held_bytes` = `formula_bytes`, `traffic_elements` = 2 (stage 3: 3) |W| (p−1)/p; with --codec also "
       "`message_bytes`, `compression`, `message_balance`, `residual_norm`, `codec_bytes`",
       "explanation/zero.md"},
      {"--mesh stage=S",
       "Pipeline: each rank holds some layers, and micro-batches pass through them (--schedule, "
       "--micro-batches). With replica=R there are several pipelines with any exchange between them. "
       "pipeline.activations compresses what passes a cut (int8, calibrated-int8).",
       "the states of all layers do not fit one rank", "`bubble`, `bubble_planned`",
       "explanation/pipeline.md"},
      {"--mesh tensor=T",
       "Tensor parallelism: each layer of a replica is sharded over T ranks. With replica=R, all exchanges "
       "but async-easgd and ad-psgd work between replicas. Codecs do not.",
       "single layers are large and ranks share a host",
       "`layer_elements` = `layer_formula` = 8 b s h (t−1)/t per transformer layer, `held_parameters`",
       "explanation/tensor.md"},
      {"--hybrid auto|LAYERS",
       "Fully connected layers are model-parallel and all other layers are data-parallel, over the same "
       "ranks.",
       "large fully connected layers follow convolutions",
       "`model_parallel/<layer>`, `data_parallel_bytes` = 2 (p−1)/p |W| of the other layers",
       "explanation/tensor.md#hybrid"},
  };
  rows.insert(rows.end(), others.begin(), others.end());
  const std::vector<StrategyRow> last = rows_of_threads_optimizers_and_commands();
  rows.insert(rows.end(), last.begin(), last.end());
  return rows;
}

}  // namespace

bool ExchangeTraits::reads(std::string_view key) const {
  return find_word(keys, key).has_value();
}

std::span<const ExchangeTraits> exchange_table() {
  return kExchanges;
}

std::string_view exchange_names() {
  static const std::string kNames = joined_names();
  return kNames;
}

const ExchangeTraits& exchange_traits(std::string_view name) {
  for (const ExchangeTraits& exchange : kExchanges) {
    if (exchange.name == name) return exchange;
  }
  throw ConfigError("exchange.name",
                    fmt::format("\"{}\" is unknown: `starling strategies` lists the exchanges", name));
}

const ExchangeTraits& exchange_traits(const RunSpec& spec) {
  if (const AddedExchange* added = find_added_exchange(spec.extensions.get(), spec.exchange.name))
    return added->traits;
  return exchange_traits(spec.exchange.name);
}

std::vector<const ExchangeTraits*> exchanges_of(const RunSpec& spec) {
  std::vector<const ExchangeTraits*> all;
  for (const ExchangeTraits& exchange : kExchanges) all.push_back(&exchange);
  if (spec.extensions == nullptr) return all;
  for (const auto& row : spec.extensions->exchanges()) all.push_back(&row->traits);
  return all;
}

std::string names_of_exchanges(const RunSpec& spec, const std::function<bool(const ExchangeTraits&)>& has) {
  std::string names;
  for (const ExchangeTraits* exchange : exchanges_of(spec)) {
    if (!has(*exchange)) continue;
    if (!names.empty()) names += ", ";
    names += exchange->name;
  }
  return names;
}

std::vector<ConsistencyRow> consistency_rows(const ExchangeTraits& exchange) {
  constexpr std::string_view kEachStep = "all ranks finish each step together";
  const std::string_view nobody = exchange.reads("warm_start")
                                      ? "no rank waits for a step of another rank, except in a warm start"
                                      : "no rank waits for a step of another rank";
  const auto row = [&](std::string_view mode, std::string_view kind, std::string_view waits, int line) {
    const bool by_staleness = exchange.lockstep == Lockstep::kByStaleness;
    const std::string name =
        by_staleness ? fmt::format("{} --staleness {}", exchange.name, mode) : std::string(exchange.name);
    return ConsistencyRow{name,
                          kind,
                          waits,
                          line_of(exchange.assumes, line),
                          line_of(exchange.guarantees, line),
                          exchange.one_process_update && kind == "synchronous",
                          &exchange};
  };
  switch (exchange.lockstep) {
    case Lockstep::kEveryStep:
      return {row("", "synchronous", kEachStep, 0)};
    case Lockstep::kRounds:
      return {row("", "bounded", "all ranks meet after each round of steps", 0)};
    case Lockstep::kByStaleness:
      return {row("0", "synchronous", kEachStep, 0),
              row("s", "bounded", "a read waits for workers that are more than s steps behind", 1),
              row("inf", "asynchronous", nobody, 2)};
    case Lockstep::kNever:
      break;
  }
  if (exchange.neighbors) return {row("", "bounded", "each step waits for the neighbors of the rank", 0)};
  return {row("", "asynchronous", nobody, 0)};
}

bool in_lockstep(const RunSpec& spec) {
  const Lockstep lockstep = exchange_traits(spec).lockstep;
  return lockstep == Lockstep::kEveryStep ||
         (lockstep == Lockstep::kByStaleness && spec.exchange.staleness == "0");
}

bool equals_one_process(const RunSpec& spec) {
  const ExchangeTraits& exchange = exchange_traits(spec);
  return exchange.one_process_update && in_lockstep(spec) && spec.exchange.codec == "none" &&
         spec.train.threads_mode != ThreadsMode::kHogwild &&
         !(exchange.reads("backup") && spec.exchange.backup > 0);
}

std::span<const StrategyRow> strategy_rows() {
  static const std::vector<StrategyRow> kRows = all_rows();
  return kRows;
}

}  // namespace starling
