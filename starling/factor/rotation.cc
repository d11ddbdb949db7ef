#include <algorithm>

#include "starling/comm/message_tags.h"
#include "starling/factor/factor_checkpoint.h"
#include "starling/factor/factor_report.h"
#include "starling/factor/factorize.h"
#include "starling/factor/rating_stripe.h"
#include "starling/factor/row_priority.h"

namespace starling {
namespace {

constexpr size_t kPieceBytes = 64 * 1024;

template <typename T>
class Rotation {
 public:
  Rotation(const FactorizeOptions& options, const FactorizeParts& parts)
      : options_(options),
        parts_(parts),
        rank_(parts.group.rank()),
        ranks_(parts.group.size()),
        stripe_(parts.source, ranks_, rank_, ranks_, options, parts.budget),
        factors_{{stripe_.rows(), stripe_.rows().count(), options.factors, parts.budget},
                 {part_of(parts.source.columns(), ranks_, rank_), widest(), options.factors, parts.budget}},
        priority_(options.row_share, factors_.w, parts.budget) {
    factors_.w.start(options.seed, 0, parts.source.mean());
    factors_.h.start(options.seed, 1, parts.source.mean());
  }

  FactorizeResult run() {
    FactorizeResult result;
    FactorCheckpoint<T> checkpoint(options_, parts_, FactorForm::kRotation, stripe_);
    result.resumed_from = result.epochs = checkpoint.resume(factors_, &priority_.progress());
    double lr = options_.lr;
    for (int64_t epoch = 0; epoch < options_.epochs && !result.interrupted;
         ++epoch, lr *= options_.lr_decay) {
      if (epoch < result.resumed_from) continue;
      const Nanoseconds start = parts_.clock.now();
      priority_.begin_epoch(options_.seed, epoch, factors_.w);
      int64_t steps = 0;
      const double squared = each_block([&](int block) {
        const auto entries = stripe_.training(block);
        const VisitOrder order(entries.size(), visit_key(options_.seed, epoch, rank_, block));
        const SgdPass pass = sgd_pass(entries, order, 0, entries.size(), lr, options_.l2, factors_.w,
                                      factors_.h, priority_.chosen());
        steps += pass.steps;
        return pass.squared;
      });
      priority_.end_epoch(factors_.w);
      row_updates_ += priority_.count();
      steps_ += steps;
      const double rmse = rmse_over(parts_.group, squared, steps);
      const double seconds = to_seconds(parts_.clock.now() - start);
      result.seconds += seconds;
      if (parts_.on_epoch) parts_.on_epoch({epoch + 1, rmse, seconds});
      result.epochs = epoch + 1;
      result.interrupted = checkpoint.stop_asked() && result.epochs < options_.epochs;
      if (result.interrupted || checkpoint.is_due(epoch + 1))
        checkpoint.save(epoch + 1, factors_, priority_.progress());
    }
    result.bytes_sent = static_cast<uint64_t>(sum_over(parts_.group, static_cast<double>(sent_)));
    result.row_updates = static_cast<int64_t>(sum_over(parts_.group, static_cast<double>(row_updates_)));
    result.steps = static_cast<int64_t>(sum_over(parts_.group, static_cast<double>(steps_)));
    measure(result);
    return result;
  }

  const Factors<T>& factors() const { return factors_; }

 private:
  int64_t widest() const { return (parts_.source.columns() + ranks_ - 1) / ranks_; }

  // Calls work(block) for each block of H in the order of the rotation. Returns the sum of its results. At
  // the end every rank holds its own block again.
  template <typename Work>
  double each_block(const Work& work) {
    double sum = 0;
    for (int s = 0; s < ranks_; ++s) {
      sum += work((rank_ + s) % ranks_);
      rotate((rank_ + s + 1) % ranks_);
    }
    return sum;
  }

  // Sends the block to the rank before this one and receives the next block into its memory. It moves one
  // piece after another, and each piece is sent before another takes its place.
  void rotate(int next_block) {
    if (ranks_ == 1) return;
    FactorBlock<T>& h = factors_.h;
    const Span next = part_of(parts_.source.columns(), ranks_, next_block);
    auto* bytes = reinterpret_cast<std::byte*>(h.values.data());
    const size_t out = h.size() * sizeof(T);
    const size_t in = static_cast<size_t>(next.count() * h.factors) * sizeof(T);
    for (size_t begin = 0; begin < std::max(in, out); begin += kPieceBytes) {
      if (begin < out)
        send(parts_.group, bytes + begin, std::min(kPieceBytes, out - begin), (rank_ + ranks_ - 1) % ranks_,
             kFactorBlockTag);
      if (begin < in)
        recv(parts_.group, bytes + begin, std::min(kPieceBytes, in - begin), (rank_ + 1) % ranks_,
             kFactorBlockTag);
    }
    sent_ += out;
    h.range = next;
  }

  void measure(FactorizeResult& result) {
    double test = 0;
    const double train = each_block([&](int block) {
      test += squared_error(stripe_.testing(block), factors_.w, factors_.h);
      return squared_error(stripe_.training(block), factors_.w, factors_.h);
    });
    add_report(result, options_, parts_, stripe_, train, test, sizeof(T));
  }

  const FactorizeOptions options_;
  const FactorizeParts& parts_;
  const int rank_, ranks_;
  const RatingStripe stripe_;
  Factors<T> factors_;
  RowPriority<T> priority_;
  uint64_t sent_ = 0;
  int64_t row_updates_ = 0, steps_ = 0;  // of this rank
};

}  // namespace

template <typename T>
FactorizeResult factorize_by_rotation(const FactorizeOptions& options, const FactorizeParts& parts,
                                      const std::function<void(const Factors<T>&)>& finish) {
  Rotation<T> rotation(options, parts);
  const FactorizeResult result = rotation.run();
  if (finish) finish(rotation.factors());
  return result;
}

template FactorizeResult factorize_by_rotation<float>(const FactorizeOptions&, const FactorizeParts&,
                                                      const std::function<void(const Factors<float>&)>&);
template FactorizeResult factorize_by_rotation<double>(const FactorizeOptions&, const FactorizeParts&,
                                                       const std::function<void(const Factors<double>&)>&);

}  // namespace starling
