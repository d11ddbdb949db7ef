// A program that adds an exchange: elastic averaging SGD (Zhang, Choromanska and LeCun, NIPS 2015). Each rank
// trains alone. Every H steps, its parameters x_k move towards a common center c, and c towards the ranks:
//
//   d_k = x_k − c      x_k ← x_k − α d_k      c ← c + α Σ_k d_k
//
//   extend_exchange --exchange elastic --every 4 -n 2     α is exchange.rho.
#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>

#include "starling/parallel/exchange_parts.h"
#include "starling/parallel/replica/replica_strategy.h"
#include "starling/starling.h"

namespace {

// The base class has the loop, the checkpoint and the evaluation. Two functions are left: what happens in a
// step, and which model the ranks agree on.
class Elastic final : public starling::ReplicaStrategy {
 public:
  explicit Elastic(const starling::ExchangeParts& parts)
      : ReplicaStrategy(parts.factory, starling::make_update_rule(parts.spec.optimizer), parts.replica,
                        parts.group, parts.clock),
        every_(parts.spec.exchange.every),
        pull_(parts.spec.exchange.rho),
        center_(replica_.parameters().clone()) {
    if (pull_ * group_.size() > 1)
      throw starling::ConfigError("exchange.rho", "the center diverges: use at most 1 / ranks");
  }

  starling::StrategyStats strategy_stats() override { return {{"rounds", rounds_}}; }

 protected:
  bool advance(starling::StepReport& report) override {
    replica_.update(step_);
    if (step_.index % every_ != 0) return false;
    exchanging(report, starling::ExchangePhase::kParameters, [&] {
      const at::NoGradGuard no_grad;
      at::Tensor& x = replica_.parameters();
      const at::Tensor distance = x - center_;
      x.sub_(distance, pull_);
      center_.add_(mean_over_ranks(distance), pull_ * group_.size());
    });
    replica_.parameters_changed();
    ++rounds_;
    return true;
  }
  at::Tensor agreed() override { return center_.clone(); }
  std::map<std::string, at::Tensor*> own_ranges() override { return {{"center", &center_}}; }
  std::map<std::string, double*> own_numbers() override { return {{"rounds", &rounds_}}; }

 private:
  const int64_t every_;
  const double pull_;
  at::Tensor center_;
  double rounds_ = 0;
};

std::unique_ptr<starling::Strategy> make_elastic(const starling::ExchangeParts& parts) {
  return std::make_unique<Elastic>(parts);
}

struct Net : torch::nn::Module {
  torch::nn::Linear line = register_module("line", torch::nn::Linear(2, 1));
  Net() {
    torch::nn::init::constant_(line->weight, 0.5);
    torch::nn::init::zeros_(line->bias);
  }
  at::Tensor forward(const at::Tensor& x) { return line(x).squeeze(1); }
};

// 32 points of a plane.
std::shared_ptr<const starling::Source> plane() {
  const at::Tensor i = torch::arange(32, torch::kDouble);
  const at::Tensor x = torch::stack({i / 32, (i * i).fmod(32) / 32}, 1);
  return starling::tensor_source(x, x.select(1, 0) * 3 - x.select(1, 1) * 2 + 0.5);
}

at::Tensor squared_error(const at::Tensor& output, const at::Tensor& target) {
  return (output - target).square().mean();
}

}  // namespace

int main(int argc, char** argv) {
  starling::Extensions extensions;
  extensions.exchange(
      {.name = "elastic",
       .summary = "Each rank trains alone and is pulled towards a common center (--every H, exchange.rho).",
       .use_when = "ranks should explore",
       .keys = "every rho",
       .lockstep = starling::Lockstep::kRounds},
      make_elastic);
  const starling::Settings settings = {
      {"exchange.name", "elastic"}, {"train.global_batch", 16}, {"train.epochs", 50}};
  starling::Run run = starling::init(argc, argv, settings, extensions);
  run.fit(starling::model<Net>(), squared_error, plane());
}
