// The table of strategies: what each way of training in parallel is, and what it can do. The rows of the
// exchanges are in spec/exchanges.inc. Code asks for a trait and never compares the name of an exchange.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "starling/spec/run_spec.h"

namespace starling {

// When the ranks of a run wait for each other.
enum class Lockstep {
  kEveryStep,    // All ranks finish each step together.
  kRounds,       // All ranks synchronize after a number of steps.
  kByStaleness,  // exchange.staleness decides; 0 means every step.
  kNever,        // No rank waits for all others.
};

// What an exchange is and can do. A field that is false or empty means that the exchange does not have the
// property.
struct ExchangeTraits {
  std::string_view name = {};        // The word of exchange.name.
  std::string_view summary = {};     // One sentence for `starling strategies` and the manual.
  std::string_view use_when = {};    // Completes the sentence "Use it when ...".
  std::string_view step = {};        // One step: a formula, or a sentence.
  std::string_view bytes = {};       // Bytes that a rank sends. |W| is the size of the parameters.
  std::string_view statistics = {};  // What `result.strategy` reports. Names are between backticks.
  // What its theory rests on. If `lockstep` is kByStaleness, this text and the next one have three lines: for
  // exchange.staleness 0, for a bound, and for inf.
  std::string_view assumes = {};
  std::string_view guarantees = {};  // What holds in every run.
  std::string_view page = {};        // The page of the manual, relative to docs/.
  std::string_view keys = {};        // The keys of the table `exchange` that it reads, separated by spaces.
  Lockstep lockstep = Lockstep::kNever;  // When its ranks wait for each other.
  bool neighbors = false;                // With kNever: each step waits for the messages of its neighbors.
  bool servers = false;                  // Server processes hold the parameters.
  // The servers hold the center of elastic averaging. Each worker updates its own whole model and meets the
  // center at its own time.
  bool center = false;
  bool own_samples = false;          // Each sample belongs to one rank only.
  bool shuffles_samples = false;     // Samples move between ranks before training begins.
  bool one_process_update = false;   // If ranks are in lockstep, each update equals that of one process.
  bool one_host = false;             // All ranks must share memory.
  bool codec = false;                // exchange.codec is possible.
  bool momentum_correction = false;  // Codecs that can correct momentum do so (codec/momentum_correction.h).
  bool survives_loss = false;        // train.on_failure = "continue" is possible.
  bool batch_threads = false;        // train.threads_mode = "batch" is possible.
  bool sync_batch_norm = false;      // model.batch_norm = "sync" is possible.
  bool clip_norm = true;             // optimizer.clip_norm is possible.
  bool bf16 = true;                  // train.precision = "bf16" is possible.
  bool shards = false;               // train.shard and train.hybrid are possible.
  bool buckets = false;              // It reads train.bucket_mb, train.hash_every and optimizer.share.
  bool unequal_shares = false;       // data.share is possible: ranks may have unequal numbers of samples.
  // Each rank updates whole tensors from whole gradients, as optimizer.clip_value, lars and lamb need it.
  bool local_update = false;
  // train.threads_mode = "hogwild" is possible with several ranks: between rounds, each rank only updates its
  // own whole parameters, by ReplicaStrategy::update_replica().
  bool hogwild = false;
  // optimizer.ema_decay is possible: the agreed model is the mean of the weights that the ranks update.
  bool weight_average = false;
  bool directed = false;  // exchange.graph may be one-peer.
  // Pairs of ranks average at any time. So exchange.graph must be bipartite, and each rank must hold a whole
  // model.
  bool pairs = false;
  bool own_loop = false;  // A program's own loop and its own optimizer are possible.
  std::string_view recipe =
      "";                     // Settings that it brings as defaults, "key=value" between spaces (recipes.h).
  double momentum = -1;       // The momentum of its recipe; below 0 it takes that of the model's recipe.
  double block_momentum = 0;  // The momentum of its recipe between rounds, in place of that of each step.

  // Returns true if the exchange reads the key exchange.<key>.
  bool reads(std::string_view key) const;
};

// Returns all exchanges, the default first.
std::span<const ExchangeTraits> exchange_table();

// Returns the names of all exchanges, separated by spaces.
std::string_view exchange_names();

// Returns the traits of the exchange `name`. Throws ConfigError for an unknown name.
const ExchangeTraits& exchange_traits(std::string_view name);

// Returns the traits of the exchange that the run uses, which its program may have added (spec/extensions.h).
// Throws ConfigError for an unknown name.
const ExchangeTraits& exchange_traits(const RunSpec& spec);

// Returns the exchanges that the run can use: those of the table, then those that its program adds.
std::vector<const ExchangeTraits*> exchanges_of(const RunSpec& spec);

// Returns the names of those of them for which `has` is true, separated by commas, for messages.
std::string names_of_exchanges(const RunSpec& spec, const std::function<bool(const ExchangeTraits&)>& has);

// What a step knows of the steps of other ranks, in one mode of an exchange.
struct ConsistencyRow {
  std::string name;             // The name of the exchange, with `--staleness` if that decides.
  std::string_view kind;        // synchronous, bounded or asynchronous.
  std::string_view waits;       // When a rank waits, and for which ranks.
  std::string_view assumes;     // A line of ExchangeTraits::assumes.
  std::string_view guarantees;  // A line of ExchangeTraits::guarantees.
  bool one_process = false;     // Without a codec or backup workers, each update equals that of one process.
  const ExchangeTraits* exchange = nullptr;  // The exchange.
};

// Returns the modes of an exchange: three if exchange.staleness decides, otherwise one.
std::vector<ConsistencyRow> consistency_rows(const ExchangeTraits& exchange);

// Returns true if all ranks of the run finish each step together.
bool in_lockstep(const RunSpec& spec);

// Returns true if each update of the run equals the update that one process computes from the whole global
// batch. Codecs, backup workers and threads without locks change the update.
bool equals_one_process(const RunSpec& spec);

// One row of `starling strategies`.
struct StrategyRow {
  std::string name;                          // The name of an exchange, or the flag of another choice.
  std::string_view summary;                  // One sentence.
  std::string_view use_when;                 // Completes the sentence "Use it when ...".
  std::string_view statistics;               // Names are between backticks.
  std::string_view page;                     // The page of the manual, relative to docs/.
  const ExchangeTraits* exchange = nullptr;  // Null for a flag that is not an exchange.
};

// Returns the exchanges, followed by the choices that are combined with them: codecs, sharding, meshes.
std::span<const StrategyRow> strategy_rows();

}  // namespace starling
