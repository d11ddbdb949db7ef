// Checkpoints of both forms of factorization. Each rank stores its rows of W. In the rotation a rank also
// stores its block of H. With tables, rank 0 stores the whole of H.
#pragma once

#include <cstdint>
#include <string>

#include "starling/factor/factorize.h"
#include "starling/factor/rating_stripe.h"
#include "starling/job/job_checkpoint.h"

namespace starling {

// The two forms of factorization.
enum class FactorForm { kRotation, kTables };

// FactorCheckpoint writes and reads the factors of a run at the end of epochs.
template <typename T>
class FactorCheckpoint {
 public:
  // options and parts must outlive this object. stripe: the entries of this rank, whose hash the checkpoint
  // has. Collective. Errors: CommError.
  FactorCheckpoint(const FactorizeOptions& options, const FactorizeParts& parts, FactorForm form,
                   const RatingStripe& stripe);

  // Fills the factors from the checkpoint of the folder, of any number of ranks. Returns the number of epochs
  // that it has, or 0 if there is no checkpoint. Each part is read into memory as a whole, which the budget
  // does not count. Collective. Errors: as JobCheckpoint::find() and read().
  // progress: of each row of this rank, or empty if a run has none (row_priority.h). May be null.
  int64_t resume(Factors<T>& factors, Counted<double>* progress = nullptr);
  // Returns whether an epoch ends with a checkpoint. The last epoch does.
  bool is_due(int64_t epoch) const;
  // Writes the factors after `epoch` epochs. Does nothing without a folder. For the time of the call it holds
  // two copies of what this rank writes, which the budget does not count. Collective. Errors: as
  // JobCheckpoint::save().
  void save(int64_t epoch, const Factors<T>& factors, std::span<const double> progress = {});
  // Returns whether some rank was asked to stop. Collective.
  bool stop_asked() const;

 private:
  const FactorizeOptions& options_;
  const FactorizeParts& parts_;
  const FactorForm form_;
  JobCheckpoint checkpoint_;
};

}  // namespace starling
