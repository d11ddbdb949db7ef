// Checks that all ranks of a run have the same data set and the same options.
#pragma once

#include "starling/comm/group.h"
#include "starling/data/source_factory.h"
#include "starling/train/fit_options.h"

namespace starling {

// Compares the number of samples and the content of sample 0 of both data sets over the ranks. Ranks read
// different samples of one data set. A rank with another set would wait for steps that its peers do not take,
// or train on samples twice. Collective. Errors: ConfigError on every rank, which names `where`, the function
// that the program called, and the first rank that differs from rank 0.
void require_same_data(const DataSets& data, Group& group, const char* where);

// Compares the options over the ranks. The compared options are the names of the metrics, the settings, the
// groups, the blocks and the tensor plan. The function also compares whether there is a callback, an
// optimizer and a schedule. Functions are not compared. Collective. Errors: ConfigError on every rank, which
// names the first rank that differs from rank 0.
void require_same_options(const FitOptions& options, Group& group);

}  // namespace starling
