// A program that adds a data source: text files with one sample per line, whose last column is the target.
//
//   extend_source --data csv:points.csv --set data.test_source=csv:more.csv -n 2
#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>

#include <charconv>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "starling/starling.h"

namespace {

// Returns the numbers of a line, which are separated by commas.
std::vector<double> numbers_of(const std::string& line, const std::string& place) {
  std::vector<double> numbers;
  const char* at = line.data();
  const char* const end = line.data() + line.size();
  for (;;) {
    const auto [stop, fault] = std::from_chars(at, end, numbers.emplace_back());
    if (fault != std::errc() || (stop != end && *stop != ','))
      throw starling::DataError(place + ": column " + std::to_string(numbers.size()) + " is not a number");
    if (stop == end) return numbers;
    at = stop + 1;
  }
}

std::shared_ptr<const starling::Source> read_csv(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw starling::DataError(path + ": the file cannot be read");
  std::vector<double> all;
  int64_t rows = 0;
  for (std::string line; std::getline(file, line); ++rows) {
    const std::string place = path + ":" + std::to_string(rows + 1);
    const std::vector<double> row = numbers_of(line, place);
    if (row.size() < 2 || (rows > 0 && row.size() * static_cast<size_t>(rows) != all.size()))
      throw starling::DataError(place + ": a line has another number of columns than the first line");
    all.insert(all.end(), row.begin(), row.end());
  }
  if (rows == 0) throw starling::DataError(path + ": the file is empty");
  const at::Tensor table = torch::tensor(all, torch::kDouble).view({rows, -1});
  const int64_t inputs = table.size(1) - 1;
  return starling::tensor_source(table.narrow(1, 0, inputs).contiguous(),
                                 table.select(1, inputs).contiguous());
}

starling::DataSets open_csv(const starling::SourceRequest& request) {
  if (request.path.empty()) throw starling::ConfigError("data.source", "csv needs a file: write csv:FILE");
  return {read_csv(request.path), nullptr};
}

struct Net : torch::nn::Module {
  torch::nn::Linear line{nullptr};
  explicit Net(int64_t inputs) : line(register_module("line", torch::nn::Linear(inputs, 1))) {
    torch::nn::init::constant_(line->weight, 0.5);
    torch::nn::init::zeros_(line->bias);
  }
  at::Tensor forward(const at::Tensor& x) { return line(x).squeeze(1); }
};

at::Tensor squared_error(const at::Tensor& output, const at::Tensor& target) {
  return (output - target).square().mean();
}

}  // namespace

int main(int argc, char** argv) {
  starling::Extensions extensions;
  extensions.source("csv", "csv:FILE", open_csv);
  starling::Run run = starling::init(argc, argv, {}, extensions);
  const starling::DataSets data = run.data();
  const int64_t inputs = data.train->info().input_shape.at(0);
  run.fit(
      starling::model<Net>(inputs), squared_error, data.train, data.test,
      starling::FitOptions().on_epoch([](const starling::EpochState& state, const starling::Evaluation& e) {
        std::printf("step %lld: loss %.12f of %lld test samples\n", static_cast<long long>(state.step),
                    e.loss, static_cast<long long>(e.samples));
      }));
}
