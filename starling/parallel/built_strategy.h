// BuiltStrategy: a strategy and what a run needs beside its six methods.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "starling/parallel/replica.h"
#include "starling/parallel/strategy.h"

namespace starling {

struct BuiltStrategy {
  std::unique_ptr<Strategy> strategy;
  Replica* evaluated = nullptr;  // shows the agreed model after strategy->consensus()
  std::function<std::map<std::string, double>()> fingerprint;  // collective
};

}  // namespace starling
