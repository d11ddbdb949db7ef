// Distributed matrix factorization in two forms (docs/explanation/factorization.md).
//
// Rotation: DSGD (Gemulla, Nijkamp, Haas, Sismanis, KDD 2011), scheduled as in STRADS (Kim et al., EuroSys
// 2016). Rank r owns the r-th of p blocks of rows, with V's entries and W's rows in this block. The p column
// blocks of H rotate. In sub-epoch s rank r holds block (r + s) mod p and makes a pass over the entries of
// its rows in these columns. Then it sends the block to rank r − 1. The p blocks of a sub-epoch share neither
// a row nor a column. The result is therefore that of one process that visits the blocks in any order. No
// rank ever holds more than one block of H. With a row share below 1 an epoch visits only rows that are
// chosen by their expected progress (row_priority.h).
//
// Tables: entries and rows of W are divided as above. H is in the tables of a parameter server
// (server/server_table.h), whose staleness decides when a read is answered. A clock is a pass over the k-th
// of p parts of a rank's entries. The rank pulls H, makes its steps on a copy, and pushes the change: H ← H +
// Σ Δ. Each rank holds copies of the whole of H.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/factor/factor_sgd.h"
#include "starling/server/client.h"

namespace starling {

// What is reported after each epoch.
struct FactorizeEpoch {
  int64_t epoch = 0;      // 1-based
  double train_rmse = 0;  // of the errors before each step; with tables, of the reporting rank's rows only;
                          // with a row share below 1, of the chosen rows only
  double seconds = 0;     // duration of the epoch
};

// What a factorization reports at its end.
struct FactorizeResult {
  double train_rmse = 0;           // with the final factors
  double test_rmse = -1;           // -1: no entries were kept for testing
  int64_t ratings = 0;             // entries that were trained on, over all ranks
  int64_t row_updates = 0;         // rows of W that the rotation updated, summed over its epochs
  int64_t steps = 0;               // steps on entries that the rotation made
  double seconds = 0;              // duration of all epochs
  std::vector<double> peak_bytes;  // the most that each rank held, as counted (memory_budget.h)
  double matrix_bytes = 0;         // bytes of all entries and both factors
  uint64_t bytes_sent = 0;         // bytes of H that all ranks sent
  int64_t epochs = 0;              // that the factors have, with those of the checkpoint
  int64_t resumed_from = 0;        // the epochs that the checkpoint had; 0: none
  bool interrupted = false;        // some rank was asked to stop
};

// The environment of a rank's work. All references must outlive the call.
struct FactorizeParts {
  Group& group;  // the ranks that work
  const RatingSource& source;
  MemoryBudget& budget;
  const Clock& clock;
  // Receives each epoch. May be empty.
  std::function<void(const FactorizeEpoch&)> on_epoch;
  std::string checkpoint = {};   // folder of the checkpoint; empty: none
  int64_t checkpoint_every = 1;  // epochs; 0: at the end only
  // Set on some rank: the ranks write a checkpoint and end. The rotation looks after each epoch, and tables
  // only after an epoch that writes a checkpoint. May be null.
  const std::atomic<bool>* stop = nullptr;
  // Receives the number of epochs that the checkpoint has, on rank 0. May be empty.
  std::function<void(int64_t)> on_resumed = {};
};

// A rank's rows of W and, after the end, its block of H.
template <typename T>
struct Factors {
  FactorBlock<T> w;
  FactorBlock<T> h;
};

// Factorizes by rotation. Collective. T: float or double.
//
// finish receives this rank's factors at the end: its row block and its column block.
//
// Errors: Error(kMemory) if the budget is exceeded; Error(kNumeric) if the loss is not finite; DataError;
// CommError; those of JobCheckpoint.
template <typename T>
FactorizeResult factorize_by_rotation(const FactorizeOptions& options, const FactorizeParts& parts,
                                      const std::function<void(const Factors<T>&)>& finish);

// Factorizes with H on servers, which execute serve_shard (server/serve.h) with factor_table_options().
// Collective over the workers. `finish` receives this rank's row block with the whole of H, and the client of
// the servers. T and the errors are those of factorize_by_rotation().
template <typename T>
FactorizeResult factorize_by_tables(const FactorizeOptions& options, const FactorizeParts& parts,
                                    Store& store, const ServerRendezvous& rendezvous,
                                    const std::function<void(const Factors<T>&, ServerClient<T>&)>& finish);

// Returns the options of servers that add what workers push: H ← H + Δ for each push. staleness: as in
// ServerOptions.
ServerOptions factor_table_options(int workers, std::optional<int64_t> staleness);

// Returns the partitions of H on the servers. Each column block is one parameter.
Partitioning factor_partitioning(int64_t columns, int64_t factors, int ranks, size_t element_bytes,
                                 int servers);

}  // namespace starling
