// ZeRO stages 1 and 2 with a codec, on real processes, compared with a naive simulation in one process. The
// simulation computes each rank's gradient, encodes its parts by the naive references of the codecs, and
// updates whole parameters in fp64.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "starling/base/error.h"
#include "starling/codec/codec_reference.h"
#include "starling/parallel/zero/sharded_optimizer.h"
#include "starling/parallel/zero/zero.h"
#include "starling/torch_testing/tensor_difference.h"
#include "starling/torch_testing/torch_group_processes.h"

namespace starling {
namespace {

using Named = std::map<std::string, at::Tensor>;

constexpr int64_t kBatch = 12, kInputs = 20, kClasses = 10;
constexpr double kLr = 0.05, kMomentum = 0.9;
constexpr int kSteps = 5;
constexpr size_t kAlign = 64;  // elements, at which each parameter begins

ModelFactory small() {
  ModelSpec spec;
  spec.name = "mlp";
  spec.widths = {kInputs, 24, kClasses};
  return zoo_model(spec, {{kInputs}, kClasses, false});
}

// A rank's samples of a step.
Batch batch_of(int64_t step, int rank, int ranks) {
  torch::manual_seed(100 + step);
  const at::Tensor input = torch::randn({kBatch, kInputs}), target = torch::randint(kClasses, {kBatch});
  const int64_t n = kBatch / ranks;
  return {input.narrow(0, rank * n, n), target.narrow(0, rank * n, n)};
}

CodecSpec spec_of(const std::string& word) {
  CodecSpec spec = parse_codec(word);
  spec.seed = 7;
  spec.momentum_correction = false;
  return spec;
}

OptimizerSpec sgd(double momentum) {
  OptimizerSpec spec;
  spec.momentum = momentum;
  return spec;
}

// Returns what a message of the codec says about `v`, from the definition of the codec.
Values told(const CodecSpec& spec, const Values& v, const std::vector<TensorShape>& shapes) {
  switch (spec.kind) {
    case CodecKind::kFp16:
      return fp16_reference(v);
    case CodecKind::kBf16:
      return bf16_reference(v);
    case CodecKind::kInt8:
      return int8_reference(v, spec.block, shapes);
    case CodecKind::kOneBit:
      return one_bit_reference(v, spec.block, shapes);
    case CodecKind::kThreshold:
      return threshold_reference(v, static_cast<float>(spec.tau));
    default:
      return prune_reference(v, static_cast<size_t>(std::ceil(spec.keep * static_cast<double>(v.size()))));
  }
}

// A range of parameters that is reduced at once: where each of them lies, and how it is cut.
struct RangeReference {
  std::vector<size_t> parameters, offset;
  size_t share = 0;
};

// Lays parameters out one after another. Each begins at a multiple of kAlign, and the range is a multiple of
// `multiple`.
RangeReference range_reference(const std::vector<NamedTensor>& all, std::vector<size_t> parameters,
                               size_t ranks, size_t multiple) {
  RangeReference range{std::move(parameters), {}, 0};
  size_t end = 0;
  for (const size_t i : range.parameters) {
    range.offset.push_back(end);
    const auto size = static_cast<size_t>(all[i].tensor.numel());
    end += (size + kAlign - 1) / kAlign * kAlign;
  }
  range.share = (end + multiple - 1) / multiple * multiple / ranks;
  return range;
}

// Returns the shapes of the elements [begin, end) of a range, element by element.
std::vector<TensorShape> shapes_reference(const std::vector<NamedTensor>& all, const RangeReference& range,
                                          size_t begin, size_t end) {
  std::vector<TensorShape> shapes;
  size_t last = range.parameters.size();
  for (size_t at = begin; at < end; ++at) {
    size_t p = range.parameters.size() - 1;
    while (range.offset[p] > at) --p;
    if (p != last) shapes.push_back({1, 0, 0});
    last = p;
    const auto size = static_cast<size_t>(all[range.parameters[p]].tensor.numel());
    ++(at < range.offset[p] + size ? shapes.back().cols : shapes.back().padding);
  }
  return shapes;
}

struct Simulation {
  int ranks = 2;
  CodecSpec codec;
  bool buckets = true;  // two buckets of ZeRO, or one range in the order of the module
  double momentum = kMomentum;
  double clip = 0;
};

// Returns the gradient of each rank in a step, by parameter.
std::vector<std::vector<at::Tensor>> gradients_of_ranks(Replica& replica, int64_t step, int ranks) {
  std::vector<std::vector<at::Tensor>> gradients;
  for (int k = 0; k < ranks; ++k) {
    for (NamedTensor& t : replica.parameters) t.tensor.mutable_grad().reset();
    const Batch batch = batch_of(step, k, ranks);
    replica.model.loss(replica.model.forward(batch.input), batch.target).backward();
    gradients.emplace_back();
    for (NamedTensor& t : replica.parameters) gradients.back().push_back(t.tensor.grad().clone());
  }
  return gradients;
}

// Returns the mean of a range over the ranks in fp64, by the equations of coded_reduce_scatter.h. Updates the
// residual of each rank.
std::vector<double> mean_of_range(const CodecSpec& codec, const std::vector<NamedTensor>& all,
                                  const RangeReference& range,
                                  const std::vector<std::vector<at::Tensor>>& gradients,
                                  std::vector<Values>& residuals) {
  const size_t p = gradients.size();
  std::vector<double> mean(range.share * p, 0);
  for (size_t k = 0; k < p; ++k) {
    Values flat(range.share * p, 0.0f);
    for (size_t i = 0; i < range.parameters.size(); ++i) {
      const at::Tensor g = gradients[k][range.parameters[i]].contiguous();
      std::copy_n(g.data_ptr<float>(), g.numel(), flat.begin() + static_cast<int64_t>(range.offset[i]));
    }
    Values& e = residuals[k];
    for (size_t begin = 0; begin < flat.size(); begin += range.share) {
      Values part(flat.begin() + static_cast<int64_t>(begin),
                  flat.begin() + static_cast<int64_t>(begin + range.share));
      for (size_t i = 0; i < part.size(); ++i) part[i] += e[begin + i];
      const Values sent = told(codec, part, shapes_reference(all, range, begin, begin + range.share));
      for (size_t i = 0; i < part.size(); ++i) {
        if (codec.error_feedback) e[begin + i] = part[i] - sent[i];
        mean[begin + i] += static_cast<double>(sent[i]) / static_cast<double>(p);
      }
    }
  }
  return mean;
}

// Returns the parameters after kSteps steps. The momentum is in fp64.
Named simulate(const Simulation& of) {
  const auto p = static_cast<size_t>(of.ranks);
  Replica replica = make_replica(small(), at::kFloat, 0);
  std::vector<NamedTensor>& all = replica.parameters;
  std::vector<RangeReference> ranges;
  if (of.buckets) {  // a bucket of 1,000 bytes ends behind the second layer
    ranges = {range_reference(all, {3, 2}, p, p * kAlign), range_reference(all, {1, 0}, p, p * kAlign)};
  } else {
    ranges = {range_reference(all, {0, 1, 2, 3}, p, p)};
  }
  std::vector<std::vector<Values>> residuals;
  for (const RangeReference& range : ranges) residuals.emplace_back(p, Values(range.share * p, 0.0f));
  std::vector<at::Tensor> velocity, means(all.size());
  for (const NamedTensor& t : all) velocity.push_back(torch::zeros_like(t.tensor.detach()).to(at::kDouble));
  for (int step = 1; step <= kSteps; ++step) {
    const auto gradients = gradients_of_ranks(replica, step, of.ranks);
    const at::NoGradGuard no_grad;
    double squares = 0;
    for (size_t n = 0; n < ranges.size(); ++n) {
      const std::vector<double> mean = mean_of_range(of.codec, all, ranges[n], gradients, residuals[n]);
      for (size_t i = 0; i < ranges[n].parameters.size(); ++i) {
        const at::Tensor& like = all[ranges[n].parameters[i]].tensor;
        at::Tensor& of_parameter = means[ranges[n].parameters[i]];
        const auto begin = static_cast<int64_t>(ranges[n].offset[i]);
        of_parameter = torch::tensor(mean, at::kDouble).narrow(0, begin, like.numel()).view(like.sizes());
        squares += of_parameter.square().sum().item<double>();
      }
    }
    const double norm = std::sqrt(squares);
    const double scale = of.clip > 0 && norm > of.clip ? of.clip / (norm + 1e-6) : 1;
    for (size_t i = 0; i < all.size(); ++i) {
      velocity[i] = of.momentum * velocity[i] + scale * means[i];
      all[i].tensor.copy_((all[i].tensor.to(at::kDouble) - kLr * velocity[i]).to(at::kFloat));
    }
  }
  Named result;
  for (const NamedTensor& t : all) result[t.name] = t.tensor.detach().clone();
  return result;
}

ZeroOptions options(int stage, const std::optional<CodecSpec>& codec, double clip = 0) {
  ZeroOptions result;
  result.stage = stage;
  result.bucket_bytes = 1000;
  result.codec = codec;
  result.replica.clip_norm = clip;
  return result;
}

template <typename Trained>
void train(Trained& trained, Group& group, int first, int last) {
  for (int64_t step = first; step <= last; ++step) {
    trained.begin_step({step, kLr, false});
    trained.forward_backward(batch_of(step, group.rank(), group.size()));
    trained.update();
  }
}

Named parameters_of(Strategy& strategy) {
  strategy.consensus();
  Named result;
  for (const NamedTensor& p : strategy.evaluated().parameters) result[p.name] = p.tensor.detach().clone();
  return result;
}

// The number of elements that differ, of all parameters.
double unequal(const Named& a, const Named& b) {
  double count = a.size() == b.size() ? 0 : 1;
  for (const auto& [name, tensor] : a) count += at::ne(tensor, b.at(name)).sum().item<double>();
  return count;
}

// Both stages make the updates of the equations, and their bits are equal.
TEST(ZeroCodec, MakesTheUpdatesOfTheEquations) {
  const std::vector<std::pair<std::string, double>> cases = {
      {"fp16", 0},           {"bf16", 0},   {"int8", 0.3},         {"int8:feedback=on,block=64", 0},
      {"1bit:block=128", 0}, {"1bit", 0.3}, {"prune:keep=0.1", 0}, {"threshold:tau=0.01", 0}};
  for (const int ranks : {2, 3, 4}) {
    const auto body = [&](Group& group, Store&) {
      const SystemClock clock;
      Numbers result;
      for (const auto& [word, clip] : cases) {
        const CodecSpec codec = spec_of(word);
        Named of_stage[2];
        for (int stage = 1; stage <= 2; ++stage) {
          Zero zero(small(), make_update_rule(sgd(kMomentum)), options(stage, codec, clip), group, clock);
          train(zero, group, 1, kSteps);
          of_stage[stage - 1] = parameters_of(zero);
        }
        result[word + "_stages"] = unequal(of_stage[0], of_stage[1]);
        if (group.rank() != 0) continue;
        const Named expected = simulate({.ranks = ranks, .codec = codec, .clip = clip});
        result[word] = largest_difference(of_stage[0], expected).difference;
      }
      return result;
    };
    const std::vector<Numbers> all = numbers_of_processes(ranks, body);
    for (const auto& [word, clip] : cases) {
      EXPECT_LE(all[0].at(word), 2e-5) << word << " " << ranks;
      for (const Numbers& rank : all) EXPECT_EQ(rank.at(word + "_stages"), 0) << word << " " << ranks;
    }
  }
}

// The reference is able to tell the codecs apart.
TEST(ZeroCodec, TheEquationsDependOnTheResidual) {
  const Named with = simulate({.codec = spec_of("1bit")});
  EXPECT_GE(largest_difference(simulate({.codec = spec_of("1bit:feedback=off")}), with).difference, 1e-3);
  EXPECT_GE(largest_difference(simulate({.ranks = 3, .codec = spec_of("1bit")}), with).difference, 1e-3);
}

// Without a codec nothing is encoded: the updates have the bits of the codec "none", which sends fp32. With
// two ranks a mean in fp32 that is rounded to bf16 has the bits of half a sum in bf16.
TEST(ZeroCodec, TheCodecNoneHasTheBitsOfNoCodec) {
  for (const at::ScalarType working : {at::kFloat, at::kBFloat16}) {
    const std::vector<Numbers> all = numbers_of_processes(2, [&](Group& group, Store&) {
      const SystemClock clock;
      Numbers result;
      for (int stage = 1; stage <= 2; ++stage) {
        Named trained[2];
        for (const bool coded : {false, true}) {
          ZeroOptions o = options(stage, coded ? std::optional<CodecSpec>(spec_of("none")) : std::nullopt);
          o.replica.working = working;
          Zero zero(small(), make_update_rule(sgd(kMomentum)), o, group, clock);
          train(zero, group, 1, kSteps);
          trained[coded ? 1 : 0] = parameters_of(zero);
          result[coded ? "coded" : "plain"] =
              static_cast<double>(zero.strategy_stats().count("message_bytes"));
        }
        result["unequal" + std::to_string(stage)] = unequal(trained[0], trained[1]);
      }
      return result;
    });
    for (const Numbers& rank : all)
      EXPECT_EQ(rank, (Numbers{{"plain", 0}, {"coded", 1}, {"unequal1", 0}, {"unequal2", 0}})) << working;
  }
}

// A random codec draws anew in each step. If it sent the values of equal positions in all steps, only a tenth
// of the parameters would move.
TEST(ZeroCodec, DrawsAnewInEachStep) {
  const std::vector<Numbers> all = numbers_of_processes(2, [](Group& group, Store&) {
    const SystemClock clock;
    Zero zero(small(), make_update_rule(sgd(0)), options(1, spec_of("random-k:keep=0.1,feedback=off")), group,
              clock);
    const Named before = parameters_of(zero);
    train(zero, group, 1, 10);
    double count = 0;
    for (const auto& item : before) count += static_cast<double>(item.second.numel());
    return Numbers{{"moved", unequal(before, parameters_of(zero)) / count}};
  });
  EXPECT_GT(all[0].at("moved"), 0.4);  // at most 1 - 0.9^10 = 0.65: some gradients are 0
}

// Stage 1 adds the gradients of the parts of a batch before it encodes them.
TEST(ZeroCodec, PartsOfABatchAreEncodedOnce) {
  const std::vector<Numbers> all = numbers_of_processes(2, [](Group& group, Store&) {
    const SystemClock clock;
    Numbers result;
    Named trained[2];
    for (const int parts : {1, 3}) {
      ZeroOptions by_parts = options(1, spec_of("bf16"));
      by_parts.replica.accumulate = parts;
      Zero zero(small(), make_update_rule(sgd(kMomentum)), by_parts, group, clock);
      train(zero, group, 1, kSteps);
      trained[parts / 3] = parameters_of(zero);
      result["bytes" + std::to_string(parts)] = zero.strategy_stats().at("message_bytes");
    }
    result["difference"] = largest_difference(trained[1], trained[0]).difference;
    return result;
  });
  EXPECT_EQ(all[0].at("bytes1"), all[0].at("bytes3"));
  EXPECT_LE(all[0].at("difference"), 1e-3);  // bf16 may round a sum of another order to another value
}

// Copies the tensors of rank 0 to all ranks.
void share(Group& group, Named& tensors) {
  std::string names;
  for (const auto& [name, tensor] : tensors) names += name + "\n";
  std::vector<int64_t> length = {static_cast<int64_t>(names.size())};
  broadcast(group, length.data(), 1, DataType::kInt64, 0);
  names.resize(static_cast<size_t>(length[0]));
  broadcast(group, names.data(), names.size(), DataType::kUint8, 0);
  for (size_t begin = 0; begin < names.size(); begin = names.find('\n', begin) + 1) {
    const std::string name = names.substr(begin, names.find('\n', begin) - begin);
    std::vector<int64_t> sizes(5, -1);  // the number of dimensions, and at most four sizes
    if (group.rank() == 0) {
      sizes[0] = tensors.at(name).dim();
      std::ranges::copy(tensors.at(name).sizes(), sizes.begin() + 1);
    }
    broadcast(group, sizes.data(), sizes.size(), DataType::kInt64, 0);
    if (group.rank() != 0)
      tensors[name] = torch::empty(at::IntArrayRef(sizes).slice(1, static_cast<size_t>(sizes[0])));
    broadcast(group, tensors.at(name).data_ptr(), static_cast<size_t>(tensors.at(name).numel()),
              DataType::kFp32, 0);
  }
}

// A run that loads a state in the middle ends with the bits of a run that does not.
TEST(ZeroCodec, ResumesBitForBit) {
  const std::vector<std::string> words = {"1bit",
                                          "prune+int8:keep=0.1",
                                          "dgc:keep=0.01,warmup=4",
                                          "random-k",
                                          "qsgd",
                                          "signsgd",
                                          "lowrank",
                                          "lowrank+fp16",
                                          "fp16"};
  const std::vector<Numbers> all = numbers_of_processes(3, [&](Group& group, Store&) {
    const SystemClock clock;
    Numbers result;
    for (const std::string& word : words) {
      const auto make = [&](int stage) {
        return std::make_unique<Zero>(small(), make_update_rule(sgd(kMomentum)),
                                      options(stage, spec_of(word)), group, clock);
      };
      const auto whole = make(1), half = make(1), rest = make(2);
      train(*whole, group, 1, 6);
      train(*half, group, 1, 3);
      StrategyState state = half->state();
      share(group, state.parameters);
      share(group, state.optimizer);
      state.step = 3;
      result[word + "_kept"] = static_cast<double>(state.optimizer.count("values@2/fc1.weight"));
      rest->load_state(state);
      train(*rest, group, 4, 6);
      result[word] = unequal(parameters_of(*whole), parameters_of(*rest));
    }
    return result;
  });
  for (const Numbers& rank : all) {
    for (const std::string& word : words) {
      EXPECT_EQ(rank.at(word), 0) << word;
      const bool keeps = word != "qsgd" && word != "signsgd" && word != "fp16";
      EXPECT_EQ(rank.at(word + "_kept"), keeps ? 1 : 0) << word;
    }
  }
}

TEST(ZeroCodec, NamesTheResidualThatACheckpointLacks) {
  const std::vector<Numbers> all = numbers_of_processes(1, [](Group& group, Store&) {
    const SystemClock clock;
    Zero zero(small(), make_update_rule(sgd(kMomentum)), options(1, spec_of("1bit")), group, clock);
    train(zero, group, 1, 1);
    StrategyState state = zero.state();
    zero.load_state(state);
    at::Tensor& values = state.optimizer.at("values@0/fc1.weight");
    Numbers found;
    const auto refuses = [&](const std::string& words) {
      try {
        zero.load_state(state);
      } catch (const Error& error) {
        return std::string(error.what()).find(words) != std::string::npos ? 1.0 : 0.0;
      }
      return 0.0;
    };
    values = values.narrow(0, 0, values.numel() - 1).clone();
    found["shorter"] = refuses("train.bucket_mb");
    state.optimizer.erase("values@0/fc1.weight");
    found["missing"] = refuses("values@0/fc1.weight");
    state.optimizer.clear();  // weights alone: the optimizer and the codec begin anew
    zero.load_state(state);
    return found;
  });
  EXPECT_EQ(all[0], (Numbers{{"shorter", 1}, {"missing", 1}}));
}

// Plain gradient descent of the program, which updates each element by itself.
class Descent final : public OwnOptimizer {
 public:
  explicit Descent(const std::vector<NamedTensor>& parameters) {
    for (const NamedTensor& p : parameters) updated_.push_back(p.tensor);
  }
  void step() override {
    const at::NoGradGuard no_grad;
    for (at::Tensor& t : updated_)
      if (t.defined() && t.grad().defined()) t.sub_(t.grad(), kLr);
  }
  double lr() const override { return kLr; }
  bool shard(const std::vector<ParameterPart>& parts) override {
    updated_.clear();
    for (const ParameterPart& p : parts) updated_.push_back(p.part);
    return true;
  }
  at::Tensor state() override { return at::zeros({1}, at::kByte); }
  void load_state(const at::Tensor& /*bytes*/) override {}

