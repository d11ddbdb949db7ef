// Two notations of Slurm's environment.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace starling {

// The first host of a node list: "gpu[07-12,20],login" → "gpu07". Empty if the list is malformed.
std::string first_slurm_host(std::string_view node_list);

// Tasks of each node: "2(x3),1" → {2, 2, 2, 1}. Empty if malformed or of more than 100,000 nodes.
std::vector<int> slurm_tasks_per_node(std::string_view text);

}  // namespace starling
