// Each exchange implements the equations of its paper. The real code runs on four real processes on a
// quadratic for 20 steps in fp64. It is compared with a simulation of the equations, which is written here in
// plain loops.
//
// f_k(x) = 1/(2n) Σ_i (a_i · x − b_i)². The samples (a_i, b_i) of rank k differ by rank and step. x is a
// matrix of kRows by kCols, longer than one alignment of the flat memory. The update rule of every rank has
// momentum.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cmath>

#include "starling/base/clock.h"
#include "starling/base/error.h"
#include "starling/codec/codec_reference.h"
#include "starling/comm/bootstrap.h"
#include "starling/parallel/admm.h"
#include "starling/parallel/central.h"
#include "starling/parallel/compressed_sgd.h"
#include "starling/parallel/easgd.h"
#include "starling/parallel/gossip.h"
#include "starling/parallel/local_sgd.h"
#include "starling/parallel/parallel_sgd.h"
#include "starling/torch_testing/torch_group_processes.h"

namespace starling {
namespace {

constexpr int kRanks = 4;
constexpr int kSteps = 20;
constexpr int kRows = 7, kCols = 10, kDim = kRows * kCols;
constexpr int kSamples = 3;
constexpr double kLr = 0.05;
constexpr double kMomentum = 0.6;

using Vec = std::vector<double>;

double number(int a, int b, int c, int d) {  // some fixed number in [-1, 1]
  return std::sin((1.7 * a + 2.3 * b + 0.7 * c) * (1 + 0.1 * d) + 3.1 * d + 0.3);
}

// Sample i of rank k at a step: kDim coefficients, then the target. The ranks' samples have different optima.
Vec sample(int k, int step, int i) {
  Vec s;
  for (int d = 0; d < kDim; ++d) s.push_back(number(k, step, i, d));
  s.push_back(number(k, 0, 0, 99) * 2 + 0.1 * number(k, step, i, 7));
  return s;
}

Vec initial() {
  Vec x;
  for (int d = 0; d < kDim; ++d) x.push_back(number(0, 0, 0, d + 40));
  return x;
}

double loss(const Vec& x, int k, int step) {
  double sum = 0;
  for (int i = 0; i < kSamples; ++i) {
    const Vec s = sample(k, step, i);
    double r = -s[kDim];
    for (int d = 0; d < kDim; ++d) r += s[d] * x[d];
    sum += r * r / 2 / kSamples;
  }
  return sum;
}

Vec gradient(const Vec& x, int k, int step) {
  Vec g(kDim, 0);
  for (int i = 0; i < kSamples; ++i) {
    const Vec s = sample(k, step, i);
    double r = -s[kDim];
    for (int d = 0; d < kDim; ++d) r += s[d] * x[d];
    for (int d = 0; d < kDim; ++d) g[d] += r * s[d] / kSamples;
  }
  return g;
}

Vec mean(const std::vector<Vec>& xs) {
  Vec m(kDim, 0);
  for (const Vec& x : xs) {
    for (int d = 0; d < kDim; ++d) m[d] += x[d] / static_cast<double>(xs.size());
  }
  return m;
}

void add(Vec& x, double a, const Vec& y) {
  for (int d = 0; d < kDim; ++d) x[d] += a * y[d];
}

// The update rule of one rank: v = momentum v − lr g, x = x + v.
struct Sgd {
  double momentum = kMomentum;
  Vec v = Vec(kDim, 0);
  void step(Vec& x, const Vec& g) {
    for (int d = 0; d < kDim; ++d) {
      v[d] = momentum * v[d] - kLr * g[d];
      x[d] += v[d];
    }
  }
};

Model quadratic() {
  auto module = std::make_shared<torch::nn::Module>();
  Model model;
  const at::Tensor x =
      module->register_parameter("x", torch::tensor(initial(), torch::kDouble).view({kRows, kCols}));
  model.module = module;
  model.forward = [m = module.get()](const at::Tensor& a) {
    return a.matmul(m->named_parameters()["x"].flatten());
  };
  model.loss = [](const at::Tensor& y, const at::Tensor& b) { return (y - b).square().mean() / 2; };
  return model;
}

Model quadratic_fp32() {
  Model model = quadratic();
  model.module->to(torch::kFloat);
  return model;
}

Batch batch(int k, int step) {
  Vec a, b;
  for (int i = 0; i < kSamples; ++i) {
    const Vec s = sample(k, step, i);
    a.insert(a.end(), s.begin(), s.end() - 1);
    b.push_back(s[kDim]);
  }
  return {torch::tensor(a, torch::kDouble).view({kSamples, kDim}), torch::tensor(b, torch::kDouble)};
}

using Make =
    std::function<std::unique_ptr<Strategy>(UpdateRule, const FlatReplicaOptions&, Group&, const Clock&)>;

// Returns the agreed model after kSteps on kRanks processes, which is equal on every rank. The numbers that
// `extra` returns on rank 0 follow it.
Vec run_real(const Make& make, const std::function<Vec(Strategy&)>& extra = {},
             at::ScalarType type = at::kDouble, double momentum = kMomentum) {
  const auto of_ranks = values_of_processes(kRanks, [&](Group& group, Store&) {
    const SystemClock clock;
    OptimizerSpec spec;
    spec.momentum = momentum;
    FlatReplicaOptions options;
    options.master = options.working = at::kDouble;
    options.rank = group.rank();
    const auto strategy = make(make_update_rule(spec), options, group, clock);
    for (int step = 1; step <= kSteps; ++step) {
      strategy->begin_step({step, kLr, false});
      const Batch own = batch(group.rank(), step);
      strategy->forward_backward({own.input.to(type), own.target.to(type)});
      strategy->update();
    }
    strategy->consensus();
    const StrategyState state = strategy->state();
    const Vec more = extra ? extra(*strategy) : Vec();
    if (group.rank() != 0) return Vec();
    const at::Tensor x = state.parameters.at("x").to(at::kDouble).contiguous();
    Vec result(x.data_ptr<double>(), x.data_ptr<double>() + kDim);
    result.insert(result.end(), more.begin(), more.end());
    return result;
  });
  return of_ranks[0];
}

void expect_near(const Vec& real, const Vec& simulated) {
  ASSERT_EQ(real.size(), simulated.size());
  for (size_t i = 0; i < real.size(); ++i)
    EXPECT_NEAR(real[i], simulated[i], 1e-10 * std::max(1.0, std::fabs(simulated[i]))) << "number " << i;
}

TEST(Exchange, CentralIsSynchronousSgd) {
  for (const double momentum : {0.0, kMomentum}) {
    Vec x = initial();
    Sgd rule{momentum};
    for (int step = 1; step <= kSteps; ++step) {
      std::vector<Vec> g;
      for (int k = 0; k < kRanks; ++k) g.push_back(gradient(x, k, step));
      rule.step(x, mean(g));
    }
    for (const bool sharded : {false, true}) {
      expect_near(run_real(
                      [&](auto rule, const auto& options, Group& group, const Clock& clock) {
                        return std::make_unique<Central>(quadratic, rule, options, sharded, group, clock);
                      },
                      {}, at::kDouble, momentum),
                  x);
    }
  }
}

TEST(Exchange, LocalSgdAveragesEveryHSteps) {
  constexpr int kEvery = 3;
  std::vector<Vec> x(kRanks, initial());
  std::vector<Sgd> rules(kRanks);
  for (int step = 1; step <= kSteps; ++step) {
    for (int k = 0; k < kRanks; ++k) rules[k].step(x[k], gradient(x[k], k, step));
    if (step % kEvery == 0) x.assign(kRanks, mean(x));
  }
  expect_near(run_real([&](auto rule, const auto& options, Group& group, const Clock& clock) {
                return std::make_unique<LocalSgd>(quadratic, rule, options, kEvery, group, clock);
              }),
              mean(x));
}

// The outer step: d = mean x_k − z, Δ = η Δ + d, then z = z + α Δ (block momentum, Chen and Huo 2016), or
// with Nesterov's momentum z = z + α (d + η Δ) (DiLoCo, Douillard et al. 2023).
TEST(Exchange, LocalSgdHasAnOuterStep) {
  constexpr int kEvery = 3;
  for (const OuterStep& outer : {OuterStep{.momentum = 0.7}, OuterStep{.lr = 0.8},
                                 OuterStep{.momentum = 0.6, .lr = 0.7, .nesterov = true}}) {
    Vec z = initial(), delta(kDim, 0);
    std::vector<Vec> x(kRanks, z);
    std::vector<Sgd> rules(kRanks);
    for (int step = 1; step <= kSteps; ++step) {
      for (int k = 0; k < kRanks; ++k) rules[k].step(x[k], gradient(x[k], k, step));
      if (step % kEvery != 0) continue;
      const Vec m = mean(x);
      for (int d = 0; d < kDim; ++d) {
        const double moved = m[d] - z[d];
        delta[d] = outer.momentum * delta[d] + moved;
        z[d] += outer.lr * (outer.nesterov ? moved + outer.momentum * delta[d] : delta[d]);
      }
      x.assign(kRanks, z);
    }
    expect_near(run_real([&](auto rule, const auto& options, Group& group, const Clock& clock) {
                  return std::make_unique<LocalSgd>(quadratic, rule, options, kEvery, group, clock,
                                                    CodecSpec{}, outer);
                }),
                mean(x));
  }
}

// Elastic averaging (Zhang et al. 2015): d_k = x_k − c, x_k = x_k − β/p d_k, c = c + β mean d_k.
TEST(Exchange, EasgdIsDrawnToItsCenter) {
  constexpr int kEvery = 3;
  constexpr double kElastic = 0.6;
  Vec center = initial();
  std::vector<Vec> x(kRanks, center);
  std::vector<Sgd> rules(kRanks);
  for (int step = 1; step <= kSteps; ++step) {
    for (int k = 0; k < kRanks; ++k) rules[k].step(x[k], gradient(x[k], k, step));
    if (step % kEvery != 0) continue;
    const Vec m = mean(x);
    for (int d = 0; d < kDim; ++d) {
      for (int k = 0; k < kRanks; ++k) x[k][d] -= kElastic / kRanks * (x[k][d] - center[d]);
      center[d] += kElastic * (m[d] - center[d]);
    }
  }
  expect_near(run_real([&](auto rule, const auto& options, Group& group, const Clock& clock) {
                return std::make_unique<Easgd>(quadratic, rule, options, kEvery, kElastic, group, clock);
              }),
              center);
}

// Post-local SGD (Lin et al. 2020): the first five steps end with a round each.
TEST(Exchange, LocalSgdBeginsSynchronously) {
  constexpr int kEvery = 4, kFrom = 5;
  std::vector<Vec> x(kRanks, initial());
  std::vector<Sgd> rules(kRanks);
  for (int step = 1; step <= kSteps; ++step) {
    for (int k = 0; k < kRanks; ++k) rules[k].step(x[k], gradient(x[k], k, step));
    if (step <= kFrom || step % kEvery == 0) x.assign(kRanks, mean(x));
  }
  expect_near(run_real([&](auto rule, const auto& options, Group& group, const Clock& clock) {
                return std::make_unique<LocalSgd>(quadratic, rule, options, kEvery, group, clock, CodecSpec{},
                                                  OuterStep{}, kFrom);
              }),
              mean(x));
}

TEST(Exchange, ParallelSgdAverages) {
  for (const int every : {5, kSteps}) {  // iterative mixing; Zinkevich's single combination
    std::vector<Vec> x(kRanks, initial());
    std::vector<Sgd> rules(kRanks);
    for (int step = 1; step <= kSteps; ++step) {
      for (int k = 0; k < kRanks; ++k) rules[k].step(x[k], gradient(x[k], k, step));
      if (step % every == 0) x.assign(kRanks, mean(x));
    }
    expect_near(run_real([&](auto rule, const auto& options, Group& group, const Clock& clock) {
                  return std::make_unique<ParallelSgd>(quadratic, rule, options, every, Combine::kAverage,
                                                       Batch{}, group, clock);
                }),
                mean(x));
  }
}

// The best model is chosen on samples of all ranks on which no rank trains.
TEST(Exchange, ParallelSgdTakesTheBest) {
  constexpr int kEvery = 5;
  constexpr int kHeldOut = 1000;  // a step that is never taken
  std::vector<Vec> x(kRanks, initial());
  std::vector<Sgd> rules(kRanks);
  int best = 0;
  for (int step = 1; step <= kSteps; ++step) {
    for (int k = 0; k < kRanks; ++k) rules[k].step(x[k], gradient(x[k], k, step));
    if (step % kEvery != 0) continue;
    const auto total = [&](int candidate) {
      double sum = 0;
      for (int k = 0; k < kRanks; ++k) sum += loss(x[candidate], k, kHeldOut);
      return sum;
    };
    best = 0;
    for (int k = 1; k < kRanks; ++k) {
      if (total(k) < total(best)) best = k;
    }
    x.assign(kRanks, x[best]);
  }
  Vec simulated = x[0];
  simulated.push_back(4);  // combines
  expect_near(run_real(
                  [&](auto rule, const auto& options, Group& group, const Clock& clock) {
                    return std::make_unique<ParallelSgd>(quadratic, rule, options, kEvery, Combine::kBest,
                                                         batch(group.rank(), kHeldOut), group, clock);
                  },
                  [](Strategy& s) { return Vec{s.strategy_stats().at("combines")}; }),
              simulated);
}

TEST(Exchange, AdmmFollowsBoydsEquations) {
  constexpr int kEvery = 4;
  for (const auto& [adaptive, momentum] : {std::pair(false, 0.0), {true, 0.0}, {false, 0.7}}) {
    double rho = 0.5, primal = 0, dual = 0;
    const Vec zero(kDim, 0);
    std::vector<Vec> x(kRanks, initial()), u(kRanks, zero);
    Vec z = initial(), delta = zero;
    std::vector<Sgd> rules(kRanks);
    for (int step = 1; step <= kSteps; ++step) {
      for (int k = 0; k < kRanks; ++k) {
        Vec g = gradient(x[k], k, step);
        add(g, rho, x[k]);
        add(g, -rho, z);
        add(g, rho, u[k]);
        rules[k].step(x[k], g);
      }
      if (step % kEvery != 0) continue;
      std::vector<Vec> sum = x;
      for (int k = 0; k < kRanks; ++k) add(sum[k], 1, u[k]);
      const Vec before = z;
      z = mean(sum);
      double squares = 0, moved = 0;
      for (int k = 0; k < kRanks; ++k) {
        for (int d = 0; d < kDim; ++d) {
          u[k][d] += x[k][d] - z[d];
          squares += (x[k][d] - z[d]) * (x[k][d] - z[d]);
        }
      }
      for (int d = 0; d < kDim; ++d) moved += (z[d] - before[d]) * (z[d] - before[d]);
      primal = std::sqrt(squares);
      dual = rho * std::sqrt(static_cast<double>(kRanks)) * std::sqrt(moved);
      add(z, momentum, delta);
      for (int k = 0; k < kRanks; ++k) add(x[k], momentum, delta);
      delta = z;
      add(delta, -1, before);
      if (!adaptive) continue;
      const bool room = 2 * rho * kLr <= 0.5;
      const double factor = primal > 10 * dual && room ? 2 : dual > 10 * primal ? 0.5 : 1;
      rho *= factor;
      for (Vec& v : u) {
        for (double& d : v) d /= factor;
      }
    }
    Vec simulated = z;
    simulated.insert(simulated.end(), {primal, dual, rho});
    expect_near(run_real(
                    [&](auto rule, const auto& options, Group& group, const Clock& clock) {
                      return std::make_unique<Admm>(quadratic, rule, options,
                                                    AdmmOptions{kEvery, 0.5, adaptive, momentum}, group,
                                                    clock);
                    },
                    [](Strategy& s) {
                      const StrategyStats p = dynamic_cast<Admm&>(s).strategy_stats();
                      return Vec{p.at("primal_residual"), p.at("dual_residual"), p.at("rho")};
                    }),
                simulated);
  }
}

TEST(Exchange, GossipMixesWithItsNeighbors) {
  for (const GossipGraph graph : {GossipGraph::kRing, GossipGraph::kTorus, GossipGraph::kExponential}) {
    std::vector<Vec> x(kRanks, initial());
    std::vector<Sgd> rules(kRanks);
    for (int step = 1; step <= kSteps; ++step) {
      std::vector<Vec> next(kRanks, Vec(kDim, 0));
      for (int i = 0; i < kRanks; ++i) {
        // The torus of four has two rows of two. A rank hears the rank in the other row and the rank in the
        // other column.
        const std::vector<int> heard =
            graph == GossipGraph::kRing    ? std::vector<int>{(i + 1) % 4, i, (i + 3) % 4}
            : graph == GossipGraph::kTorus ? std::vector<int>{i, i ^ 2, i ^ 1}
                                           : std::vector<int>{i, (i + 3) % 4, (i + 2) % 4};
        for (const int j : heard) add(next[i], 1.0 / 3, x[j]);
        rules[i].step(next[i], gradient(x[i], i, step));
      }
      x = next;
    }
    const Vec m = mean(x);
    double squares = 0;
    for (const Vec& v : x) {
      for (int d = 0; d < kDim; ++d) squares += (v[d] - m[d]) * (v[d] - m[d]);
    }
    Vec simulated = m;
    simulated.push_back(std::sqrt(squares));
    expect_near(
        run_real(
            [&](auto rule, const auto& options, Group& group, const Clock& clock) {
              return std::make_unique<Gossip>(quadratic, rule, options, graph, group, clock);
            },
            [](Strategy& s) { return Vec{dynamic_cast<Gossip&>(s).strategy_stats().at("disagreement")}; }),
        simulated);
  }
}

constexpr size_t kPadded = 128;  // elements of the flat memory that holds x

const std::vector<TensorShape> kWhole = {{kRows, kCols, kPadded - kDim}};

// Returns what a message of the codec says about a range that holds x. It is computed from the codec's
// definition, without the codec.
Values said(const CodecSpec& spec, const Values& v, const std::vector<TensorShape>& shapes) {
  switch (spec.kind) {
    case CodecKind::kBf16:
      return bf16_reference(v);
    case CodecKind::kInt8:
      return int8_reference(v, spec.block, shapes);
    case CodecKind::kOneBit:
      return one_bit_reference(v, spec.block, shapes);
    case CodecKind::kThreshold:
      return threshold_reference(v, static_cast<float>(spec.tau));
    case CodecKind::kPrune:
      return prune_reference(v, static_cast<size_t>(std::ceil(spec.keep * kPadded)));
    case CodecKind::kLowRank: {  // the best approximation of the codec's rank
      const at::Tensor m = torch::tensor(v).narrow(0, 0, kDim).view({kRows, kCols}).to(at::kDouble);
      const auto [u, s, vh] = at::linalg_svd(m, false);
      const at::Tensor near =
          u.narrow(1, 0, spec.rank).mul(s.narrow(0, 0, spec.rank)).matmul(vh.narrow(0, 0, spec.rank));
      const at::Tensor flat = near.to(at::kFloat).contiguous();
      Values out(flat.data_ptr<float>(), flat.data_ptr<float>() + kDim);
      out.resize(kPadded, 0);
      return out;
    }
    default:
      throw std::invalid_argument("no reference");
  }
}

// The residuals of all messages: each rank's, and that of the owners' second messages.
struct Residuals {
  std::vector<Values> first = std::vector<Values>(kRanks, Values(kPadded, 0));
  Values second = Values(kPadded, 0);
};

// Adds the residual to v, and returns what the message says. What it lacks becomes the residual.
Values said_with(const CodecSpec& spec, Values v, const std::vector<TensorShape>& shapes, float* residual) {
  for (size_t d = 0; d < v.size(); ++d) v[d] += residual[d];
  const Values told = said(spec, v, shapes);
  for (size_t d = 0; d < v.size() && spec.error_feedback; ++d) residual[d] = v[d] - told[d];
  return told;
}

// Codecs whose decoded parts can be added: each quarter of the range is sent to its owner, which encodes the
// mean of that quarter again.
Values mean_by_quarters(const CodecSpec& spec, const std::vector<Values>& v, Residuals& residuals) {
  constexpr size_t kQuarter = kPadded / kRanks;
  Values result;
  for (size_t begin = 0; begin < kPadded; begin += kQuarter) {
    const size_t values = std::min<size_t>(kQuarter, kDim - std::min<size_t>(begin, kDim));
    const std::vector<TensorShape> shapes = {{1, values, kQuarter - values}};
    Values sum(kQuarter, 0);
    for (int k = 0; k < kRanks; ++k) {
      const Values part(v[k].begin() + begin, v[k].begin() + begin + kQuarter);
      const Values told = said_with(spec, part, shapes, &residuals.first[k][begin]);
      for (size_t d = 0; d < kQuarter; ++d) sum[d] += told[d] / kRanks;
    }
    const Values again = said_with(spec, sum, shapes, &residuals.second[begin]);
    result.insert(result.end(), again.begin(), again.end());
  }
  return result;
}

// Returns the mean of what the ranks' messages say about v. Updates the residuals, which the next messages
// add.
Values mean_of_messages(const CodecSpec& spec, const std::vector<Values>& v, Residuals& residuals) {
  if (spec.kind == CodecKind::kBf16 || spec.kind == CodecKind::kInt8 || spec.kind == CodecKind::kOneBit)
    return mean_by_quarters(spec, v, residuals);
  Values sum(kPadded, 0);
  for (int k = 0; k < kRanks; ++k) {
    const Values told = said_with(spec, v[k], kWhole, residuals.first[k].data());
    for (size_t d = 0; d < kPadded; ++d) sum[d] += told[d] / kRanks;
  }
  return sum;
}

Vec whole(const Values& x) {
  return {x.begin(), x.begin() + kDim};
}

// bound: a value may be rounded to the other side, which is one step of int8 or bf16 and moves one number of
// x by a part of this step.
void expect_coded(const std::string& word, const Make& make, const Values& simulated, double bound) {
  const Vec real = run_real(make, {}, at::kFloat);
  ASSERT_EQ(real.size(), static_cast<size_t>(kDim)) << word;
  const Vec first = initial();
  double moved = 0;
  for (int d = 0; d < kDim; ++d) {
    EXPECT_NEAR(real[d], simulated[d], bound) << word << ", number " << d;
    moved = std::max(moved, std::fabs(simulated[d] - first[d]));
  }
  EXPECT_GT(moved, 100 * bound) << word;
}

Values padded(const Vec& x) {
  Values out(x.begin(), x.end());
  out.resize(kPadded, 0);
  return out;
}

// With a codec, a rank sends how far it has moved since the last round. What a message lacks is added to the
// next one.
TEST(Exchange, LocalSgdMovesByTheMeanOfTheMessages) {
  constexpr int kEvery = 4;
  for (const auto& [word, bound] : {std::pair<std::string, double>{"1bit:block=24", 2e-5},
                                    {"prune:keep=0.2", 2e-5},
                                    {"threshold:tau=0.02", 2e-5},
                                    {"bf16", 3e-4}}) {
    const CodecSpec spec = parse_codec(word);
    Values z = padded(initial());
    std::vector<Values> x(kRanks, z);
    Residuals residuals;
    std::vector<Sgd> rules(kRanks);
    for (int step = 1; step <= kSteps; ++step) {
      for (int k = 0; k < kRanks; ++k) {
        Vec at = whole(x[k]);
        rules[k].step(at, gradient(at, k, step));
        x[k] = padded(at);
      }
      if (step % kEvery != 0) continue;
      std::vector<Values> moved = x;
      for (Values& m : moved) {
        for (size_t d = 0; d < kPadded; ++d) m[d] -= z[d];
      }
      const Values mean = mean_of_messages(spec, moved, residuals);
      for (size_t d = 0; d < kPadded; ++d) z[d] += mean[d];
      x.assign(kRanks, z);
    }
    expect_coded(
        word,
        [&](auto rule, FlatReplicaOptions options, Group& group, const Clock& clock) {
          options.master = options.working = at::kFloat;
          return std::make_unique<LocalSgd>(quadratic_fp32, rule, options, kEvery, group, clock, spec);
        },
        z, bound);
  }
}

// Encoded gradients with error feedback: the mean of what the messages say is applied. What a message lacks
// is added to the next one.
TEST(Exchange, CompressedSgdAppliesTheMeanOfTheMessages) {
  for (const auto& [word, bound] : {std::pair<std::string, double>{"1bit:block=24", 2e-5},
                                    {"int8:block=24", 5e-4},
                                    {"prune:keep=0.2", 2e-5},
                                    {"threshold:tau=0.1", 2e-5},
                                    {"lowrank:form=pca,rank=2,iterations=200,feedback=on", 1e-3}}) {
    const CodecSpec spec = parse_codec(word);
    Vec x = initial();
    Residuals residuals;
    Sgd rule;
    for (int step = 1; step <= kSteps; ++step) {
      std::vector<Values> g;
      for (int k = 0; k < kRanks; ++k) g.push_back(padded(gradient(x, k, step)));
      rule.step(x, whole(mean_of_messages(spec, g, residuals)));
    }
    expect_coded(
        word,
        [&](auto rule, FlatReplicaOptions options, Group& group, const Clock& clock) {
          options.master = options.working = at::kFloat;
          return std::make_unique<CompressedSgd>(quadratic_fp32, rule, options, spec, group, clock);
        },
        padded(x), bound);
  }
}

// Long lists are sent by parts: prune keeps its fraction of each quarter.
Values pruned_by_quarters(const CodecSpec& spec, Values v, Values& residual) {
  constexpr size_t kQuarter = kPadded / kRanks;
  Values told;
  for (size_t begin = 0; begin < kPadded; begin += kQuarter) {
    Values part(v.begin() + begin, v.begin() + begin + kQuarter);
    for (size_t d = 0; d < kQuarter; ++d) part[d] += residual[begin + d];
    const Values of_part = prune_reference(part, static_cast<size_t>(std::ceil(spec.keep * kQuarter)));
    for (size_t d = 0; d < kQuarter; ++d) residual[begin + d] = part[d] - of_part[d];
    told.insert(told.end(), of_part.begin(), of_part.end());
  }
  return told;
}

// Deep Gradient Compression (Lin et al. 2018): each rank has a velocity, whose messages are averaged. The
// velocity becomes 0 where the rank has sent a value. Each rank adds the weight decay, and clips its
// gradient.
TEST(Exchange, CompressedSgdCorrectsMomentum) {
  constexpr double kDecay = 0.03, kClip = 1.2;
  for (const auto& [word, bound] : {std::pair<std::string, double>{"prune:keep=0.2", 2e-5},
                                    {"prune:keep=0.9", 2e-5},
                                    {"threshold:tau=0.1", 2e-5}}) {
    const CodecSpec spec = parse_codec(word);
    Vec x = initial();
    std::vector<Values> u(kRanks, Values(kPadded, 0)), r = u;
    int clipped = 0;
    for (int step = 1; step <= kSteps; ++step) {
      Values sum(kPadded, 0);
      for (int k = 0; k < kRanks; ++k) {
        Vec g = gradient(x, k, step);
        double squares = 0;
        for (const double v : g) squares += v * v;
        const double limit = kClip * std::sqrt(kRanks);
        const double scale = std::sqrt(squares) > limit ? limit / (std::sqrt(squares) + 1e-6) : 1;
        clipped += scale < 1 ? 1 : 0;
        Values v(kPadded, 0);
        for (int d = 0; d < kDim; ++d) {
          u[k][d] = static_cast<float>(kMomentum * u[k][d] + scale * g[d] + kDecay * x[d]);
          v[d] = u[k][d];
        }
        const Values told = word == "prune:keep=0.9" ? pruned_by_quarters(spec, v, r[k])
                                                     : said_with(spec, v, kWhole, r[k].data());
        for (size_t d = 0; d < kPadded; ++d) {
          sum[d] += told[d] / kRanks;
          if (told[d] != 0) u[k][d] = 0;
        }
      }
      for (int d = 0; d < kDim; ++d) x[d] -= kLr * sum[d];
    }
    EXPECT_TRUE(clipped > 0 && clipped < kRanks * kSteps) << clipped;
    expect_coded(
        word,
        [&](auto, FlatReplicaOptions options, Group& group, const Clock& clock) {
          options.master = options.working = at::kFloat;
          options.clip_norm = kClip;
          OptimizerSpec plain;
          plain.momentum = 0;
          return std::make_unique<CompressedSgd>(quadratic_fp32, make_update_rule(plain), options, spec,
                                                 CompressedSgd::Correction{kMomentum, kDecay}, group, clock);
        },
        padded(x), bound);
  }
}

// A checkpoint has the velocity of momentum correction. A run that loads it continues bit for bit.
TEST(Exchange, CompressedSgdKeepsItsVelocity) {
  const std::unique_ptr<Group> alone = make_single_group();
  const SystemClock clock;
  OptimizerSpec plain;
  plain.momentum = 0;
  const auto make = [&] {
    return std::make_unique<CompressedSgd>(quadratic_fp32, make_update_rule(plain), FlatReplicaOptions{},
                                           parse_codec("prune:keep=0.1"),
                                           CompressedSgd::Correction{kMomentum, 0}, *alone, clock);
  };
  const auto run = [&](CompressedSgd& sgd, int from, int to) {
    for (int step = from; step <= to; ++step) {
      sgd.begin_step({step, kLr, false});
      const Batch own = batch(0, step);
      sgd.forward_backward({own.input.to(at::kFloat), own.target.to(at::kFloat)});
      sgd.update();
    }
  };
  const auto whole = make(), half = make(), rest = make();
  run(*whole, 1, 8);
  run(*half, 1, 4);
  rest->load_state(half->state());
  run(*rest, 5, 8);
  const StrategyState a = whole->state(), b = rest->state();
  EXPECT_TRUE(at::equal(a.parameters.at("x"), b.parameters.at("x")));
  EXPECT_EQ(a.optimizer.at("values@0/x").numel(), 2 * int64_t{kPadded});  // the residual and the velocity
}

// A checkpoint of an earlier version has one residual per rank. The residual of the second encoding then
// begins with zeros. Values of another length are refused.
TEST(Exchange, CompressedSgdLoadsAStateWithoutTheSecondResidual) {
  const auto of_ranks = values_of_processes(3, [](Group& group, Store&) {
    const SystemClock clock;
    FlatReplicaOptions options;
    options.rank = group.rank();
    CompressedSgd sgd(quadratic_fp32, make_update_rule(OptimizerSpec{}), options, parse_codec("1bit"), group,
                      clock);
    StrategyState state = sgd.state();
    if (group.rank() != 0) return Vec{0, 0, 0};  // the state is complete on rank 0
    at::Tensor& values = state.optimizer.at("values@0/x");
    const auto length = static_cast<double>(values.numel());
    const auto loads = [&](int64_t count) {
      values = torch::full({count}, 0.5f);
      try {
        sgd.load_state(state);
      } catch (const Error&) {
        return 0.0;
      }
      return 1.0;
    };
    return Vec{length, loads(kPadded), loads(kPadded + 1)};
  });
  EXPECT_EQ(of_ranks[0], (Vec{kPadded + 48, 1, 0}));  // 8 blocks of 16 values: 2, 3 and 3
}

// Returns the disagreement of `size` processes before and after each of `rounds` mixing rounds with zero
// gradients.
Vec disagreements(GossipGraph graph, int size, int rounds) {
  const auto of_ranks = values_of_processes(size, [&](Group& group, Store&) {
    const SystemClock clock;
    FlatReplicaOptions options;
    options.master = options.working = at::kDouble;
    options.rank = group.rank();
    OptimizerSpec spec;
    spec.momentum = 0;
    Gossip gossip(quadratic, make_update_rule(spec), options, graph, group, clock);
    Vec found;
    for (int step = 1; step <= rounds + 1; ++step) {  // the first step makes the ranks differ
      gossip.begin_step({step, step == 1 ? kLr : 0, false});
      gossip.forward_backward(batch(group.rank(), 1));
      gossip.update();
      found.push_back(gossip.strategy_stats().at("disagreement"));
    }
    return found;
  });
  return of_ranks[0];
}

TEST(Exchange, EightProcessesOfGossipContractAsTheoryHasIt) {
  constexpr int kFrom = 14, kTo = 24;  // before kFrom, components that shrink faster still contribute
  for (const auto& [graph, rate] : {std::pair(GossipGraph::kRing, 0.805), std::pair(GossipGraph::kTorus, 0.5),
                                    std::pair(GossipGraph::kExponential, 0.5)}) {
    const Vec d = disagreements(graph, 8, kTo);
    ASSERT_EQ(d.size(), kTo + 1u);
    EXPECT_GT(d[0], 1e-3);
    EXPECT_NEAR(std::pow(d[kTo] / d[kFrom], 1.0 / (kTo - kFrom)), rate, 0.05 * rate);
  }
}

// With zero gradients, the disagreement shrinks by |λ₂| of the mixing matrix per round.
TEST(Exchange, GossipContractsByTheSecondEigenvalue) {
  EXPECT_NEAR(second_eigenvalue(mixing_matrix(GossipGraph::kRing, 8), 8), 0.805, 5e-4);
  EXPECT_NEAR(second_eigenvalue(mixing_matrix(GossipGraph::kExponential, 8), 8), 0.5, 1e-12);
  // A torus of r rows and c columns has the eigenvalues (1 + row + column) / (1 + neighbors). `row` is ±1 for
  // two rows and 2 cos 2πi/r for more rows. `column` is defined like `row`.
  EXPECT_NEAR(second_eigenvalue(mixing_matrix(GossipGraph::kTorus, 6), 6), 2.0 / 4, 1e-12);
  EXPECT_NEAR(second_eigenvalue(mixing_matrix(GossipGraph::kTorus, 8), 8), 2.0 / 4, 1e-12);
  EXPECT_NEAR(second_eigenvalue(mixing_matrix(GossipGraph::kTorus, 9), 9), 2.0 / 5, 1e-12);
  for (const int size : {1, 2, 3, 6, 8, 9}) {
    for (const GossipGraph graph : {GossipGraph::kRing, GossipGraph::kTorus, GossipGraph::kExponential}) {
      const std::vector<double> w = mixing_matrix(graph, size);
      for (int i = 0; i < size; ++i) {
        double row = 0, column = 0;
        for (int j = 0; j < size; ++j) {
          row += w[i * size + j];
          column += w[j * size + i];
        }
        EXPECT_NEAR(row, 1, 1e-12);
        EXPECT_NEAR(column, 1, 1e-12) << "not doubly stochastic: " << size;
      }
    }
  }
}

}  // namespace
}  // namespace starling
