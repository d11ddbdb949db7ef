#include "starling/factor/factor_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "starling/base/error.h"
#include "starling/factor/factor_report.h"

namespace starling {
namespace {

// Without a folder, returns 0.
uint64_t hash_over_ranks(const FactorizeParts& parts, const RatingStripe& stripe) {
  if (parts.checkpoint.empty()) return 0;
  const uint64_t own = stripe.hash();
  std::vector<uint64_t> all(static_cast<size_t>(parts.group.size()));
  all_gather(parts.group, &own, all.data(), sizeof(own), DataType::kUint8);
  return std::accumulate(all.begin(), all.end(), uint64_t{0});
}

JobCheckpointOptions checkpoint_options_of(const FactorizeOptions& options, const FactorizeParts& parts,
                                           FactorForm form, const RatingStripe& stripe,
                                           size_t element_bytes) {
  const RatingSource& source = parts.source;
  return {.folder = parts.checkpoint,
          .job = "factorize",
          .problem = {{"form", form == FactorForm::kRotation ? "rotation" : "tables"},
                      {"ratings", fmt::format("{} of {} x {}, hash {:x}", source.count(), source.rows(),
                                              source.columns(), hash_over_ranks(parts, stripe))},
                      {"element bytes", std::to_string(element_bytes)},
                      {"factors", std::to_string(options.factors)},
                      {"lr", fmt::format("{}", options.lr)},
                      {"lr-decay", fmt::format("{}", options.lr_decay)},
                      {"l2", fmt::format("{}", options.l2)},
                      {"test-share", fmt::format("{}", options.test_share)},
                      {"priority", fmt::format("{}", options.row_share)},
                      {"seed", std::to_string(options.seed)}}};
}

// Copies the rows of a rank that a part has. values: of the part, whose rows are `has`. to: of the rank,
// whose rows are `range`. width: numbers per row.
template <typename T, typename To>
void take_rows(To& to, Span range, int64_t width, const std::vector<T>& values, Span has) {
  if (static_cast<int64_t>(values.size()) != has.count() * width)
    throw Error(ErrorCode::kCheckpoint,
                "an array of the checkpoint has a wrong length; remove the folder to start anew");
  const Span both{std::max(has.begin, range.begin), std::min(has.end, range.end)};
  if (both.begin >= both.end) return;
  std::copy_n(values.begin() + (both.begin - has.begin) * width, both.count() * width,
              to.begin() + (both.begin - range.begin) * width);
}

// Returns the progress of a part's rows. NaN has no place in the order of the priorities.
std::vector<double> progress_in(const CheckpointArrays& part) {
  std::vector<double> progress = part.get<double>("progress");
  if (!std::all_of(progress.begin(), progress.end(), [](double p) { return p >= 0; }))
    throw Error(
        ErrorCode::kCheckpoint,
        "the progress of a row in the checkpoint is negative or NaN; remove the folder to start anew");
  return progress;
}

bool overlap(Span a, Span b) {
  return a.begin < b.end && b.begin < a.end;
}

}  // namespace

template <typename T>
FactorCheckpoint<T>::FactorCheckpoint(const FactorizeOptions& options, const FactorizeParts& parts,
                                      FactorForm form, const RatingStripe& stripe)
    : options_(options),
      parts_(parts),
      form_(form),
      checkpoint_(parts.group, checkpoint_options_of(options, parts, form, stripe, sizeof(T))) {}

template <typename T>
int64_t FactorCheckpoint<T>::resume(Factors<T>& factors, Counted<double>* progress) {
  const auto found = checkpoint_.find();
  if (!found) return 0;
  agree_on_success(parts_.group, [&] {
    for (int rank = 0; rank < found->ranks; ++rank) {
      const Span rows = part_of(parts_.source.rows(), found->ranks, rank);
      const Span columns = form_ == FactorForm::kRotation
                               ? part_of(parts_.source.columns(), found->ranks, rank)
                               : Span{0, rank == 0 ? parts_.source.columns() : 0};
      const bool h = overlap(columns, factors.h.range);
      if (!h && !overlap(rows, factors.w.range)) continue;
      const CheckpointArrays part = checkpoint_.read(*found, rank);
      take_rows(factors.w.values, factors.w.range, factors.w.factors, part.get<T>("W"), rows);
      if (h) take_rows(factors.h.values, factors.h.range, factors.h.factors, part.get<T>("H"), columns);
      if (progress != nullptr && !progress->empty())
        take_rows(*progress, factors.w.range, 1, progress_in(part), rows);
    }
  });
  if (parts_.on_resumed && parts_.group.rank() == 0) parts_.on_resumed(found->step);
  return found->step;
}

template <typename T>
bool FactorCheckpoint<T>::is_due(int64_t epoch) const {
  if (parts_.checkpoint.empty()) return false;
  return epoch == options_.epochs || (parts_.checkpoint_every > 0 && epoch % parts_.checkpoint_every == 0);
}

template <typename T>
void FactorCheckpoint<T>::save(int64_t epoch, const Factors<T>& factors, std::span<const double> progress) {
  if (parts_.checkpoint.empty()) return;
  CheckpointArrays arrays;
  arrays.put<T>("W", {factors.w.values.data(), factors.w.size()});
  if (form_ == FactorForm::kRotation || parts_.group.rank() == 0)
    arrays.put<T>("H", {factors.h.values.data(), factors.h.size()});
  if (!progress.empty()) arrays.put<double>("progress", {progress.data(), progress.size()});
  checkpoint_.save(epoch, arrays, {});
}

template <typename T>
bool FactorCheckpoint<T>::stop_asked() const {
  return sum_over(parts_.group, parts_.stop != nullptr && parts_.stop->load() ? 1 : 0) > 0;
}

template class FactorCheckpoint<float>;
template class FactorCheckpoint<double>;

}  // namespace starling
