// What glibc does with memory that a training step gives back.
#pragma once

namespace starling {

// Keeps it for the next step, which asks for the same blocks again. By itself glibc returns large blocks to the kernel at
// once, which then clears every page of them anew: 7 % of a ResNet-18's step on a CPU. Of the whole process, whose memory then
// stays at its peak. What the user sets (MALLOC_MMAP_THRESHOLD_, MALLOC_TRIM_THRESHOLD_) is left alone. Only glibc is told.
void keep_freed_memory();

}  // namespace starling