 private:
  std::vector<at::Tensor> updated_;
};

// With an optimizer of the program, all parameters are one range.
TEST(ZeroCodec, ShardsTheOptimizerOfAProgram) {
  const std::vector<std::string> words = {"fp16", "int8:block=64", "1bit", "prune:keep=0.1"};
  for (const int ranks : {2, 3}) {
    const std::vector<Numbers> all = numbers_of_processes(ranks, [&](Group& group, Store&) {
      const SystemClock clock;
      Numbers result;
      for (const std::string& word : words) {
        const CodecSpec codec = spec_of(word);
        const Named expected = simulate({.ranks = ranks, .codec = codec, .buckets = false, .momentum = 0});
        for (const bool releases : {false, true}) {
          FlatReplicaOptions own;
          own.rank = group.rank();
          own.releases_gradients = releases;
          own.optimizer = [](const std::vector<NamedTensor>& p) { return std::make_shared<Descent>(p); };
          ShardedOptimizer sharded(small(), make_update_rule(sgd(0)), own, &codec, group, clock);
          train(sharded, group, 1, kSteps);
          const std::string name = word + (releases ? "_2" : "_1");
          result[name] = largest_difference(parameters_of(sharded), expected).difference;
          result[name + "_values"] =
              static_cast<double>(sharded.state().optimizer.count("values@1/fc1.weight"));
          result[name + "_bytes"] = sharded.strategy_stats().at("message_bytes");
        }
      }
      return result;
    });
    for (const std::string& word : words) {
      for (const char* stage : {"_1", "_2"}) {
        for (const Numbers& rank : all) EXPECT_LE(rank.at(word + stage), 2e-5) << word << stage << ranks;
        EXPECT_EQ(all[0].at(word + stage + "_values"), parse_codec(word).error_feedback ? 1 : 0) << word;
      }
    }
    // 480, 24, 240 and 10 elements fill 512, 64, 256 and 64.
    const double share = std::ceil(896.0 / ranks);
    for (const char* stage : {"_1", "_2"})
      EXPECT_EQ(all[0].at(std::string("fp16") + stage + "_bytes"), (ranks - 1) * 2 * share);
  }
}

// The gradients travel as messages, and the parameters as they are.
TEST(ZeroCodec, MovesWhatTheFormulaSays) {
  constexpr int kRanks = 4;
  const std::vector<std::string> words = {"int8", "fp16", "1bit", "random-k", "prune:keep=0.1", "lowrank"};
  const std::vector<Numbers> all = numbers_of_processes(kRanks, [&](Group& group, Store&) {
    const SystemClock clock;
    ModelSpec spec;
    spec.name = "mlp";
    spec.widths = {256, 256, 256};
    const ModelFactory factory = zoo_model(spec, {{256}, 256, false});
    Numbers result;
    for (const std::string& word : words) {
      for (const bool mixed : {false, true}) {
        ZeroOptions o = options(mixed ? 2 : 1, spec_of(word));
        o.bucket_bytes = 40'000;
        o.replica.working = mixed ? at::kBFloat16 : at::kFloat;
        Zero zero(factory, make_update_rule(sgd(kMomentum)), o, group, clock);
        for (int64_t step = 1; step <= 2; ++step) {
          torch::manual_seed(step);
          zero.begin_step({step, kLr, false});
          zero.forward_backward({torch::randn({3, 256}), torch::randint(256, {3})});
          zero.update();
        }
        for (const auto& [name, value] : zero.strategy_stats())
          result[word + (mixed ? "_mixed_" : "_") + name] = value;
      }
    }
    return result;
  });
  const double psi = 2 * (256 * 256 + 256), n = kRanks;
  // A share of a bucket has 16,448 elements: 65 blocks of 256, also where a vector lies before the matrix.
  const double int8 = (n - 1) * 2 * (16'448 + 4 * 65), fp16 = (n - 1) * 2 * 2 * 16'448;
  for (const char* kind : {"_", "_mixed_"}) {
    const double element = kind == std::string("_") ? 4 : 2;
    const auto value = [&](const std::string& word, const char* name) {
      return all[0].at(word + kind + name);
    };
    EXPECT_EQ(value("int8", "message_bytes"), int8);
    EXPECT_EQ(value("fp16", "message_bytes"), fp16);
    for (const std::string& word : words) {
      const double bytes = value(word, "message_bytes"), gathered = psi * (n - 1) / n;
      EXPECT_NEAR(value(word, "compression"), element * gathered / bytes, 1e-9) << word << kind;
      const double received = value(word, "traffic_elements"), formula = value(word, "traffic_formula");
      if (word == "prune:keep=0.1") {  // the lists of the ranks differ in length
        EXPECT_LE(received, formula) << kind;
        continue;
      }
      EXPECT_NEAR(received, gathered + bytes / element, 1e-6) << word << kind;
      if (word == "lowrank") {  // the arrays are filled up to equal parts
        EXPECT_NEAR(received, formula, 1e-3 * formula) << kind;
      } else {
        EXPECT_NEAR(received, formula, 1e-6) << word << kind;
      }
    }
    EXPECT_EQ(value("1bit", "codec_bytes"), 4 * (psi + 2 * 3));  // residuals, and the heads of both buckets
    EXPECT_EQ(value("int8", "codec_bytes"), 0);
    EXPECT_GT(value("1bit", "residual_norm"), 0);
    EXPECT_EQ(all[0].count(std::string("int8") + kind + "residual_norm"), 0u);
  }
}

}  // namespace
}  // namespace starling
