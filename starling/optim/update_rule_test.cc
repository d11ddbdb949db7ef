#include "starling/optim/update_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "starling/base/error.h"
#include "starling/optim/finite.h"
#include "starling/optim/update_rule_reference.h"

namespace starling {
namespace {

OptimizerSpec spec_of(const std::string& name, double momentum = 0.9, double weight_decay = 0.01) {
  OptimizerSpec spec;
  spec.name = name;
  spec.momentum = momentum;
  spec.weight_decay = weight_decay;
  return spec;
}

std::vector<OptimizerSpec> all_rules() {
  OptimizerSpec nesterov = spec_of("sgd");
  nesterov.nesterov = true;
  std::vector<OptimizerSpec> rules = {spec_of("sgd"),  spec_of("sgd", 0.0), nesterov,
                                      spec_of("adam"), spec_of("adamw"),    spec_of("adagrad")};
  for (const size_t averaged : {0, 1, 4}) {
    rules.push_back(rules[averaged]);
    rules.back().ema_decay = 0.9;
  }
  return rules;
}

float make_gradient(float x, float) {
  return x;
}
double make_gradient(float x, double) {
  return x;
}
Bf16 make_gradient(float x, Bf16) {
  return to_bf16(x);
}

// Parameters, three states and gradient buffers with random content; `lead` unused elements make the data
// unaligned.
template <typename T, typename G>
struct Problem {
  size_t count;
  std::vector<T> w, m, v, a;
  std::vector<std::vector<G>> g;
  std::vector<const G*> g_pointers;

  Problem(size_t n, int sources) : count(n), w(n), m(n), v(n), a(n) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < n; ++i) {
      w[i] = normal(random);
      m[i] = std::abs(0.1f * normal(random));  // a sum of squares, for adagrad
      v[i] = std::abs(0.01f * normal(random));
      a[i] = w[i] + v[i];
    }
    for (int s = 0; s < sources; ++s) {
      g.emplace_back(n);
      for (auto& x : g.back()) x = make_gradient(normal(random), G{});
    }
    for (const auto& x : g) g_pointers.push_back(x.data());
  }
};

template <typename T>
struct Outputs {
  std::vector<T> w, m, v, a;
  std::vector<Bf16> half;
  explicit Outputs(size_t n) : w(n), m(n), v(n), a(n), half(n) {}
};

template <typename T>
void expect_same_bits(const Outputs<T>& a, const Outputs<T>& b) {
  const size_t bytes = a.w.size() * sizeof(T);
  EXPECT_EQ(std::memcmp(a.w.data(), b.w.data(), bytes), 0) << "parameters";
  EXPECT_EQ(std::memcmp(a.m.data(), b.m.data(), bytes), 0) << "first state";
  EXPECT_EQ(std::memcmp(a.v.data(), b.v.data(), bytes), 0) << "second state";
  EXPECT_EQ(std::memcmp(a.a.data(), b.a.data(), bytes), 0) << "third state";
  EXPECT_EQ(std::memcmp(a.half.data(), b.half.data(), a.half.size() * sizeof(Bf16)), 0) << "bf16 copy";
}

// Runs `update(args)` on [begin, end) out of place.
template <typename T, typename G, typename Update>
void run_range(const Problem<T, G>& p, Outputs<T>& out, size_t begin, size_t end, bool stream,
               const Update& update) {
  std::vector<const G*> g;
  for (const G* x : p.g_pointers) g.push_back(x + begin);
  const T* state[] = {p.m.data() + begin, p.v.data() + begin, p.a.data() + begin};
  T* state_out[] = {out.m.data() + begin, out.v.data() + begin, out.a.data() + begin};
  UpdateArgs<T, G> args;
  args.gradients = g.data();
  args.sources = static_cast<int>(g.size());
  args.gradient_scale = 1.0 / static_cast<double>(g.size());
  args.parameter = p.w.data() + begin;
  args.parameter_out = out.w.data() + begin;
  args.bf16_out = out.half.data() + begin;
  args.state = state;
  args.state_out = state_out;
  args.count = end - begin;
  args.stream = stream;
  update(args);
}

template <typename Types>
class UpdateRuleTest : public testing::Test {};

template <typename A, typename B>
struct TypePair {
  using T = A;
  using G = B;
};
using TypePairs = testing::Types<TypePair<float, float>, TypePair<float, Bf16>, TypePair<double, double>>;
TYPED_TEST_SUITE(UpdateRuleTest, TypePairs);

