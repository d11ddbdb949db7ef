#include "starling/mcmc/draws_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"

namespace starling {
namespace {

JobCheckpointOptions checkpoint_options(const McmcOptions& options, const Posterior& posterior, int number,
                                        int count, const LockHolder& holder) {
  JobCheckpointOptions job;
  job.job = "mcmc";
  // One lock is enough for all sub-posteriors.
  job.require_lock = [folder = options.checkpoint, holder] { require_lock_holder(folder, holder); };
  if (!options.checkpoint.empty())
    job.folder = fmt::format("{}/sub-posterior-{}-of-{}", options.checkpoint, number, count);
  const ChainOptions& chain = options.chain;
  job.problem = {{"parameters", fmt::format("{}", posterior.dimensions())},
                 {"samples", fmt::format("{}", posterior.samples())},
                 {"data", fmt::format("{:x}", posterior.fingerprint())},
                 {"sampler", chain.sampler == Sampler::kHmc ? "hmc" : "random-walk"},
                 {"warmup", fmt::format("{}", chain.warmup)},
                 {"seed", fmt::format("{}", options.seed)}};
  if (chain.sampler == Sampler::kHmc) {
    job.problem["target-acceptance"] = fmt::format("{}", chain.target_acceptance);
    job.problem["length"] = fmt::format("{}", chain.length);
    job.problem["most-steps"] = fmt::format("{}", chain.most_steps);
  }
  return job;
}

}  // namespace

DrawsCheckpoint::DrawsCheckpoint(const McmcOptions& options, const Posterior& posterior, int number,
                                 int count, const LockHolder& holder)
    : enabled_(!options.checkpoint.empty()),
      warmup_(options.chain.warmup),
      dimensions_(posterior.dimensions()),
      alone_(make_single_group()),
      checkpoint_(*alone_, checkpoint_options(options, posterior, number, count, holder)) {}

int64_t DrawsCheckpoint::load(Chain& chain, PosteriorDraws& draws) {
  const auto state = checkpoint_.find();
  if (!state) return -1;
  const CheckpointArrays arrays = checkpoint_.read(*state, 0);
  chain.restore(arrays.get<double>("chain"));
  draws.values = arrays.get<double>("draws");
  const int64_t count = std::max<int64_t>(0, state->step - warmup_), numbers = std::ssize(draws.values);
  const bool whole = numbers % dimensions_ == 0 && numbers / dimensions_ == count;
  const bool finite = std::all_of(draws.values.begin(), draws.values.end(),
                                  [](double number) { return std::isfinite(number); });
  if (!whole || !finite || chain.report().draws != static_cast<double>(count))
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("the checkpoint of {} transitions has other draws than these transitions make; "
                            "remove the checkpoint to start anew",
                            state->step));
  saved_ = state->step;
  return state->step;
}

void DrawsCheckpoint::save(int64_t transitions, const Chain& chain, const PosteriorDraws& draws) {
  if (!enabled_ || transitions == saved_) return;
  CheckpointArrays arrays;
  arrays.put<double>("chain", chain.state());
  arrays.put<double>("draws", draws.values);
  checkpoint_.save(transitions, arrays, {});
  saved_ = transitions;
}

}  // namespace starling
