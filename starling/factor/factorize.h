// Distributed matrix factorisation in two forms (docs/factorization.md):
//
//   rotation   DSGD (Gemulla, Nijkamp, Haas, Sismanis, KDD 2011), scheduled as in STRADS (Kim et al., EuroSys 2016): rank r owns the
//              r-th of p blocks of rows, of V's entries and of W. The p column blocks of H rotate: in sub-epoch s rank r holds block
//              (r + s) mod p and makes a pass over the entries of its rows in those columns; then the block goes on to rank r − 1. The
//              p blocks at work in a sub-epoch share neither a row nor a column, so the result is that of one process which works
//              through them in any order. No rank ever holds more than one block of H.
//   tables     Entries and rows of W as above; H is in the tables of a parameter server (server/table.h), whose staleness decides when
//              a read is answered. A clock is a pass over the k-th of p parts of a rank's entries: pull H, step on a copy, push what
//              changed. H ← H + Σ Δ. Each rank holds a copy of the whole of H.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/factor/factor_sgd.h"
#include "starling/server/client.h"

namespace starling {

struct FactorizeEpoch {
  int64_t epoch = 0;      // 1-based
  double train_rmse = 0;  // of the errors before each step; with tables of the reporting rank's rows
  double seconds = 0;     // of the epoch
};

struct FactorizeResult {
  double train_rmse = 0;           // with the final factors
  double test_rmse = -1;           // -1: nothing was kept for testing
  int64_t ratings = 0;             // trained on, over all ranks
  double seconds = 0;              // of all epochs
  std::vector<double> peak_bytes;  // held by each rank at most, as counted (memory_budget.h)
  double matrix_bytes = 0;         // all entries and both factors
  uint64_t bytes_sent = 0;         // of H, by all ranks
};

// What surrounds a rank's work. Everything outlives the call.
struct FactorizeParts {
  Group& group;  // the ranks that work
  const RatingSource& source;
  MemoryBudget& budget;
  const Clock& clock;
  std::function<void(const FactorizeEpoch&)> on_epoch;  // may be empty
};

// A rank's rows of W and, after the end, its block of H.
template <typename T>
struct Factors {
  FactorBlock<T> w;
  FactorBlock<T> h;
};

// Collective. T: float or double. Errors: Error(kMemory), Error(kNumeric) where the loss is not finite, DataError, CommError.
// `finish` gets this rank's factors at the end: in the rotation its row block and its column block, with tables its row block and
// the whole of H.
template <typename T>
FactorizeResult factorize_by_rotation(const FactorizeOptions& options, const FactorizeParts& parts,
                                      const std::function<void(const Factors<T>&)>& finish);

// As above; the servers run serve_shard (server/serve.h) with factor_table_options().
template <typename T>
FactorizeResult factorize_by_tables(const FactorizeOptions& options, const FactorizeParts& parts,
                                    Store& store, const Meeting& meeting,
                                    const std::function<void(const Factors<T>&, ServerClient<T>&)>& finish);

// The update rule with which servers add what workers push: H ← H + Δ of each. staleness: as in ServerOptions.
ServerOptions factor_table_options(int workers, std::optional<int64_t> staleness);

// H's numbers as the parameters that servers hold: one a column block.
Partitioning factor_partitioning(int64_t columns, int64_t factors, int ranks, size_t element_bytes,
                                 int servers);

}  // namespace starling
