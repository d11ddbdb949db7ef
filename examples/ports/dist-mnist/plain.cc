// Processes that train a network for handwritten digits together, with libtorch alone: each averages its
// gradients with those of the others. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT name the processes, as
// torchrun sets them. libtorch's package has no headers of Gloo or MPI, so the gradients pass through its
// TCPStore.
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "../common.h"

struct Net : torch::nn::Module {
  torch::nn::Conv2d conv1 = register_module("conv1", torch::nn::Conv2d(1, 10, 5));
  torch::nn::Conv2d conv2 = register_module("conv2", torch::nn::Conv2d(10, 20, 5));
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(320, 50));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(50, 10));

  at::Tensor forward(at::Tensor x) {
    x = torch::relu(torch::max_pool2d(conv1->forward(x), 2));
    x = torch::relu(torch::max_pool2d(conv2->forward(x), 2));
    return torch::log_softmax(fc2->forward(torch::relu(fc1->forward(x.view({-1, 320})))), 1);
  }
};

// The processes of a job.
struct Processes {
  int64_t rank = number("RANK", 0), size = number("WORLD_SIZE", 1), sent = 0;
  c10::intrusive_ptr<c10d::TCPStore> store;

  Processes() {
    const char* const host = std::getenv("MASTER_ADDR");
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(number("MASTER_PORT", 29500));
    options.isServer = rank == 0;
    options.numWorkers = size;
    if (size > 1) store = c10::make_intrusive<c10d::TCPStore>(host == nullptr ? "127.0.0.1" : host, options);
  }
  // Rank 0 keeps the store until all processes are done.
  ~Processes() {
    if (size == 1) return;
    store->add("done", 1);
    while (rank == 0 && store->add("done", 0) < size)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  static int64_t number(const char* name, int64_t otherwise) {
    const char* const text = std::getenv(name);
    return text == nullptr ? otherwise : std::atoll(text);
  }

  // Replaces `values` by the mean over all processes.
  void average(at::Tensor& values) {
    if (size == 1) return;
    const auto key = [&](int64_t of) { return std::to_string(sent) + "/" + std::to_string(of); };
    const auto* const own = static_cast<const char*>(values.const_data_ptr());
    store->set(key(rank), std::vector<uint8_t>(own, own + values.nbytes()));
    values.zero_();
    for (int64_t r = 0; r < size; ++r) {
      const std::vector<uint8_t> bytes = store->get(key(r));
      at::Tensor other = torch::empty_like(values);
      std::memcpy(other.mutable_data_ptr(), bytes.data(), bytes.size());
      values.add_(other, 1.0 / static_cast<double>(size));
    }
    ++sent;
  }
};

int main() {
  torch::manual_seed(0);
  Processes processes;
  auto net = std::make_shared<Net>();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.5));
  auto [pictures, classes] = ports::bars(640);
  auto loader = torch::data::make_data_loader(
      ports::Tensors(pictures, classes).map(torch::data::transforms::Stack<>()),
      torch::data::samplers::DistributedSequentialSampler(640, processes.size, processes.rank),
      64 / processes.size);
  for (int64_t epoch = 0; epoch < 6; ++epoch) {
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      torch::nll_loss(net->forward(batch.data), batch.target).backward();
      for (at::Tensor& p : net->parameters()) processes.average(p.mutable_grad());
      optimizer.step();
    }
  }
  const at::Tensor right = net->forward(pictures).argmax(1).eq(classes);
  std::printf("accuracy %.3f\n", right.to(torch::kFloat).mean().item<double>());
  ports::print_weights(*net);
}
