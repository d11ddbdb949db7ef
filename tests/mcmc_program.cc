// A user's program for tests/mcmc_test.py. It samples the posterior of the logarithm θ of a rate: counts xᵢ
// are Poisson numbers with the mean exp(θ), and the prior of θ is N(0, 1). Arguments after "--":
//   --draws T           Draws per sub-posterior.
//   --checkpoint DIR    A folder for checkpoints.
//   --nan               The density of the last samples is NaN above 1.
//   --walk              Random-walk Metropolis.
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>

#include "starling/run/loop/sampling.h"
#include "starling/starling.h"

namespace {

constexpr int64_t kSamples = 400;

class Rate : public starling::Posterior {
 public:
  explicit Rate(bool broken) : broken_(broken) {}
  int64_t dimensions() const override { return 1; }
  int64_t samples() const override { return kSamples; }
  double log_prior(std::span<const double> x, std::span<double> gradient) const override {
    if (!gradient.empty()) gradient[0] = -x[0];
    return -x[0] * x[0] / 2;
  }
  double log_likelihood(std::span<const double> x, int64_t begin, int64_t end,
                        std::span<double> gradient) const override {
    double counts = 0;
    for (int64_t i = begin; i < end; ++i) counts += static_cast<double>((i * 7) % 6);
    const double rate = std::exp(x[0]), n = static_cast<double>(end - begin);
    if (!gradient.empty()) gradient[0] = counts - n * rate;
    if (broken_ && end == kSamples && x[0] > 1) return std::numeric_limits<double>::quiet_NaN();
    return counts * x[0] - n * rate;
  }
  // The counts are always equal.
  uint64_t fingerprint() const override { return broken_ ? 2 : 1; }

 private:
  bool broken_;
};

}  // namespace

int main(int argc, char** argv) {
  starling::Run run = starling::init(argc, argv);
  starling::McmcOptions options;
  options.sub_posteriors = 4;
  bool broken = false;
  for (size_t i = 0; i < run.arguments().size(); ++i) {
    const std::string& word = run.arguments()[i];
    if (word == "--draws") options.draws = std::stoll(run.arguments().at(++i));
    if (word == "--checkpoint") options.checkpoint = run.arguments().at(++i);
    if (word == "--nan") broken = true;
    if (word == "--walk") options.chain.sampler = starling::Sampler::kRandomWalk;
  }
  if (run.rank() == 0) {
    std::puts("begin");
    std::fflush(stdout);
  }
  const starling::McmcResult result = starling::sample_posterior(run, Rate(broken), options);
  if (run.rank() == 0)
    std::printf("mean %.17g deviation %.17g sampling bytes %llu\n", result.combined.moments.mean[0],
                result.combined.moments.deviation(0), static_cast<unsigned long long>(result.bytes.sampling));
}
