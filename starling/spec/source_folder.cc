#include "starling/spec/source_folder.h"

#include <filesystem>
#include <system_error>

namespace starling {

std::string source_of_folder(const std::string& folder) {
  std::error_code failed;
  for (std::filesystem::directory_iterator file(folder, failed), end; !failed && file != end;
       file.increment(failed)) {
    const std::string name = file->path().filename().string();
    if (name.starts_with("train-images") && name.find("idx3-ubyte") != std::string::npos)
      return "idx:" + folder;
    if (name == "data_batch_1.bin" || name == "train.bin") return "cifar-bin:" + folder;
  }
  return "";
}

}  // namespace starling