TYPED_TEST(UpdateRuleTest, EqualsTheReference) {
  using T = typename TypeParam::T;
  const double tolerance = 8 * static_cast<double>(std::numeric_limits<T>::epsilon());
  for (const auto& spec : all_rules())
    for (const int sources : {1, 2, 3, 4, 5, 9})
      for (const size_t n : {size_t{0}, size_t{1}, size_t{31}, size_t{2500}, size_t{9001}}) {
        const Problem<T, typename TypeParam::G> p(n, sources);
        Outputs<T> fast(n), slow(n);
        const auto rule = make_update_rule(spec);
        run_range(p, fast, 0, n, false, [&](const auto& a) { rule.apply(a, 0.05, 3); });
        run_range(p, slow, 0, n, false, [&](const auto& a) { reference_update(a, spec, 0.05, 3); });
        for (size_t i = 0; i < n; ++i) {
          ASSERT_NEAR(fast.w[i], slow.w[i], tolerance * (1 + std::abs(slow.w[i])))
              << spec.name << " element " << i;
          ASSERT_NEAR(fast.m[i], slow.m[i], tolerance * (1 + std::abs(slow.m[i])))
              << spec.name << " element " << i;
          ASSERT_NEAR(fast.v[i], slow.v[i], tolerance * (1 + std::abs(slow.v[i])))
              << spec.name << " element " << i;
          ASSERT_NEAR(fast.a[i], slow.a[i], tolerance * (1 + std::abs(slow.a[i])))
              << spec.name << " element " << i;
          ASSERT_EQ(fast.half[i].bits, to_bf16(static_cast<float>(fast.w[i])).bits) << "element " << i;
        }
      }
}

// torch.optim.SGD(nesterov=True): g := g + weight_decay w; b := momentum b + g; w := w - lr (g + momentum b).
TEST(UpdateRule, NesterovMovesAsInTorchWhileTheRateIsConstant) {
  OptimizerSpec spec = spec_of("sgd");
  spec.nesterov = true;
  const UpdateRule rule = make_update_rule(spec);
  double w = 1, change = 0, torch_w = 1, buffer = 0;
  double* const state[] = {&change};
  for (int64_t step = 1; step <= 20; ++step) {
    const double gradient = std::sin(static_cast<double>(step));
    const double* const gradients[] = {&gradient};
    UpdateArgs<double, double> args;
    args.gradients = gradients;
    args.parameter = args.parameter_out = &w;
    args.state = state;
    args.state_out = state;
    args.count = 1;
    rule.apply(args, 0.05, step);
    const double g = gradient + 0.01 * torch_w;
    buffer = 0.9 * buffer + g;
    torch_w -= 0.05 * (g + 0.9 * buffer);
    ASSERT_NEAR(w, torch_w, 1e-14) << step;
  }
  EXPECT_NEAR(change, -0.05 * buffer, 1e-14);
  spec.nesterov = false;
  EXPECT_EQ(make_update_rule(spec).state_names(), rule.state_names());
}

TYPED_TEST(UpdateRuleTest, SplittingTheRangeChangesNoBit) {
  using T = typename TypeParam::T;
  constexpr size_t n = 4099;
  for (const auto& spec : all_rules())
    for (const int sources : {1, 2, 5}) {
      const Problem<T, typename TypeParam::G> p(n, sources);
      const auto rule = make_update_rule(spec);
      const auto update = [&](const auto& a) { rule.apply(a, 0.05, 7); };
      Outputs<T> whole(n), parts(n);
      run_range(p, whole, 0, n, false, update);
      const size_t cuts[] = {0, 1, 4, 17, 1023, 1030, 2077, 4096, n};
      for (size_t c = 0; c + 1 < std::size(cuts); ++c)
        run_range(p, parts, cuts[c], cuts[c + 1], c % 2 == 1, update);
      expect_same_bits(whole, parts);
    }
}

TYPED_TEST(UpdateRuleTest, EveryVectorUnitGivesTheSameBits) {
  using T = typename TypeParam::T;
  constexpr size_t n = 2051;
  for (const auto& spec : all_rules()) {
    const Problem<T, typename TypeParam::G> p(n, 2);
    Outputs<T> expected(n);
    run_range(p, expected, 0, n, false,
              [&](const auto& a) { make_update_rule(spec, Isa::kBaseline).apply(a, 0.05, 2); });
    for (const Isa isa : supported_isas())
      for (const bool stream : {false, true}) {
        Outputs<T> out(n);
        run_range(p, out, 0, n, stream,
                  [&](const auto& a) { make_update_rule(spec, isa).apply(a, 0.05, 2); });
        expect_same_bits(expected, out);
      }
  }
}

