// Parses two notations in the environment of Slurm.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace starling {

// Returns the first host of a node list: "gpu07" for "gpu[07-12,20],login". Returns an empty string if the
// list is empty or a bracket of its first name is malformed.
std::string first_slurm_host(std::string_view node_list);

// Returns the number of tasks of each node: {2, 2, 2, 1} for "2(x3),1". Returns an empty list if the text is
// malformed or has more than 100,000 nodes.
std::vector<int> slurm_tasks_per_node(std::string_view text);

}  // namespace starling
