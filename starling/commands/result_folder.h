// The folders that ranks write their results into, such as that of `topics --save-topics`.
#pragma once

#include <string>

#include "starling/comm/group.h"

namespace starling {

// Refuses a folder that cannot be made, before any rank starts. Changes nothing. An empty name is no folder
// and passes. Errors: ConfigError with `flag`, such as "--save-topics", if the name is that of a file, or if
// the folder around it does not exist.
void check_result_folder(const std::string& flag, const std::string& folder);

// Makes the folder, unless it exists, and shows that it takes files of all ranks and is one folder for all
// hosts. The folder around it must exist. An empty name is no folder, and the function returns at once.
// Collective. Errors: Error(kConfig) on all ranks, with `flag` and the reason of the system.
void make_result_folder(Group& group, const std::string& flag, const std::string& folder);

}  // namespace starling