TYPED_TEST(UpdateRuleTest, InPlaceEqualsOutOfPlace) {
  using T = typename TypeParam::T;
  constexpr size_t n = 1500;
  for (const auto& spec : all_rules()) {
    const Problem<T, typename TypeParam::G> p(n, 2);
    const auto rule = make_update_rule(spec);
    Outputs<T> apart(n), place(n);
    run_range(p, apart, 0, n, false, [&](const auto& a) { rule.apply(a, 0.05, 4); });
    place.w = p.w, place.m = p.m, place.v = p.v, place.a = p.a;
    run_range(p, place, 0, n, false, [&](auto a) {
      a.parameter = a.parameter_out;
      a.state = a.state_out;
      rule.apply(a, 0.05, 4);
    });
    if (rule.state_count() < 3) apart.a = place.a;
    if (rule.state_count() < 2) apart.v = place.v;  // this rule does not have the state, so it is not written
    if (rule.state_count() < 1) apart.m = place.m;
    expect_same_bits(apart, place);
  }
}

// AveragedModel of torch.optim.swa_utils with get_ema_multi_avg_fn(d), and update_parameters() after each
// step: the first call copies, and each further call gives a := d a + (1 - d) w.
TEST(UpdateRule, AveragesTheWeightsAsTorchDoes) {
  OptimizerSpec spec = spec_of("sgd");
  spec.ema_decay = 0.75;
  const UpdateRule rule = make_update_rule(spec);
  spec.ema_decay = 0;
  const UpdateRule plain = make_update_rule(spec);
  double w = 1, change = 0, average = 0, expected = 0, w_alone = 1, change_alone = 0;
  double* const state[] = {&change, &average};
  double* const state_alone[] = {&change_alone};
  for (int64_t step = 1; step <= 20; ++step) {
    const double gradient = std::sin(static_cast<double>(step));
    const double* const gradients[] = {&gradient};
    UpdateArgs<double, double> args;
    args.gradients = gradients;
    args.parameter = args.parameter_out = &w;
    args.state = args.state_out = state;
    args.count = 1;
    rule.apply(args, 0.05, step);
    args.parameter = args.parameter_out = &w_alone;
    args.state = args.state_out = state_alone;
    plain.apply(args, 0.05, step);
    expected = step == 1 ? w_alone : 0.75 * expected + 0.25 * w_alone;
    ASSERT_EQ(w, w_alone) << step;  // averaging does not change training
    ASSERT_NEAR(average, expected, 1e-15) << step;
    if (step == 1) {
      ASSERT_EQ(average, w);
    }
  }
  EXPECT_NE(average, w);
}

// Returns the parameters after five steps on fixed gradients with lr 0.1 and weight decay 0.01.
std::vector<double> five_steps(const std::string& name) {
  std::vector<double> w = {0.5, -1.25, 2.0, -0.03125}, m(4), v(4), g(4);
  const auto rule = make_update_rule(spec_of(name));
  for (int t = 0; t < 5; ++t) {
    g = {0.1 * (t + 1), -0.2 + 0.05 * t, t % 2 == 0 ? 0.3 : -0.3, 0.01 * t};
    const double* gradients[] = {g.data()};
    double* state[] = {m.data(), v.data()};
    UpdateArgs<double, double> args;
    args.gradients = gradients;
    args.parameter = args.parameter_out = w.data();
    args.state = state;
    args.state_out = state;
    args.count = 4;
    rule.apply(args, 0.1, t + 1);
  }
  return w;
}

// The expected values are computed by torch.optim of PyTorch 2.15.0 in fp64 from equal inputs.
TEST(UpdateRule, EqualsPyTorch) {
  const std::vector<std::pair<std::string, std::vector<double>>> expected = {
      {"sgd", {0.17691846667028946, -1.0640430959027287, 1.9001187130951678, -0.04937959270989372}},
      {"adam", {0.013826974201324851, -0.7934576600554919, 1.8322429760200967, -0.2644722507282321}},
      {"adamw", {0.01339813768908793, -0.7925530758274214, 1.8469709501592038, -0.3651893493525833}},
      // The values come from the published formula of torch.optim.Adagrad, computed in plain Python.
      {"adagrad", {0.09151911212386085, -1.027143199370522, 1.9057361479944042, -0.27016937903750154}}};
  for (const auto& [name, values] : expected) {
    const auto w = five_steps(name);
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(w[i], values[i], 1e-14) << name << " element " << i;
  }
}

// Runs a step whose gradient of source `source` is `value` at element `at`. Returns whether the rule found
// all gradients finite.
template <typename T, typename G>
bool found_finite(const OptimizerSpec& spec, Isa isa, bool stream, int sources, int source, size_t at,
                  float value) {
  Problem<T, G> problem(2500, sources);
  problem.g[static_cast<size_t>(source)][at] = make_gradient(value, G{});
  Outputs<T> out(problem.count);
  const T* state[] = {problem.m.data(), problem.v.data(), problem.a.data()};
  T* state_out[] = {out.m.data(), out.v.data(), out.a.data()};
  UpdateArgs<T, G> args;
  args.gradients = problem.g_pointers.data();
  args.sources = sources;
  args.gradient_scale = 0.5;
  args.parameter = problem.w.data();
  args.parameter_out = out.w.data();
  args.state = state;
  args.state_out = state_out;
  args.count = problem.count;
  args.stream = stream;
  return UpdateRule(spec, isa).apply(args, 0.1, 1);
}

