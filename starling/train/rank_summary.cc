#include "starling/train/rank_summary.h"

#include <algorithm>
#include <stdexcept>

#include "starling/train/evaluate.h"

namespace starling {
namespace {

constexpr double RankSummary::* kFields[] = {
    &RankSummary::bytes_sent, &RankSummary::peak_rss_mb,    &RankSummary::step_bytes,
    &RankSummary::test_loss,  &RankSummary::test_samples,   &RankSummary::test_weight,
    &RankSummary::compute_s,  &RankSummary::exposed_comm_s, &RankSummary::data_wait_s};

}  // namespace

std::vector<double> RankSummary::numbers() const {
  std::vector<double> all;
  for (const auto field : kFields) all.push_back(this->*field);
  all.push_back(static_cast<double>(from_servers.size()));
  all.push_back(static_cast<double>(metrics.size()));
  for (const auto* list : {&from_servers, &metrics, &metric_weights})
    all.insert(all.end(), list->begin(), list->end());
  return all;
}

RankSummary RankSummary::of(const std::vector<double>& numbers) {
  RankSummary summary;
  size_t next = 0;
  for (const auto field : kFields) summary.*field = numbers.at(next++);
  const double servers = numbers.at(next++), metrics = numbers.at(next++);
  if (servers < 0 || metrics < 0 || servers + 2 * metrics != static_cast<double>(numbers.size() - next))
    throw std::out_of_range("the numbers of a rank's summary have another length");
  summary.from_servers.resize(static_cast<size_t>(servers));
  summary.metrics.resize(static_cast<size_t>(metrics));
  summary.metric_weights.resize(summary.metrics.size());
  for (auto* list : {&summary.from_servers, &summary.metrics, &summary.metric_weights}) {
    for (double& number : *list) number = numbers.at(next++);
  }
  return summary;
}

void add_up_bytes(const RankSummaries& all, RunResult& result) {
  double sent = 0, most = 0, ranks = 0;
  std::vector<double> by_servers;
  result.bytes_sent = 0;
  result.peak_rss_mb.clear();
  for (const auto& rank : all) {
    if (!rank) continue;
    ++ranks;
    result.bytes_sent += static_cast<uint64_t>(rank->bytes_sent);
    result.peak_rss_mb.push_back(rank->peak_rss_mb);
    sent += rank->step_bytes;
    most = std::max(most, rank->step_bytes);
    by_servers.resize(std::max(by_servers.size(), rank->from_servers.size()));
    for (size_t s = 0; s < rank->from_servers.size(); ++s) by_servers[s] += rank->from_servers[s];
  }
  for (const double bytes : by_servers) {
    result.bytes_sent += static_cast<uint64_t>(bytes);
    sent += bytes;
    most = std::max(most, bytes);
  }
  const double mean = sent / (ranks + static_cast<double>(by_servers.size()));
  result.strategy["step_bytes"] = sent;
  if (mean > 0) result.strategy["bytes_balance"] = most / mean;
}

void list_rank_times(const RankSummaries& all, int64_t ranks, RunResult& result) {
  const bool renumbered = static_cast<int64_t>(all.size()) < ranks;
  const std::vector<int>& lost = result.lost_ranks;
  result.rank_times.clear();
  int rank = 0;
  for (const auto& summary : all) {
    while (renumbered && std::find(lost.begin(), lost.end(), rank) != lost.end()) ++rank;
    if (summary)
      result.rank_times.push_back({rank, summary->compute_s, summary->exposed_comm_s, summary->data_wait_s});
    ++rank;
  }
}

EvalDone evaluation_of(const RankSummaries& all, const std::vector<Metric>& metrics) {
  EvalDone whole;
  double weight = 0;
  std::vector<Mean> means(metrics.size());
  for (const auto& rank : all) {
    if (!rank || rank->test_samples == 0) continue;
    whole.loss += rank->test_loss * rank->test_weight;
    weight += rank->test_weight;
    for (size_t m = 0; m < means.size(); ++m) {
      const double of_rank = rank->metric_weights[m];
      if (of_rank > 0) means[m].sum += rank->metrics[m] * of_rank;
      means[m].weight += of_rank;
    }
  }
  whole.loss = weight > 0 ? whole.loss / weight : 0;
  for (size_t m = 0; m < means.size(); ++m) put_metric(whole, metrics[m].name, means[m].value());
  return whole;
}

}  // namespace starling
