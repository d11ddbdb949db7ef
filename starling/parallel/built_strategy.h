// BuiltStrategy: a strategy and what a run needs beside its six methods.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "starling/parallel/replica.h"
#include "starling/parallel/strategy.h"

namespace starling {

struct BuiltStrategy {
  std::unique_ptr<Strategy> strategy;
  Replica* evaluated = nullptr;  // shows the agreed model after strategy->consensus()
  std::function<std::map<std::string, double>()> fingerprint;  // collective
  // Collective. Rank 0 writes what the ranks of its pipeline did in the last step into that file, the others give theirs.
  // Empty: no pipeline.
  std::function<void(const std::string& file)> write_timeline = {};
  int64_t parameters =
      0;  // of the whole model, where `evaluated` shows a part of it; 0: those of `evaluated`
  // Server modes: the workers that are lost, as far as this one knows; and: the servers do not wait for this one any more.
  std::function<std::set<int>()> lost = {};
  std::function<void()> leave = {};
  // Where survivors of a loss take the state over: this rank's, whole, without the others, also after a step that broke off.
  std::function<StrategyState()> own_state = {};
};

// Of a strategy S(args…) that has evaluated() and fingerprint().
template <typename S, typename... Args>
BuiltStrategy built(Args&&... args) {
  auto strategy = std::make_unique<S>(std::forward<Args>(args)...);
  BuiltStrategy result;
  result.evaluated = &strategy->evaluated();
  result.fingerprint = [s = strategy.get()] { return s->fingerprint(); };
  result.strategy = std::move(strategy);
  return result;
}

}  // namespace starling
