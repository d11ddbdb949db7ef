// join_group: makes a rank of a test a rank of a group, whose ranks find each other through the test's store.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "starling/comm/bootstrap.h"

namespace starling {

// Joins the group of all ranks. It is a collective. The store must outlive the group.
inline std::unique_ptr<Group> join_group(Store& store, int rank, int size,
                                         std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  GroupSetup setup;
  setup.rank = rank;
  setup.size = size;
  setup.options.timeout = timeout;
  return make_group(store, setup);
}

// Joins a group of some ranks of `whole`, this rank among them. Several disjoint subsets may use one name.
inline std::unique_ptr<Group> join_subset(Store& store, const Group& whole, const std::string& name,
                                          const std::vector<int>& ranks) {
  GroupSetup setup;
  setup.rank = whole.rank();
  setup.size = whole.size();
  setup.options.timeout = std::chrono::seconds(60);
  return make_group(store, subset_of(setup, name, ranks));
}

}  // namespace starling
