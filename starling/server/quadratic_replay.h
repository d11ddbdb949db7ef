// For tests: the distributed problem f_k(x) = ½‖A_k x − b_k‖², and a naive replay of the events that a
// parameter server recorded. The replay shares no code with the server. It computes element by element, in
// the order of the equations.
#pragma once

#include <cmath>
#include <cstddef>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "starling/server/server_table_stats.h"

namespace starling {

using Values = std::vector<double>;

class Quadratic {
 public:
  Quadratic(int workers, size_t dimension) : n_(dimension) {
    std::mt19937 random(17);
    std::normal_distribution<double> normal;
    for (int k = 0; k < workers; ++k) {
      a_.emplace_back(n_ * n_);
      b_.emplace_back(n_);
      for (double& x : a_.back()) x = normal(random) / std::sqrt(static_cast<double>(n_));
      for (double& x : b_.back()) x = normal(random);
    }
    for (size_t i = 0; i < n_; ++i) start_.push_back(normal(random));
  }
  size_t dimension() const { return n_; }
  const Values& start() const { return start_; }
  const Values& a(int k) const { return a_[k]; }  // row by row
  const Values& b(int k) const { return b_[k]; }
  // Returns A_kᵀ (A_k x − b_k).
  Values gradient(int k, const Values& x) const {
    Values g(n_, 0.0);
    for (size_t row = 0; row < n_; ++row) {
      double residual = -b_[k][row];
      for (size_t i = 0; i < n_; ++i) residual += a_[k][row * n_ + i] * x[i];
      for (size_t i = 0; i < n_; ++i) g[i] += a_[k][row * n_ + i] * residual;
    }
    return g;
  }

 private:
  size_t n_;
  std::vector<Values> a_, b_;
  Values start_;
};

// The update rule of one element: "sgd" with momentum 0.9, or "adagrad".
struct NaiveRule {
  std::string name;
  double state = 0;
  void apply(double& x, double g, double lr) {
    if (name == "adagrad") {
      state += g * g;
      x -= lr * g / (std::sqrt(state) + 1e-8);
    } else {
      state = 0.9 * state - lr * g;
      x += state;
    }
  }
};

struct ReplayOptions {
  int workers = 4;
  std::string rule = "sgd";
  double lr = 0.1;
  Values lambda;  // empty: 1 / (number of workers that are not lost)
  bool weight_by_staleness = false;
  // Whether a read that is in no log came from the worker's cache. Such a read is the worker's last view
  // minus its own gradient, scaled.
  bool client_cache = false;
  int steps_a_push = 1;       // downpour: gradients that are summed while the replica continues alone
  std::vector<int> shard_of;  // of each element of x
  std::vector<std::vector<bool>> owned;  // by worker and element; empty: a worker owns all elements
};

class Replay {
 public:
  Replay(const Quadratic& problem, const ReplayOptions& options)
      : problem_(problem),
        options_(options),
        x_(problem.start()),
        rules_(x_.size(), NaiveRule{options.rule}),
        read_of_(options.workers) {}

  // Replays the logs of the shards, each in its own order. An event is replayed when what it needs has
  // happened. Returns false if no such order exists.
  bool run(const std::vector<std::vector<ServerTableEvent>>& logs) {
    std::vector<size_t> next(logs.size(), 0);
    updates_.assign(options_.workers, std::vector<int64_t>(x_.size(), 0));
    held_.assign(logs.size(), {});
    for (size_t s = 0; s < logs.size(); ++s) {
      for (const ServerTableEvent& e : logs[s]) {
        if (e.action == ServerTableAction::kRead) answered_.insert({{s, e.worker}, e.clock});
      }
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t s = 0; s < logs.size(); ++s) {
        while (next[s] < logs[s].size() && carry_out(static_cast<int>(s), logs[s][next[s]])) {
          ++next[s];
          moved = true;
        }
      }
    }
    for (size_t s = 0; s < logs.size(); ++s) {
      if (next[s] != logs[s].size()) return false;
    }
    return true;
  }
  const Values& x() const { return x_; }

 private:
  // What a worker saw at one of its clocks, and how often other workers had then updated each element.
  struct View {
    Values x;
    std::vector<bool> known;
    std::vector<int64_t> of_others;
  };

  bool owns(int worker, size_t i) const { return options_.owned.empty() || options_.owned[worker][i]; }

  // Returns how often workers other than `worker` have updated element i.
  int64_t updates_of_others(int worker, size_t i) const {
    int64_t sum = 0;
    for (int other = 0; other < options_.workers; ++other)
      if (other != worker) sum += updates_[other][i];
    return sum;
  }

