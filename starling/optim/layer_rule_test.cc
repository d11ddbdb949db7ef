#include "starling/optim/layer_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "starling/base/bfloat16.h"
#include "starling/base/error.h"
#include "starling/optim/update_rule_reference.h"

namespace starling {
namespace {

using Values = std::vector<double>;

OptimizerSpec spec_of(const std::string& name) {
  OptimizerSpec spec;
  spec.name = name;
  spec.weight_decay = 0.05;
  spec.trust = 0.01;
  spec.exempt_vectors = true;
  return spec;
}

// Parameters, gradients and states of three tensors. The last one is a vector.
struct Range {
  Values parameter, gradient, states[3];
  std::vector<LayerPart> parts{{0, 1003, 0, false}, {1003, 1500, 1, false}, {1500, 1520, 2, true}};

  Range() {
    std::mt19937_64 random(5);
    std::normal_distribution<double> normal;
    for (Values* values : {&parameter, &gradient, &states[0], &states[1]}) {
      for (size_t i = 0; i < 1520; ++i) values->push_back(normal(random));
    }
    for (double& square : states[1]) square = square * square;
    for (double& value : states[0]) value = std::abs(value);  // a sum of squares, for adagrad
    states[2] = states[1];
  }

  // The buffers of the whole range, in place.
  struct Args {
    const double* gradients[1];
    const double* in[3];
    double* out[3];
    UpdateArgs<double, double> all;
  };
  void point(Args& args) {
    args.gradients[0] = gradient.data();
    for (int k = 0; k < 3; ++k) args.in[k] = args.out[k] = states[k].data();
    args.all.gradients = args.gradients;
    args.all.gradient_scale = 0.5;
    args.all.parameter = args.all.parameter_out = parameter.data();
    args.all.state = args.in;
    args.all.state_out = args.out;
    args.all.count = parameter.size();
  }
};

Range expected_range(const OptimizerSpec& spec, int steps) {
  Range range;
  for (int step = 1; step <= steps; ++step) {
    for (const LayerPart& part : range.parts) {
      const double* gradients[] = {range.gradient.data() + part.begin};
      double* out[] = {range.states[0].data() + part.begin, range.states[1].data() + part.begin,
                       range.states[2].data() + part.begin};
      UpdateArgs<double, double> args;
      args.gradients = gradients;
      args.gradient_scale = 0.5;
      args.parameter = args.parameter_out = range.parameter.data() + part.begin;
      args.state = args.state_out = out;
      args.count = part.end - part.begin;
      reference_update(args, spec, 0.1, step, part.vector);
    }
  }
  return range;
}

Values expected_of(const OptimizerSpec& spec, int steps) {
  return expected_range(spec, steps).parameter;
}

double largest_difference(const Values& a, const Values& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    if (!(difference <= largest)) largest = difference;  // also if it is NaN
  }
  return largest;
}

Range updated_by_rule(const OptimizerSpec& spec, int steps) {
  Range range;
  Range::Args args;
  const LayerRule rule(spec);
  for (int step = 1; step <= steps; ++step) {
    range.point(args);
    std::vector<LayerSquares> squares(3);
    rule.add_squares(args.all, range.parts, step, squares);
    EXPECT_TRUE(rule.apply(args.all, range.parts, 0.1, step, squares));
  }
  return range;
}

TEST(LayerRule, EqualsTheReference) {
  for (const char* name : {"lars", "lamb", "sgd", "adam", "adamw", "adagrad"}) {
    const OptimizerSpec spec = spec_of(name);
    EXPECT_LE(largest_difference(updated_by_rule(spec, 3).parameter, expected_of(spec, 3)), 1e-12) << name;
  }
}

TEST(LayerRule, AveragesWholeTensorsAndVectors) {
  for (const char* name : {"lars", "lamb", "adagrad"}) {
    OptimizerSpec spec = spec_of(name);
    spec.ema_decay = 0.7;
    const Range range = updated_by_rule(spec, 3), expected = expected_range(spec, 3);
    const size_t average = std::string(name) == "lamb" ? 2 : 1;
    EXPECT_LE(largest_difference(range.parameter, expected.parameter), 1e-12) << name;
    EXPECT_LE(largest_difference(range.states[average], expected.states[average]), 1e-12) << name;
    EXPECT_GT(largest_difference(range.states[average], expected.parameter), 1e-6) << name;
  }
}

// Exempt vectors move as without weight decay, and all other tensors as with it.
TEST(LayerRule, ExemptVectorsHaveNoDecayWithEveryRule) {
  for (const char* name : {"sgd", "adam", "adamw", "adagrad"}) {
    const OptimizerSpec exempt = spec_of(name);
    OptimizerSpec all = exempt, none = exempt;
    all.exempt_vectors = false;
    none.weight_decay = 0;
    const Values some = updated_by_rule(exempt, 3).parameter, decayed = updated_by_rule(all, 3).parameter;
    const Values free = updated_by_rule(none, 3).parameter;
    const auto part = [](const Values& v, int64_t begin, int64_t end) {
      return Values(v.begin() + begin, v.begin() + end);
    };
    EXPECT_EQ(part(some, 0, 1500), part(decayed, 0, 1500)) << name;
    EXPECT_EQ(part(some, 1500, 1520), part(free, 1500, 1520)) << name;
    EXPECT_NE(part(some, 1500, 1520), part(decayed, 1500, 1520)) << name;
  }
}

// Two ranks hold parts of each tensor. Each adds the squares of the other one to its own.
TEST(LayerRule, PartsOfTensorsMakeTheUpdateOfWholeOnes) {
  for (const char* name : {"lars", "lamb"}) {
    Range range;
    Range::Args args;
    const LayerRule rule(spec_of(name));
    const std::vector<LayerPart> first{{0, 700, 0, false}},
        second{{700, 1003, 0, false}, {1003, 1500, 1, false}, {1500, 1520, 2, true}};
    for (int step = 1; step <= 3; ++step) {
      range.point(args);
      std::vector<LayerSquares> squares(3);
      rule.add_squares(args.all, first, step, squares);
      rule.add_squares(args.all, second, step, squares);
      rule.apply(args.all, first, 0.1, step, squares);
      rule.apply(args.all, second, 0.1, step, squares);
    }
    EXPECT_LE(largest_difference(range.parameter, expected_of(spec_of(name), 3)), 1e-12) << name;
  }
}

TEST(LayerRule, EveryInstructionSetGivesTheSameRate) {
  for (const char* name : {"lars", "lamb"}) {
    Range range;
    Range::Args args;
    range.point(args);
    std::vector<LayerSquares> expected(3);
    LayerRule(spec_of(name), Isa::kBaseline).add_squares(args.all, range.parts, 1, expected);
    for (const Isa isa : supported_isas()) {
      std::vector<LayerSquares> squares(3);
      LayerRule(spec_of(name), isa).add_squares(args.all, range.parts, 1, squares);
      EXPECT_EQ(squares[0].parameter, expected[0].parameter);
      EXPECT_EQ(squares[0].update, expected[0].update);
    }
  }
}

TEST(LayerRule, ATensorOfZerosHasThePlainRate) {
  const LayerRule rule(spec_of("lars"));
  EXPECT_EQ(rule.rate(0.1, {0, 4}), 0.1);
  EXPECT_EQ(rule.rate(0.1, {4, 0}), 0.1);
  EXPECT_DOUBLE_EQ(rule.rate(0.1, {4, 9}), 0.1 * 0.01 * 2 / (3 + 0.05 * 2));
  EXPECT_DOUBLE_EQ(LayerRule(spec_of("lamb")).rate(0.1, {4, 9}), 0.1 * 2 / 3);
}

// The rate of an update of almost 0 would be infinite as fp32, and 0 times infinity is not a number.
TEST(LayerRule, AnUpdateOfAlmostZeroHasThePlainRate) {
  OptimizerSpec spec = spec_of("lars");
  spec.weight_decay = spec.momentum = 0;
  std::vector<float> parameter = {30, 30}, gradient = {4e-40F, 0};
  const float* gradients[] = {gradient.data()};
  UpdateArgs<float, float> args;
  args.gradients = gradients;
  args.parameter = args.parameter_out = parameter.data();
  args.count = 2;
  const std::vector<LayerPart> parts{{0, 2, 0, false}};
  std::vector<LayerSquares> squares{{1800, 1.6e-79}};  // the sums in exact arithmetic
  EXPECT_TRUE(LayerRule(spec).apply(args, parts, 5, 1, squares));
  EXPECT_EQ(parameter, (std::vector<float>{30, 30}));
}

// bf16 gradients of two sources, fp32 parameters and their working copy in bf16. The reference has one range
// for each tensor.
TEST(LayerRule, WorkingCopiesAndSourcesLieAtThePartsPlace) {
  for (const char* name : {"lars", "lamb"}) {
    const Range values;
    const size_t count = values.parameter.size();
    std::vector<float> parameter(values.parameter.begin(), values.parameter.end());
    std::vector<float> first(values.states[0].begin(), values.states[0].end());
    std::vector<float> second(values.states[1].begin(), values.states[1].end());
    std::vector<Bf16> sources[2];
    for (size_t i = 0; i < count; ++i) {
      sources[0].push_back(to_bf16(static_cast<float>(values.gradient[i])));
      sources[1].push_back(to_bf16(static_cast<float>(values.gradient[count - 1 - i])));
    }
    std::vector<float> expected = parameter, expected_first = first, expected_second = second;
    std::vector<Bf16> working(count);
    const Bf16* gradients[] = {sources[0].data(), sources[1].data()};
    const float* in[] = {first.data(), second.data()};
    float* out[] = {first.data(), second.data()};
    UpdateArgs<float, Bf16> args;
    args.gradients = gradients;
    args.sources = 2;
    args.gradient_scale = 0.5;
    args.parameter = args.parameter_out = parameter.data();
    args.bf16_out = working.data();
    args.state = in;
    args.state_out = out;
    args.count = count;
    const LayerRule rule(spec_of(name));
    std::vector<LayerSquares> squares(3);
    rule.add_squares(args, values.parts, 1, squares);
    EXPECT_TRUE(rule.apply(args, values.parts, 0.1, 1, squares));
    for (const LayerPart& part : values.parts) {
      const Bf16* of[] = {sources[0].data() + part.begin, sources[1].data() + part.begin};
      const float* states[] = {expected_first.data() + part.begin, expected_second.data() + part.begin};
      float* states_out[] = {expected_first.data() + part.begin, expected_second.data() + part.begin};
      UpdateArgs<float, Bf16> one = args;
      one.gradients = of;
      one.parameter = one.parameter_out = expected.data() + part.begin;
      one.bf16_out = nullptr;
      one.state = states;
      one.state_out = states_out;
      one.count = part.end - part.begin;
      reference_update(one, spec_of(name), 0.1, 1, part.vector);
    }
    for (size_t i = 0; i < count; ++i) {
      ASSERT_NEAR(parameter[i], expected[i], 1e-5) << name << " " << i;
      ASSERT_EQ(working[i].bits, to_bf16(parameter[i]).bits) << name << " " << i;
    }
  }
}

TEST(LayerRule, TellsGradientsThatAreNotFinite) {
  Range range;
  range.gradient[1510] = INFINITY;
  Range::Args args;
  range.point(args);
  const LayerRule rule(spec_of("lamb"));
  std::vector<LayerSquares> squares(3);
  rule.add_squares(args.all, range.parts, 1, squares);
  EXPECT_FALSE(rule.apply(args.all, range.parts, 0.1, 1, squares));
}

}  // namespace
}  // namespace starling
