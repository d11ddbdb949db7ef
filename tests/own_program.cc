// A user's program for tests/own_program_test.py: a network with a frozen layer, buffers and libtorch's
// dropout. Arguments after "--":
//   --by-rank         Rank r begins with values of its own.
//   --add N           Adds N/8 to all initial values.
//   --dropout         The network drops activations by torch::nn::Dropout.
//   --manual-seed N   Seeds torch's generator before fit().
//   --record FILE     Rank r writes a line per training step to FILE.r: a hash of its mask, and the sums
//                     of the frozen layer and of the buffers.
//   --reference N     Prints the hashes of N masks that libtorch draws without Starling, and ends.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

#include "starling/nn/blocks.h"
#include "starling/starling.h"

namespace {

constexpr int64_t kWidth = 16;
constexpr int64_t kBatch = 8;

struct Options {
  bool by_rank = false, dropout = false;
  int64_t add = 0, manual_seed = -1, reference = 0;
  std::string record;
};

Options options_of(const std::vector<std::string>& arguments) {
  Options options;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--by-rank") options.by_rank = true;
    if (arguments[i] == "--dropout") options.dropout = true;
    if (arguments[i] == "--add") options.add = std::stoll(arguments.at(++i));
    if (arguments[i] == "--manual-seed") options.manual_seed = std::stoll(arguments.at(++i));
    if (arguments[i] == "--reference") options.reference = std::stoll(arguments.at(++i));
    if (arguments[i] == "--record") options.record = arguments.at(++i);
  }
  return options;
}

size_t hash_of(const at::Tensor& mask) {
  const at::Tensor bits = mask.gt(0).to(torch::kByte).contiguous();
  return std::hash<std::string_view>()({static_cast<const char*>(bits.data_ptr()), bits.nbytes()});
}

struct Net : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
  torch::nn::Dropout drop{nullptr};
  at::Tensor shift, counter, flags;
  Options options;
  std::string file;

  Net(const Options& with, int rank) : options(with), file(with.record + "." + std::to_string(rank)) {
    first = register_module("first", torch::nn::Linear(2, kWidth));
    second = register_module("second", torch::nn::Linear(kWidth, kWidth));
    third = register_module("third", torch::nn::Linear(kWidth, 2));
    drop = register_module("drop", torch::nn::Dropout(0.5));
    shift = register_buffer("shift", torch::full({kWidth}, 0.25));
    counter = register_buffer("counter", torch::full({1}, 3, torch::kLong));
    flags = register_buffer("flags", torch::ones({2}, torch::kBool));
    if (const int64_t add = options.add + (options.by_rank ? rank : 0); add > 0) {
      const torch::NoGradGuard no_grad;
      for (at::Tensor& p : parameters()) p.add_(0.125 * static_cast<double>(add));
      shift.add_(add);
      counter.add_(add);
      flags.fill_(add % 2 == 0);
    }
    for (at::Tensor& p : first->parameters()) p.requires_grad_(false);
  }

  at::Tensor begin(const at::Tensor& input) {
    at::Tensor x = torch::relu(first(input)) + shift;
    size_t hash = 0;
    if (options.dropout) {
      const at::Tensor mask = drop(torch::ones_like(x));
      hash = hash_of(mask);
      x = x * mask;
    }
    if (is_training() && !options.record.empty()) {
      std::ofstream out(file, std::ios::app);
      out.precision(17);
      out << hash << ' ' << first->weight.sum().item<double>() << ' '
          << shift.sum().item<double>() + counter.sum().item<double>() + flags.sum().item<double>() << '\n';
    }
    return x;
  }
  at::Tensor middle(const at::Tensor& x) { return torch::relu(second(x)); }
};

starling::Model make_model(const Options& options, int rank) {
  auto net = std::make_shared<Net>(options, rank);
  starling::Model model{net, [net](const at::Tensor& x) { return net->third(net->middle(net->begin(x))); },
                        nullptr};
  const auto first = [net](const at::Tensor& x) { return net->begin(x); };
  const auto second = [net](const at::Tensor& x) { return net->middle(x); };
  const auto third = [net](const at::Tensor& x) { return net->third(x); };
  model.blocks = {starling::make_block("first", {net->first.ptr()}, first),
                  starling::make_block("second", {net->second.ptr()}, second),
                  starling::make_block("third", {net->third.ptr()}, third)};
  return model;
}

std::shared_ptr<const starling::Source> points(int64_t n) {
  const at::Tensor x = torch::linspace(-1, 1, 2 * n).reshape({2, n}).t().contiguous();
  return starling::tensor_source(x, (x.sin().sum(1) > 0).to(torch::kLong));
}

int print_reference(const Options& options) {
  torch::manual_seed(options.manual_seed);
  torch::nn::Dropout drop(0.5);
  for (int64_t i = 0; i < options.reference; ++i)
    std::printf("%zu\n", hash_of(drop(torch::ones({kBatch, kWidth}))));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  starling::Run run = starling::init(argc, argv);
  const Options options = options_of(run.arguments());
  if (options.reference > 0) return print_reference(options);
  if (options.manual_seed >= 0) torch::manual_seed(options.manual_seed);
  const int rank = run.rank();
  run.fit([options, rank] { return make_model(options, rank); }, starling::cross_entropy, points(512),
          points(64));
  std::puts("after fit");
}
