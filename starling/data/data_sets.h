// The data sets of a run.
#pragma once

#include <memory>

#include "starling/data/source.h"

namespace starling {

// The training set and the test set of a run.
struct DataSets {
  // The training set.
  std::shared_ptr<const Source> train;
  // The test set; null if the source has no test part.
  std::shared_ptr<const Source> test;
};

}  // namespace starling
