// Divides the samples of a data set among ranks that own their data (parallel SGD, ADMM, deliberately unequal
// data).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "starling/data/source.h"

namespace starling {

// Returns the samples of each rank. Every sample occurs exactly once. The kinds are:
//
//   iid           a random part; equal sizes
//   by-label      the samples are sorted by class and cut into equal parts: each rank sees few classes
//   dirichlet=A   of each class, rank k gets a share drawn from Dirichlet(A). The smaller A, the less equal
//                 the parts (Hsu et al., arXiv 1909.06335). Sizes differ, but every rank has at least one
//                 sample.
//
// `labels` holds the class of each sample, at least 0. iid does not use the values, so zeros will do. The
// result is a function of the arguments, and so equal on every rank. Errors: ConfigError for an unknown kind,
// for A <= 0, and if there are fewer samples than ranks.
std::vector<std::vector<int64_t>> partition_samples(const std::vector<int64_t>& labels, int ranks,
                                                    const std::string& kind, uint64_t seed);

// Returns the class of every sample, read through the source. The first target holds it, as one int64 per
// sample. Errors: ConfigError for text, which has no classes, for other targets, and for a negative class;
// those of Source::read().
std::vector<int64_t> labels_of(const Source& source);

// Returns a source of the samples `indices` of another source.
std::shared_ptr<const Source> subset_of(std::shared_ptr<const Source> source, std::vector<int64_t> indices);

// Returns a source of samples in memory. Sample i is row i of each tensor of `all`.
std::shared_ptr<const Source> samples_in_memory(const SourceInfo& info, Batch all);

}  // namespace starling
