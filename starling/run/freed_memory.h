// Tells glibc what to do with memory that a training step frees.
#pragma once

namespace starling {

// Makes glibc keep freed memory for the next step, which asks for the same blocks again. By default, glibc
// returns large blocks to the kernel at once, and the kernel clears each page again at the next use. The
// setting applies to the whole process, whose memory then stays at its peak. If the user sets
// MALLOC_MMAP_THRESHOLD_ or MALLOC_TRIM_THRESHOLD_, the function leaves that threshold alone. With another C
// library it does nothing.
void keep_freed_memory();

}  // namespace starling
