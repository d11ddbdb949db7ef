// Each exchange is what its name says: run by the real code on four real processes on a quadratic, fp64, 20 steps, it
// matches a simulation of its paper's equations written here in plain loops.
//
// f_k(x) = 1/(2n) Σ_i (a_i · x − b_i)², rank k's samples (a_i, b_i) differing by rank and step.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "starling/base/clock.h"
#include "starling/parallel/admm.h"
#include "starling/parallel/central.h"
#include "starling/parallel/compressed_sgd.h"
#include "starling/parallel/gossip.h"
#include "starling/parallel/local_sgd.h"
#include "starling/parallel/parallel_sgd.h"
#include "starling/torch_testing/group_processes.h"

namespace starling {
namespace {

constexpr int kRanks = 4;
constexpr int kSteps = 20;
constexpr int kDim = 5;
constexpr int kSamples = 3;
constexpr double kLr = 0.05;

using Vec = std::vector<double>;

double number(int a, int b, int c, int d) {  // some fixed number in [-1, 1]
  return std::sin(1.7 * a + 2.3 * b + 0.7 * c + 3.1 * d + 0.3);
}

// Sample i of rank k at a step: kDim coefficients, then the target. Ranks pull in different directions.
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

Model quadratic() {
  auto module = std::make_shared<torch::nn::Module>();
  Model model;
  const at::Tensor x = module->register_parameter("x", torch::tensor(initial(), torch::kDouble));
  model.module = module;
  model.forward = [m = module.get()](const at::Tensor& a) { return a.matmul(m->named_parameters()["x"]); };
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

// The agreed model after kSteps on kRanks processes, as every rank has it; `extra` numbers of rank 0 behind it.
Vec run_real(const Make& make, const std::function<Vec(Strategy&)>& extra = {},
             at::ScalarType type = at::kDouble) {
  const auto of_ranks = values_of_processes(kRanks, [&](Group& group, Store&) {
    const SystemClock clock;
    OptimizerSpec spec;
    spec.momentum = 0;
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
  Vec x = initial();
  for (int step = 1; step <= kSteps; ++step) {
    std::vector<Vec> g;
    for (int k = 0; k < kRanks; ++k) g.push_back(gradient(x, k, step));
    add(x, -kLr, mean(g));
  }
  for (const bool divided : {false, true}) {
    expect_near(run_real([&](auto rule, const auto& options, Group& group, const Clock& clock) {
                  return std::make_unique<Central>(quadratic, rule, options, divided, group, clock);
                }),
                x);
  }
}

TEST(Exchange, LocalSgdAveragesEveryHSteps) {
  constexpr int kEvery = 3;
  std::vector<Vec> x(kRanks, initial());
  for (int step = 1; step <= kSteps; ++step) {
    for (int k = 0; k < kRanks; ++k) add(x[k], -kLr, gradient(x[k], k, step));
    if (step % kEvery == 0) x.assign(kRanks, mean(x));
  }
  expect_near(run_real([&](auto rule, const auto& options, Group& group, const Clock& clock) {
                return std::make_unique<LocalSgd>(quadratic, rule, options, kEvery, group, clock);
              }),
              mean(x));
}

TEST(Exchange, ParallelSgdAverages) {
  for (const int every : {5, kSteps}) {  // iterative mixing; Zinkevich's single combination
    std::vector<Vec> x(kRanks, initial());
    for (int step = 1; step <= kSteps; ++step) {
      for (int k = 0; k < kRanks; ++k) add(x[k], -kLr, gradient(x[k], k, step));
      if (step % every == 0) x.assign(kRanks, mean(x));
    }
    expect_near(run_real([&](auto rule, const auto& options, Group& group, const Clock& clock) {
                  return std::make_unique<ParallelSgd>(quadratic, rule, options, every, Combine::kAverage,
                                                       group, clock);
                }),
                mean(x));
  }
}

TEST(Exchange, ParallelSgdTakesTheBest) {
  constexpr int kEvery = 5;
  std::vector<Vec> x(kRanks, initial());
  int best = 0;
  for (int step = 1; step <= kSteps; ++step) {
    for (int k = 0; k < kRanks; ++k) add(x[k], -kLr, gradient(x[k], k, step));
    if (step % kEvery != 0) continue;
    const auto total = [&](int candidate) {
      double sum = 0;
      for (int k = 0; k < kRanks; ++k) sum += loss(x[candidate], k, step);
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
  expect_near(
      run_real(
          [&](auto rule, const auto& options, Group& group, const Clock& clock) {
            return std::make_unique<ParallelSgd>(quadratic, rule, options, kEvery, Combine::kBest, group,
                                                 clock);
          },
          [](Strategy& s) { return Vec{dynamic_cast<ParallelSgd&>(s).fingerprint().at("combines")}; }),
      simulated);
}

TEST(Exchange, AdmmFollowsBoydsEquations) {
  constexpr int kEvery = 4;
  for (const bool adaptive : {false, true}) {
    double rho = 0.5, primal = 0, dual = 0;
    const Vec zero(kDim, 0);
    std::vector<Vec> x(kRanks, initial()), u(kRanks, zero);
    Vec z = initial();
    for (int step = 1; step <= kSteps; ++step) {
      for (int k = 0; k < kRanks; ++k) {
        Vec g = gradient(x[k], k, step);
        add(g, rho, x[k]);
        add(g, -rho, z);
        add(g, rho, u[k]);
        add(x[k], -kLr, g);
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
                                                    AdmmOptions{kEvery, 0.5, adaptive}, group, clock);
                    },
                    [](Strategy& s) {
                      const Fingerprint p = dynamic_cast<Admm&>(s).fingerprint();
                      return Vec{p.at("primal_residual"), p.at("dual_residual"), p.at("rho")};
                    }),
                simulated);
  }
}

TEST(Exchange, GossipMixesWithItsNeighbours) {
  for (const GossipGraph graph : {GossipGraph::kRing, GossipGraph::kExponential}) {
    std::vector<Vec> x(kRanks, initial());
    for (int step = 1; step <= kSteps; ++step) {
      std::vector<Vec> next(kRanks, Vec(kDim, 0));
      for (int i = 0; i < kRanks; ++i) {
        const std::vector<int> heard = graph == GossipGraph::kRing
                                           ? std::vector<int>{(i + 1) % 4, i, (i + 3) % 4}
                                           : std::vector<int>{i, (i + 3) % 4, (i + 2) % 4};
        for (const int j : heard) add(next[i], 1.0 / 3, x[j]);
        add(next[i], -kLr, gradient(x[i], i, step));
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
            [](Strategy& s) { return Vec{dynamic_cast<Gossip&>(s).fingerprint().at("disagreement")}; }),
        simulated);
  }
}

// With a codec: what a rank has moved since the last round travels, and what the message lacks is added to the next one.
TEST(Exchange, LocalSgdMovesByTheMeanOfTheMessages) {
  constexpr int kEvery = 4;
  using Row = std::vector<float>;
  for (const std::string word : {"1bit", "prune:keep=0.4", "bf16"}) {
    const CodecSpec spec = parse_codec(word);
    const auto codec = make_codec(spec, {{1, kDim, 64 - kDim}});
    Row z(64, 0);
    const Vec first = initial();
    std::copy(first.begin(), first.end(), z.begin());
    std::vector<Row> x(kRanks, z), residual(kRanks, Row(64, 0));
    for (int step = 1; step <= kSteps; ++step) {
      for (int k = 0; k < kRanks; ++k) {
        const Vec g = gradient(Vec(x[k].begin(), x[k].begin() + kDim), k, step);
        for (int d = 0; d < kDim; ++d) x[k][d] -= static_cast<float>(kLr * g[d]);
      }
      if (step % kEvery != 0) continue;
      Row moved(64, 0);
      for (int k = 0; k < kRanks; ++k) {
        Row v(64, 0), decoded(64, 0);
        for (int d = 0; d < kDim; ++d) v[d] = x[k][d] - z[d] + residual[k][d];
        std::vector<std::byte> message(codec->encoded_bytes(64));
        message.resize(codec->encode(v, message));
        codec->decode(message, decoded);
        for (int d = 0; d < kDim; ++d) {
          if (spec.error_feedback) residual[k][d] = v[d] - decoded[d];
          moved[d] += decoded[d] / kRanks;
        }
      }
      for (int d = 0; d < kDim; ++d) z[d] += moved[d];
      x.assign(kRanks, z);
    }
    const Vec real = run_real(
        [&](auto rule, FlatReplicaOptions options, Group& group, const Clock& clock) {
          options.master = options.working = at::kFloat;
          return std::make_unique<LocalSgd>(quadratic_fp32, rule, options, kEvery, group, clock, spec);
        },
        {}, at::kFloat);
    ASSERT_EQ(real.size(), static_cast<size_t>(kDim)) << word;
    // bf16 rounds deltas that fp32 arithmetic in another order may have put on the other side.
    for (int d = 0; d < kDim; ++d)
      EXPECT_NEAR(real[d], z[d], word == "bf16" ? 1e-3 : 2e-5) << word << ", number " << d;
  }
}

// Encoded gradients with error feedback: the mean of what the messages say is applied, what they lack is added next time.
TEST(Exchange, CompressedSgdAppliesTheMeanOfTheMessages) {
  for (const std::string word : {"1bit", "int8", "prune:keep=0.4", "lowrank:form=pca,rank=1,feedback=on"}) {
    const CodecSpec spec = parse_codec(word);
    const std::vector<TensorShape> shapes = {{1, kDim, 64 - kDim}};
    const auto codec = make_codec(spec, shapes);
    std::vector<float> x(64, 0);
    const Vec first = initial();
    std::copy(first.begin(), first.end(), x.begin());
    std::vector<std::vector<float>> residual(kRanks, std::vector<float>(64, 0));
    for (int step = 1; step <= kSteps; ++step) {
      std::vector<float> sum(64, 0);
      for (int k = 0; k < kRanks; ++k) {
        const Vec g = gradient(Vec(x.begin(), x.begin() + kDim), k, step);
        std::vector<float> v(64, 0), decoded(64, 0);
        for (int d = 0; d < kDim; ++d) v[d] = static_cast<float>(g[d]) + residual[k][d];
        std::vector<std::byte> message(codec->encoded_bytes(64));
        message.resize(codec->encode(v, message));
        codec->decode(message, decoded);
        for (int d = 0; d < kDim; ++d) {
          if (spec.error_feedback) residual[k][d] = v[d] - decoded[d];
          sum[d] += decoded[d];
        }
      }
      for (int d = 0; d < kDim; ++d) x[d] -= static_cast<float>(kLr) * sum[d] / kRanks;
    }
    const Vec real = run_real(
        [&](auto rule, FlatReplicaOptions options, Group& group, const Clock& clock) {
          options.master = options.working = at::kFloat;
          return std::make_unique<CompressedSgd>(quadratic_fp32, rule, options, spec, group, clock);
        },
        {}, at::kFloat);
    ASSERT_EQ(real.size(), static_cast<size_t>(kDim)) << word;
    for (int d = 0; d < kDim; ++d) EXPECT_NEAR(real[d], x[d], 2e-5) << word << ", number " << d;
  }
}

// The disagreement of `size` processes before and after each of `rounds` mixing rounds, gradients off.
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
    for (int step = 1; step <= rounds + 1; ++step) {  // the first step parts the ranks
      gossip.begin_step({step, step == 1 ? kLr : 0, false});
      gossip.forward_backward(batch(group.rank(), 1));
      gossip.update();
      found.push_back(gossip.fingerprint().at("disagreement"));
    }
    return found;
  });
  return of_ranks[0];
}

TEST(Exchange, EightProcessesOfGossipContractAsTheoryHasIt) {
  constexpr int kFrom = 14, kTo = 24;  // until then what shrinks faster has gone
  for (const auto& [graph, rate] :
       {std::pair(GossipGraph::kRing, 0.805), std::pair(GossipGraph::kExponential, 0.5)}) {
    const Vec d = disagreements(graph, 8, kTo);
    ASSERT_EQ(d.size(), kTo + 1u);
    EXPECT_GT(d[0], 1e-3);
    EXPECT_NEAR(std::pow(d[kTo] / d[kFrom], 1.0 / (kTo - kFrom)), rate, 0.05 * rate);
  }
}

// With gradients off the disagreement shrinks by |λ₂| of the mixing matrix a round.
TEST(Exchange, GossipContractsByTheSecondEigenvalue) {
  EXPECT_NEAR(second_eigenvalue(mixing_matrix(GossipGraph::kRing, 8), 8), 0.805, 5e-4);
  EXPECT_NEAR(second_eigenvalue(mixing_matrix(GossipGraph::kExponential, 8), 8), 0.5, 1e-12);
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
