// Windows of anonymous shared memory: every local rank makes its region by memfd_create and hands the descriptor to the
// others through the Store. Nothing has a name in a file system, so nothing is left behind however a rank ends.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "starling/comm/window.h"
#include "starling/net/store.h"

namespace starling {

struct WindowRequest {
  std::string key;  // the same on all local ranks, new for each window of a job
  int local_rank = 0;
  int local_size = 1;
  size_t bytes = 0;      // of each rank's region; must be equal on all ranks
  bool populate = true;  // take the pages now, each by its owner (first touch), instead of at the first write
  Milliseconds timeout{60'000};
  // Called now and then while the region of a local rank is waited for: throws where that one is lost. May be empty.
  std::function<void(int local_rank)> look;
};

// Collective over the local ranks. The regions lie one after another in one range of addresses: region(r) = region(0) +
// r * bytes(). Unmapped when the Window is destroyed. A single rank does not use the store (it may be null).
// Errors: CommError when a rank asks for another size or memory is refused; TimeoutError naming the late local rank.
std::shared_ptr<Window> make_shared_window(Store* store, const WindowRequest& request);

}  // namespace starling
