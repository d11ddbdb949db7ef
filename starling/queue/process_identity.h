// Names a process so that another process finds it again after a restart of its parent, and never takes a
// later process of the same number for it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace starling {

// Process numbers are used again. The time of the start tells two processes of one number apart, and the boot
// and the space of process numbers tell two machines or containers apart.
struct ProcessName {
  pid_t pid = 0;         // 0: no process
  uint64_t started = 0;  // in ticks since the boot
  std::string boot;      // identifies the boot of the host, and the space of process numbers
};

// Returns the name of this process.
ProcessName own_process_name();
// Returns true if the process exists and has not ended. A zombie has ended.
bool lives(const ProcessName& name);
// Sends a signal to the process. Returns false if the process has ended. The signal never reaches another
// process.
bool send_signal(const ProcessName& name, int signal);

}  // namespace starling
