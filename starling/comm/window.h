// Window: memory that all ranks of one host map. Each local rank owns one region of equal size; a rank writes its own
// region and reads everybody's (the symmetric pattern of the collectives), or all ranks divide a region between them.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace starling {

// Owned by the Group that allocated it; lives as long as the group. Not copyable.
class Window {
 public:
  virtual ~Window() = default;
  // Bytes of one rank's region: what was asked for, rounded up to a page, of a large window to a huge one.
  virtual size_t bytes() const = 0;
  // The region of local rank `r`, page-aligned, zero at first.
  virtual std::byte* region(int local_rank) const = 0;
};

}  // namespace starling
