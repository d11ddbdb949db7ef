// What the tests of grids have in common: tensors of which each rank has a part.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "starling/comm/group.h"
#include "starling/grid/rank_grid.h"
#include "starling/testing/temp_dir.h"
#include "starling/torch_testing/torch_group_processes.h"

namespace starling {

// Returns the part of an image [n, channels, height, width] that a rank holds.
inline at::Tensor image_part(const at::Tensor& image, const RankGrid& grid, int rank) {
  const PixelRect part = grid.part(rank, image.size(2), image.size(3));
  return image.narrow(2, part.rows.begin, part.rows.count())
      .narrow(3, part.columns.begin, part.columns.count())
      .contiguous();
}

// Returns the part of a tensor over positions [rows, columns, …] that a rank holds.
inline at::Tensor position_part(const at::Tensor& tensor, const RankGrid& grid, int rank) {
  const PixelRect part = grid.part(rank, tensor.size(0), tensor.size(1));
  return tensor.narrow(0, part.rows.begin, part.rows.count())
      .narrow(1, part.columns.begin, part.columns.count())
      .contiguous();
}

// Appends the numbers of a tensor.
inline void append_numbers(std::vector<double>& numbers, const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().to(at::kDouble).contiguous();
  const double* data = flat.const_data_ptr<double>();
  numbers.insert(numbers.end(), data, data + flat.numel());
}

// Runs `body` on `size` processes and returns the numbers of each rank, by rank. They may be many, so they
// travel in files. Errors: those of values_of_processes().
template <typename Body>
std::vector<std::vector<double>> numbers_in_files(int size, const Body& body) {
  const TempDir folder;
  const auto path = [&](int rank) { return folder.file(std::to_string(rank)); };
  values_of_processes(size, [&](Group& group, Store&) {
    const std::vector<double> numbers = body(group);
    std::ofstream file(path(group.rank()), std::ios::binary);
    file.write(reinterpret_cast<const char*>(numbers.data()),
               static_cast<std::streamsize>(numbers.size() * sizeof(double)));
    return std::vector<double>{};
  });
  std::vector<std::vector<double>> all;
  for (int rank = 0; rank < size; ++rank) {
    std::vector<double>& numbers = all.emplace_back(std::filesystem::file_size(path(rank)) / sizeof(double));
    std::ifstream file(path(rank), std::ios::binary);
    file.read(reinterpret_cast<char*>(numbers.data()),
              static_cast<std::streamsize>(numbers.size() * sizeof(double)));
  }
  return all;
}

// Reads what each rank appended for tensors of which it has a part, one whole tensor after another.
class WholeTensors {
 public:
  WholeTensors(const RankGrid& grid, std::vector<std::vector<double>> numbers)
      : grid_(grid), numbers_(std::move(numbers)), read_(numbers_.size()) {}

  // Returns the next tensor, over positions [rows, columns, …].
  at::Tensor positions(at::IntArrayRef shape) {
    at::Tensor whole = at::zeros(shape, at::kDouble);
    for (int rank = 0; rank < grid_.size(); ++rank) {
      const PixelRect part = grid_.part(rank, shape[0], shape[1]);
      at::Tensor view = whole.narrow(0, part.rows.begin, part.rows.count())
                            .narrow(1, part.columns.begin, part.columns.count());
      view.copy_(next(rank, view));
    }
    return whole;
  }
  // Returns the next tensor, an image [n, channels, height, width].
  at::Tensor image(at::IntArrayRef shape) {
    at::Tensor whole = at::zeros(shape, at::kDouble);
    for (int rank = 0; rank < grid_.size(); ++rank) {
      const PixelRect part = grid_.part(rank, shape[2], shape[3]);
      at::Tensor view = whole.narrow(2, part.rows.begin, part.rows.count())
                            .narrow(3, part.columns.begin, part.columns.count());
      view.copy_(next(rank, view));
    }
    return whole;
  }
  // Returns the sum over the ranks of the next number.
  double sum() {
    double sum = 0;
    for (size_t rank = 0; rank < numbers_.size(); ++rank) sum += numbers_[rank].at(read_[rank]++);
    return sum;
  }
  // Returns true if all numbers have been read.
  bool at_end() const {
    for (size_t rank = 0; rank < numbers_.size(); ++rank)
      if (read_[rank] != numbers_[rank].size()) return false;
    return true;
  }

 private:
  at::Tensor next(int rank, const at::Tensor& like) {
    const auto r = static_cast<size_t>(rank);
    const auto count = static_cast<size_t>(like.numel());
    if (read_[r] + count > numbers_[r].size()) throw std::out_of_range("a rank has too few numbers");
    const at::Tensor values = at::from_blob(numbers_[r].data() + read_[r], like.sizes(), at::kDouble).clone();
    read_[r] += count;
    return values;
  }

  const RankGrid grid_;
  std::vector<std::vector<double>> numbers_;
  std::vector<size_t> read_;
};

}  // namespace starling
