// Guesses the kind of data from the files of a folder, for a message about a source without a kind.
#pragma once

#include <string>

namespace starling {

// Returns "idx:FOLDER" or "cifar-bin:FOLDER" if the folder holds files of this kind. Returns an empty text
// for any other path. Reads names only.
std::string source_of_folder(const std::string& folder);

}  // namespace starling
