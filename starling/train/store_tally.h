// StoreTally: a Tally through the job's store, for runs whose ranks do not wait for each other and may be lost one by one:
// each rank puts its numbers there, and the lowest rank that is left collects what has come. No two ranks ever have to agree.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "starling/net/store.h"
#include "starling/train/tally.h"

namespace starling {

class StoreTally final : public Tally {
 public:
  // rank of `ranks` in the job: the loss of rank r is known by lost_key(r). lead: called once when this rank finds that it
  // has to lead. timeout: how long the leader waits for the numbers of a rank that lives. The store outlives this.
  StoreTally(Store& store, int rank, int ranks, std::chrono::milliseconds timeout,
             std::function<void()> lead);

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  bool leads() const override { return leads_; }
  std::vector<std::vector<double>> gather(const std::string& what, const std::vector<double>& own) override;
  std::vector<std::vector<double>> gather_last(const std::vector<double>& own) override;
  void reported() override;

 private:
  std::string key(const std::string& what, int rank) const;
  bool is_lost(int rank);
  // Whether every lower rank is lost; takes the lead then.
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
