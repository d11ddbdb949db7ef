// StoreGather is a RankGather through the job's store. It serves runs whose ranks do not wait for each other
// and may be lost one by one. Each rank puts its numbers into the store, and the lowest rank that is left
// collects them. Ranks never have to agree.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "starling/net/store/store.h"
#include "starling/train/rank_gather.h"

namespace starling {

class StoreGather final : public RankGather {
 public:
  // `rank` is this process's rank among the `ranks` of the job. The key lost_key(r) in the store says that
  // rank r is lost. Rank 0 leads at first. `lead` is called once on any other rank that has to lead. A rank
  // that collects waits up to `timeout` for all ranks that are not lost. TimeoutError then names the missing
  // rank. The store must outlive this object.
  StoreGather(Store& store, int rank, int ranks, std::chrono::milliseconds timeout,
              std::function<void()> lead);

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  bool leads() const override { return leads_; }
  std::vector<std::vector<double>> gather(const std::string& what, const std::vector<double>& own) override;
  std::vector<std::vector<double>> gather_all(const std::string& what,
                                              const std::vector<double>& own) override;
  std::vector<std::vector<double>> gather_last(const std::vector<double>& own) override;
  void reported() override;

 private:
  std::string key(const std::string& what, int rank) const;
  bool is_lost(int rank);
  // Returns true if every lower rank is lost. This rank then leads.
  bool must_lead();
  std::vector<std::vector<double>> collect(const std::string& what);

  Store& store_;
  const int rank_;
  const int ranks_;
  const std::chrono::milliseconds timeout_;
  const std::function<void()> lead_;
  bool leads_;
};

}  // namespace starling
