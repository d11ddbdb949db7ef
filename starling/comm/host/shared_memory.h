// Windows of anonymous shared memory.
//
// Every local rank creates its region with memfd_create and passes the descriptor to the other ranks through
// the Store. The memory has no name in a file system, so nothing is left behind however a rank ends.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "starling/comm/window.h"
#include "starling/net/store/store.h"

namespace starling {

// WindowRequest describes a window and the rank that asks for it.
struct WindowRequest {
  std::string key;  // equal on all local ranks; a new key for each window of a job
  int local_rank = 0;
  int local_size = 1;
  size_t bytes = 0;      // of each rank's region; must be equal on all ranks
  bool populate = true;  // true: each owner touches its pages now; false: pages are taken at the first write
  Milliseconds timeout{60'000};
  // Called every 200 ms while this rank waits for the region of `local_rank`. It throws if that rank is lost,
  // and make_shared_window() passes the exception on. May be empty.
  std::function<void(int local_rank)> look;
};

// Makes the window. It is a collective over the local ranks.
// The regions lie one after another in one range of addresses: region(r) = region(0) + r * bytes(). The
// memory is unmapped when the Window is destroyed. If there is one local rank, `store` is not used and may be
// null.
// Errors: CommError if a rank asks for another size or if the kernel refuses memory; TimeoutError whose
// message names the late local rank.
std::shared_ptr<Window> make_shared_window(Store* store, const WindowRequest& request);

}  // namespace starling
