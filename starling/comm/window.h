// Window: memory that all ranks of one host map. Each local rank owns one region. All regions have the same
// size.
//
// Users choose one of two patterns. Either a rank writes to its own region and reads all regions, as the
// collectives do. Or the ranks divide one region among themselves.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace starling {

// Window gives access to the regions of all local ranks. The Group that allocated it keeps it for its own
// lifetime, unless GroupOptions::free_windows is set. The memory is unmapped when the last owner is
// destroyed.
class Window {
 public:
  virtual ~Window() = default;
  // The size of one rank's region in bytes. It is the requested size, rounded up to whole pages (large
  // windows: whole huge pages).
  virtual size_t bytes() const = 0;
  // The region of `local_rank`. It is page-aligned and zero at first.
  virtual std::byte* region(int local_rank) const = 0;
};

}  // namespace starling
