// A factor as a file that NumPy reads (numpy.load, also with mmap_mode): format version 1.0, fp32, row-major.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace starling {

// Writes rows [first_row, …) of a matrix of total_rows × columns into `path`, which is made if it is not there. Processes may write
// their rows at the same time: each writes the same header. Errors: DataError naming the file.
void write_npy_rows(const std::string& path, int64_t total_rows, int64_t columns, int64_t first_row,
                    std::span<const float> values);

}  // namespace starling
