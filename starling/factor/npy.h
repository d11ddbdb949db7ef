// Writes a matrix as a file that NumPy reads (numpy.load, also with mmap_mode): format version 1.0, fp32 or
// fp64, row-major.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace starling {

// Writes the rows from `first_row` on of a matrix of total_rows × columns into `path`. The file is created if
// it does not exist. Several processes may write their rows at the same time, because each writes an equal
// header. Errors: DataError that names the file.
void write_npy_rows(const std::string& path, int64_t total_rows, int64_t columns, int64_t first_row,
                    std::span<const float> values);

// Returns a whole file that holds an fp64 matrix. The number of values is a multiple of `columns`.
std::string npy_matrix(std::span<const double> values, int64_t columns);
// Returns a whole file that holds an fp64 matrix of one column.
std::string npy_column(std::span<const double> values);

}  // namespace starling
