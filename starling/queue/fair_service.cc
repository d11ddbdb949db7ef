#include "starling/queue/fair_service.h"

#include <algorithm>
#include <cstddef>

namespace starling {

double jain_index(const std::vector<double>& values) {
  double sum = 0, squares = 0;
  for (const double value : values) {
    sum += value;
    squares += value * value;
  }
  return squares > 0 ? sum * sum / (static_cast<double>(values.size()) * squares) : 1;
}

std::vector<double> divide_fairly(double amount, const std::vector<double>& shares,
                                  const std::vector<double>& caps) {
  std::vector<double> given(shares.size(), 0);
  std::vector<bool> full(shares.size(), false);
  for (size_t round = 0; round < shares.size() && amount > 0; ++round) {
    double open = 0;
    for (size_t i = 0; i < shares.size(); ++i)
      if (!full[i]) open += shares[i];
    if (open <= 0) break;
    const double per_share = amount / open;
    bool capped = false;
    for (size_t i = 0; i < shares.size(); ++i) {
      if (full[i] || caps[i] > per_share * shares[i]) continue;
      given[i] = caps[i];
      amount -= caps[i];
      full[i] = capped = true;
    }
    if (capped) continue;
    for (size_t i = 0; i < shares.size(); ++i)
      if (!full[i]) given[i] = per_share * shares[i];
    break;
  }
  return given;
}

std::map<std::string, double> fluid_service(const std::vector<FluidJob>& jobs,
                                            const std::map<std::string, double>& shares, double slots,
                                            double end_s, double step_s) {
  std::vector<const FluidJob*> order;
  for (const FluidJob& job : jobs) order.push_back(&job);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto* a, const auto* b) { return a->submitted_s < b->submitted_s; });
  std::vector<std::string> names;
  std::vector<double> weights;
  for (const auto& [name, share] : shares) {
    names.push_back(name);
    weights.push_back(share);
  }
  std::vector<double> left(order.size());
  for (size_t j = 0; j < order.size(); ++j) left[j] = order[j]->slots * order[j]->run_s;
  std::vector<double> service(names.size(), 0);
  for (double now = 0; now < end_s; now += step_s) {
    const double length = std::min(step_s, end_s - now);
    std::vector<double> caps(names.size(), 0);
    std::vector<std::vector<size_t>> active(names.size());
    for (size_t j = 0; j < order.size() && order[j]->submitted_s <= now; ++j) {
      if (left[j] <= 0) continue;
      const size_t user =
          static_cast<size_t>(std::find(names.begin(), names.end(), order[j]->user) - names.begin());
      if (user == names.size()) continue;
      caps[user] += std::min(order[j]->slots, left[j] / length);
      active[user].push_back(j);
    }
    const std::vector<double> rates = divide_fairly(slots, weights, caps);
    for (size_t user = 0; user < names.size(); ++user) {
      double work = rates[user] * length;
      service[user] += work;
      for (const size_t j : active[user]) {
        const double part = std::min({work, left[j], order[j]->slots * length});
        left[j] -= part;
        work -= part;
      }
    }
  }
  std::map<std::string, double> result;
  for (size_t user = 0; user < names.size(); ++user) result[names[user]] = service[user];
  return result;
}

}  // namespace starling