  bool carry_out(int shard, const ServerTableEvent& e) {
    const int w = static_cast<int>(e.worker);
    switch (e.action) {
      case ServerTableAction::kRead: {
        View& view = view_of(w, e.clock);
        for (size_t i = 0; i < x_.size(); ++i) {
          if (options_.shard_of[i] != shard || !owns(w, i)) continue;
          view.x[i] = x_[i];
          view.known[i] = true;
          view.of_others[i] = updates_of_others(w, i);
        }
        return true;
      }
      case ServerTableAction::kPush:
        return push(shard, e);
      case ServerTableAction::kHold:
        if (!whole(w, e.clock)) return false;
        held_[shard][w] = pushed(w, read_of_[w][e.clock].x);
        return true;
      case ServerTableAction::kUpdate:
        update(shard);
        return true;
      case ServerTableAction::kRetire:
        lost_[shard] += static_cast<double>(e.value);
        return true;
      default:
        return true;
    }
  }

  Values pushed(int worker, Values x) const {
    Values sum(x.size(), 0.0);
    for (int step = 0; step < options_.steps_a_push; ++step) {
      const Values g = problem_.gradient(worker, x);
      for (size_t i = 0; i < x.size(); ++i) {
        sum[i] += g[i];
        x[i] -= options_.lr * g[i];
      }
    }
    return sum;
  }

  View& view_of(int worker, int64_t clock) {
    View& view = read_of_[worker][clock];
    if (view.x.empty())
      view = {Values(x_.size(), 0.0), std::vector<bool>(x_.size(), false),
              std::vector<int64_t>(x_.size(), 0)};
    return view;
  }

  // Fills in what no shard has sent at this clock.
  void take_from_cache(int worker, int64_t clock) {
    View& view = view_of(worker, clock);
    std::vector<size_t> cached;
    for (size_t i = 0; i < x_.size(); ++i) {
      const std::pair<int64_t, int64_t> asked{options_.shard_of[i], worker};
      if (owns(worker, i) && !view.known[i] && !answered_.contains({asked, clock})) cached.push_back(i);
    }
    if (cached.empty() || !whole(worker, clock - 1)) return;
    const View& before = read_of_[worker][clock - 1];
    const Values g = problem_.gradient(worker, before.x);
    const double lambda = options_.lambda.empty() ? 1.0 / options_.workers : options_.lambda[worker];
    for (const size_t i : cached) {
      view.x[i] = before.x[i] - options_.lr * lambda * g[i];
      view.known[i] = true;
      view.of_others[i] = before.of_others[i];
    }
  }

  bool whole(int worker, int64_t clock) {
    if (options_.client_cache && clock > 0) take_from_cache(worker, clock);
    const View& view = read_of_[worker][clock];
    if (view.x.empty()) return false;
    for (size_t i = 0; i < x_.size(); ++i) {
      if (owns(worker, i) && !view.known[i]) return false;
    }
    return true;
  }

  bool push(int shard, const ServerTableEvent& e) {
    const int w = static_cast<int>(e.worker);
    if (!whole(w, e.clock)) return false;
    const View& view = read_of_[w][e.clock];
    const Values g = pushed(w, view.x);
    const double lr = options_.lr * (options_.lambda.empty() ? 1.0 / (options_.workers - lost_[shard])
                                                             : options_.lambda[w]);
    for (size_t i = 0; i < x_.size(); ++i) {
      if (options_.shard_of[i] != shard || !owns(w, i)) continue;
      const auto tau = static_cast<double>(updates_of_others(w, i) - view.of_others[i]);
      rules_[i].apply(x_[i], g[i], options_.weight_by_staleness ? lr / (1.0 + tau) : lr);
      ++updates_[w][i];
    }
    return true;
  }

  void update(int shard) {
    for (size_t i = 0; i < x_.size(); ++i) {
      if (options_.shard_of[i] != shard) continue;
      double sum = 0;
      for (const auto& [w, g] : held_[shard]) sum += g[i];
      rules_[i].apply(x_[i], sum / static_cast<double>(held_[shard].size()), options_.lr);
    }
    held_[shard].clear();
  }

  const Quadratic& problem_;
  const ReplayOptions options_;
  Values x_;
  std::vector<NaiveRule> rules_;
  std::vector<std::map<int64_t, View>> read_of_;  // by worker, then clock
  std::vector<std::vector<int64_t>> updates_;     // by worker that pushed and element
  std::map<int, double> lost_;                    // by shard
  std::vector<std::map<int, Values>> held_;
  std::set<std::pair<std::pair<int64_t, int64_t>, int64_t>> answered_;  // reads: shard, worker, clock
};

}  // namespace starling
