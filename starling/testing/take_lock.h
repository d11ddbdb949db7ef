// take_lock_elsewhere: makes a run of another host the holder of a folder's lock.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace starling {

// Writes the file of a holder into FOLDER/lock (job/folder_lock.h): process 1 on the host "elsewhere".
inline void take_lock_elsewhere(const std::string& folder) {
  std::filesystem::create_directories(folder + "/lock");
  std::ofstream(folder + "/lock/epoch-000010")
      << R"({"host":"elsewhere","pids":"","pid":1,"started":0,"incarnation":"i","token":"t"})";
}

}  // namespace starling
