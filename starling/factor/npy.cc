#include "starling/factor/npy.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstddef>
#include <system_error>

#include "starling/base/error.h"
#include "starling/base/unique_fd.h"

namespace starling {
namespace {

static_assert(std::endian::native == std::endian::little, "the header below says little-endian");

std::string npy_header(int64_t rows, int64_t columns, size_t element_bytes) {
  std::string text = fmt::format("{{'descr': '<f{}', 'fortran_order': False, 'shape': ({}, {}), }}",
                                 element_bytes, rows, columns);
  while ((10 + text.size() + 1) % 64 != 0) text += ' ';  // the numbers begin at a multiple of 64 bytes
  text += '\n';
  std::string header = "\x93NUMPY\x01";
  header += '\0';
  header += static_cast<char>(text.size() & 0xff);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

void write_at(int fd, const void* data, size_t bytes, off_t at, const std::string& path) {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t put = ::pwrite(fd, from, bytes, at);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0)
      throw DataError(fmt::format("{}: cannot be written: {}", path, std::generic_category().message(errno)));
    from += put, at += put, bytes -= static_cast<size_t>(put);
  }
}

}  // namespace

void write_npy_rows(const std::string& path, int64_t total_rows, int64_t columns, int64_t first_row,
                    std::span<const float> values) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (!fd.valid())
    throw DataError(fmt::format("{}: cannot be made: {}", path, std::generic_category().message(errno)));
  const std::string header = npy_header(total_rows, columns, sizeof(float));
  const int64_t whole = static_cast<int64_t>(header.size()) + total_rows * columns * int64_t{sizeof(float)};
  if (::ftruncate(fd.get(), whole) != 0)  // removes what a larger file of an earlier run has at its end
    throw DataError(fmt::format("{}: cannot be written: {}", path, std::generic_category().message(errno)));
  write_at(fd.get(), header.data(), header.size(), 0, path);
  write_at(fd.get(), values.data(), values.size_bytes(),
           static_cast<off_t>(header.size()) + first_row * columns * static_cast<off_t>(sizeof(float)), path);
}

std::string npy_matrix(std::span<const double> values, int64_t columns) {
  std::string file = npy_header(std::ssize(values) / columns, columns, sizeof(double));
  file.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  return file;
}

std::string npy_column(std::span<const double> values) {
  return npy_matrix(values, 1);
}

}  // namespace starling
