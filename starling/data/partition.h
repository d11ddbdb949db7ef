// Partition: which samples belong to which rank where the ranks own their data (parallel SGD, ADMM, unequal data on purpose).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "starling/data/source.h"

namespace starling {

// kind:
//   iid           a random part, equal sizes
//   by-label      sorted by class and cut into equal parts: each rank sees few classes
//   dirichlet=A   of each class rank k gets a share drawn from Dirichlet(A): the smaller A, the less equal (Hsu et al.,
//                 arXiv 1909.06335); sizes differ; no rank stays without a sample
// labels: the class of each sample (not needed for iid: give zeros). The same on every rank: a function of the arguments.
// Returns the samples of each rank, every sample exactly once. Errors: ConfigError for an unknown kind or A <= 0, and when
// there are fewer samples than ranks.
std::vector<std::vector<int64_t>> partition_samples(const std::vector<int64_t>& labels, int ranks,
                                                    const std::string& kind, uint64_t seed);

// The class of every sample, read through the source. Errors: ConfigError for text, which has no classes.
std::vector<int64_t> labels_of(const Source& source);

// The samples `indices` of a source as a source of its own.
std::shared_ptr<const Source> subset_of(std::shared_ptr<const Source> source, std::vector<int64_t> indices);

// Samples held in memory, sample i being input[i], target[i].
std::shared_ptr<const Source> samples_in_memory(const SourceInfo& info, at::Tensor input, at::Tensor target);

}  // namespace starling
