// A program that adds an all-reduce between hosts: the ranks form a line. The sum travels to its end and
// back.
//
//            steps       bytes that a rank sends         order of the sum
//   line     2 (p − 1)   2 N, at the ends of the line N  rank order
//
//   extend_collective --collective line -n 3 --set comm.shared_memory=false
#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>

#include <atomic>
#include <cstdio>

#include "starling/comm/collective/elements.h"
#include "starling/comm/network/remote_team.h"
#include "starling/starling.h"

namespace {

void line_all_reduce(starling::RemoteTeam& team, void* data, size_t count,
                     const starling::Elements& elements) {
  const size_t bytes = count * starling::size_of(elements.type);
  const int me = team.me(), last = team.size() - 1;
  if (me > 0) {  // the sum of the ranks before this rank
    std::byte* before = team.scratch(bytes);
    team.recv(me - 1, before, bytes);
    team.move();
    starling::add_parts(before, data, data, bytes, elements, me == last);
  }
  if (me < last) {
    team.send(me + 1, data, bytes);
    team.move();
    team.recv(me + 1, data, bytes);
    team.move();
  }
  if (me > 0) {
    team.send(me - 1, data, bytes);
    team.move();
  }
}

struct Net : torch::nn::Module {
  torch::nn::Linear line = register_module("line", torch::nn::Linear(2, 1));
  Net() {
    torch::nn::init::constant_(line->weight, 0.5);
    torch::nn::init::zeros_(line->bias);
  }
  at::Tensor forward(const at::Tensor& x) { return line(x).squeeze(1).sin(); }
};

// 48 points of a wave.
std::shared_ptr<const starling::Source> wave() {
  const at::Tensor i = torch::arange(48, torch::kDouble);
  const at::Tensor x = torch::stack({i / 48, (i * 0.7).sin()}, 1);
  return starling::tensor_source(x, (x.select(1, 0) * 3 - x.select(1, 1)).sin());
}

at::Tensor squared_error(const at::Tensor& output, const at::Tensor& target) {
  return (output - target).square().mean();
}

}  // namespace

int main(int argc, char** argv) {
  const auto calls = std::make_shared<std::atomic<int>>(0);
  starling::Extensions extensions;
  extensions.all_reduce("line", [calls](starling::RemoteTeam& team, void* data, size_t count,
                                        const starling::Elements& elements) {
    ++*calls;
    line_all_reduce(team, data, count, elements);
  });
  const starling::Settings settings = {{"train.global_batch", 12}, {"train.epochs", 50}};
  starling::Run run = starling::init(argc, argv, settings, extensions);
  run.fit(starling::model<Net>(), squared_error, wave());
  if (run.rank() == 0)
    std::printf("the line carried out all-reduces: %s\n", calls->load() > 0 ? "yes" : "no");
}
