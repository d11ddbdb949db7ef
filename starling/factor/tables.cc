#include <optional>

#include "starling/factor/factor_checkpoint.h"
#include "starling/factor/factor_report.h"
#include "starling/factor/factorize.h"
#include "starling/factor/rating_stripe.h"

namespace starling {
namespace {

std::vector<size_t> block_sizes(int64_t columns, int64_t factors, int ranks) {
  std::vector<size_t> sizes;
  for (int b = 0; b < ranks; ++b)
    sizes.push_back(static_cast<size_t>(part_of(columns, ranks, b).count() * factors));
  return sizes;
}

ClientLayout layout_of(const std::vector<size_t>& sizes) {
  ClientLayout layout;
  size_t offset = 0;
  for (const size_t size : sizes) {
    layout.offset.push_back(offset);
    offset += size;
  }
  return layout;
}

template <typename T>
class Tables {
 public:
  Tables(const FactorizeOptions& options, const FactorizeParts& parts, Store& store,
         const ServerRendezvous& rendezvous)
      : options_(options),
        parts_(parts),
        rank_(parts.group.rank()),
        ranks_(parts.group.size()),
        stripe_(parts.source, ranks_, rank_, 1, options, parts.budget),
        factors_{{stripe_.rows(), stripe_.rows().count(), options.factors, parts.budget},
                 {{0, parts.source.columns()}, parts.source.columns(), options.factors, parts.budget}},
        before_(factors_.h.values),
        checkpoint_(options_, parts, FactorForm::kTables, stripe_),
        client_(store, rendezvous, rank_,
                factor_partitioning(parts.source.columns(), options.factors, ranks_, sizeof(T),
                                    rendezvous.servers),
                layout_of(block_sizes(parts.source.columns(), options.factors, ranks_))) {
    parts.budget.take(before_.size() * sizeof(T));  // the memory of the client
    factors_.w.start(options.seed, 0, parts.source.mean());
    factors_.h.start(options.seed, 1, parts.source.mean());
    resumed_ = checkpoint_.resume(factors_);
    if (rank_ == 0) {
      client_.load(factors_.h.values.data(), {}, 0);
    } else {
      client_.expect_load();
    }
  }
  ~Tables() { parts_.budget.give(before_.size() * sizeof(T)); }
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;

  FactorizeResult run(const std::function<void(const Factors<T>&, ServerClient<T>&)>& finish) {
    FactorizeResult result;
    result.resumed_from = result.epochs = resumed_;
    double lr = options_.lr;
    for (int64_t epoch = 0; epoch < options_.epochs && !result.interrupted;
         ++epoch, lr *= options_.lr_decay) {
      if (epoch < resumed_) continue;
      const Nanoseconds start = parts_.clock.now();
      const double rmse =
          rmse_of(pass(epoch, lr), stripe_.training_count());  // of this rank, so that no rank waits here
      const double seconds = to_seconds(parts_.clock.now() - start);
      result.seconds += seconds;
      if (parts_.on_epoch) parts_.on_epoch({epoch + 1, rmse, seconds});
      result.epochs = epoch + 1;
      if (checkpoint_.is_due(epoch + 1)) {
        result.interrupted = checkpoint_.stop_asked() && result.epochs < options_.epochs;
        client_.snapshot(factors_.h.values.data());  // of the clocks of all workers
        checkpoint_.save(epoch + 1, factors_);
      }
    }
    client_.snapshot(factors_.h.values.data());
    result.bytes_sent =
        static_cast<uint64_t>(sum_over(parts_.group, static_cast<double>(client_.bytes_sent())));
    measure(result);
    if (finish) finish(factors_, client_);
    client_.goodbye();
    return result;
  }

 private:
  // Executes an epoch, which has as many clocks as there are ranks.
  double pass(int64_t epoch, double lr) {
    const auto entries = stripe_.training(0);
    const VisitOrder order(entries.size(), visit_key(options_.seed, epoch, rank_, 0));
    double squared = 0;
    for (int c = 0; c < ranks_; ++c) {
      client_.pull(before_.data());
      factors_.h.values = before_;
      const Span part = part_of(static_cast<int64_t>(entries.size()), ranks_, c);
      squared += sgd_pass(entries, order, static_cast<size_t>(part.begin), static_cast<size_t>(part.end), lr,
                          options_.l2, factors_.w, factors_.h)
                     .squared;
      // The servers subtract what they get, with step size ranks · 1/ranks. A push is therefore the negative
      // change.
      for (size_t i = 0; i < before_.size(); ++i) before_[i] -= factors_.h.values[i];
      client_.push(before_.data(), {.lr = static_cast<double>(ranks_), .loss = squared});
    }
    return squared;
  }

  void measure(FactorizeResult& result) {
    const double train = squared_error(stripe_.training(0), factors_.w, factors_.h);
    const double test = squared_error(stripe_.testing(0), factors_.w, factors_.h);
    add_report(result, options_, parts_, stripe_, train, test, sizeof(T));
  }

  const FactorizeOptions options_;
  const FactorizeParts& parts_;
  const int rank_, ranks_;
  const RatingStripe stripe_;
  Factors<T> factors_;
  Counted<T> before_;  // H as it was pulled; at the end of a pass, the negative change
  FactorCheckpoint<T> checkpoint_;
  int64_t resumed_ = 0;  // epochs that the checkpoint had
  ServerClient<T> client_;
};

}  // namespace

ServerOptions factor_table_options(int workers, std::optional<int64_t> staleness) {
  ServerOptions options;
  options.optimizer.name = "sgd";
  options.optimizer.momentum = 0;
  options.optimizer.weight_decay = 0;
  options.workers = workers;
  options.staleness = staleness;
  return options;
}

Partitioning factor_partitioning(int64_t columns, int64_t factors, int ranks, size_t element_bytes,
                                 int servers) {
  return make_partitioning(block_sizes(columns, factors, ranks), element_bytes, servers);
}

template <typename T>
FactorizeResult factorize_by_tables(const FactorizeOptions& options, const FactorizeParts& parts,
                                    Store& store, const ServerRendezvous& rendezvous,
                                    const std::function<void(const Factors<T>&, ServerClient<T>&)>& finish) {
  return Tables<T>(options, parts, store, rendezvous).run(finish);
}

template FactorizeResult factorize_by_tables<float>(
    const FactorizeOptions&, const FactorizeParts&, Store&, const ServerRendezvous&,
    const std::function<void(const Factors<float>&, ServerClient<float>&)>&);
template FactorizeResult factorize_by_tables<double>(
    const FactorizeOptions&, const FactorizeParts&, Store&, const ServerRendezvous&,
    const std::function<void(const Factors<double>&, ServerClient<double>&)>&);

}  // namespace starling