TEST(UpdateRule, FindsAGradientThatIsNotFiniteWhereverItIs) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity};
  const Isa isas[] = {Isa::kBaseline, best_isa()};
  for (const OptimizerSpec& spec : all_rules()) {
    for (const Isa isa : isas) {
      for (const bool stream : {false, true}) {
        for (const int sources : {1, 3, 6}) {
          const auto all_types = [&](int source, size_t at, float value) {
            const bool fp32 = found_finite<float, float>(spec, isa, stream, sources, source, at, value);
            const bool bf16 = found_finite<float, Bf16>(spec, isa, stream, sources, source, at, value);
            const bool fp64 = found_finite<double, double>(spec, isa, stream, sources, source, at, value);
            EXPECT_EQ(fp32, bf16) << spec.name;
            EXPECT_EQ(fp32, fp64) << spec.name;
            return fp32;
          };
          EXPECT_TRUE(all_types(0, 7, 1e30f)) << spec.name;
          for (const float value : bad) {
            for (const size_t at : {size_t{0}, size_t{1023}, size_t{1024}, size_t{2499}})
              EXPECT_FALSE(all_types(sources - 1, at, value)) << spec.name << " " << at << " " << value;
          }
        }
      }
    }
  }
}

TEST(UpdateRule, FindsASumOfFiniteGradientsThatIsNotFinite) {
  OptimizerSpec spec = spec_of("sgd", 0.0);
  const float half = 3e38f, w = 1;
  float out = 0;
  const float* sources[] = {&half, &half};
  UpdateArgs<float, float> args;
  args.gradients = sources;
  args.sources = 2;
  args.gradient_scale = 0.5;
  args.parameter = &w;
  args.parameter_out = &out;
  args.count = 1;
  EXPECT_FALSE(UpdateRule(spec, best_isa()).apply(args, 0.1, 1));
}

TEST(AllFinite, FindsEveryElement) {
  for (const size_t count : {size_t{0}, size_t{1}, size_t{4096}, size_t{4097}, size_t{9001}}) {
    std::vector<float> values(count, 1e38f);
    std::vector<double> wide(count, -1e300);
    EXPECT_TRUE(all_finite(values.data(), count));
    EXPECT_TRUE(all_finite(wide.data(), count));
    for (const size_t at : {size_t{0}, count / 2, count - 1}) {
      if (count == 0) break;
      values[at] = std::numeric_limits<float>::infinity();
      wide[at] = std::numeric_limits<double>::quiet_NaN();
      EXPECT_FALSE(all_finite(values.data(), count)) << at;
      EXPECT_FALSE(all_finite(wide.data(), count)) << at;
      values[at] = wide[at] = 0;
    }
  }
}

TEST(UpdateRule, NamesItsState) {
  EXPECT_THAT(make_update_rule(spec_of("sgd")).state_names(), testing::ElementsAre("momentum"));
  EXPECT_EQ(make_update_rule(spec_of("sgd", 0.0)).state_count(), 0);
  EXPECT_THAT(make_update_rule(spec_of("adamw")).state_names(),
              testing::ElementsAre("exp_avg", "exp_avg_sq"));
  EXPECT_THAT(make_update_rule(spec_of("adagrad")).state_names(), testing::ElementsAre("sum"));
  EXPECT_EQ(make_update_rule(spec_of("adamw")).average_state(), -1);
  OptimizerSpec averaged = spec_of("adamw");
  averaged.ema_decay = 0.9;
  EXPECT_THAT(make_update_rule(averaged).state_names(), testing::ElementsAre("exp_avg", "exp_avg_sq", "ema"));
  EXPECT_EQ(make_update_rule(averaged).average_state(), 2);
}

TEST(UpdateRule, SuggestsTheNearRule) {
  try {
    make_update_rule(spec_of("adamv"));
    FAIL() << "accepted";
  } catch (const ConfigError& e) {
    EXPECT_EQ(e.where(), "optimizer.name");
    EXPECT_THAT(e.what(), testing::HasSubstr("'adamv'"));
    EXPECT_THAT(e.what(), testing::HasSubstr("did you mean 'adam"));
  }
}

TEST(Bf16, RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(to_bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bf16(1.00390625f).bits, 0x3f80);  // a tie, to even
  EXPECT_EQ(to_bf16(1.01171875f).bits, 0x3f82);  // a tie, to even, upwards
  EXPECT_EQ(to_bf16(3.4e38f).bits, 0x7f80);      // rounds to infinity
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::quiet_NaN()).bits, 0x7fc0);
  EXPECT_EQ(to_fp32(to_bf16(-2.5f)), -2.5f);
}

}  // namespace
}  // namespace starling
