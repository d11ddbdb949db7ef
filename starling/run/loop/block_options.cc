#include "starling/run/loop/block_options.h"

#include "starling/nn/block_check.h"
#include "starling/parallel/replica/default_generator.h"
#include "starling/parallel/replica/replica.h"
#include "starling/run/choice/choices.h"
#include "starling/run/strategies.h"
#include "starling/spec/read_keys.h"

namespace starling {
namespace {

// With an optimizer of the program, sharded parameters are gathered when they are used
// (zero/parameter_unit.h).
bool cuts_at_blocks(const RunSpec& spec, const FitOptions& options) {
  return has_stages(spec) ||
         (spec.train.shard == Shard::kParameters && !options.optimizer() && options.groups().empty());
}

}  // namespace

void add_blocks(Model& made, const RunSpec& spec, const FitOptions& options) {
  const BlockNames& names = options.blocks();
  const bool named = !names.patterns.empty() || !names.forwards.empty();
  if (named || (cuts_at_blocks(spec, options) && made.blocks.empty())) find_blocks(made, names);
}

void check_added_blocks(const ModelFactory& module, const RunSpec& spec, const FitOptions& options,
                        const Source& train) {
  if (!cuts_at_blocks(spec, options) || train.size() == 0) return;
  const KeptGenerator kept;  // the computation may draw random numbers
  const at::ScalarType type = spec.train.precision == Precision::kFp64 ? at::kDouble : at::kFloat;
  bool own = false;
  const auto factory = [&] {
    Model made = module();
    own = !made.blocks.empty();
    add_blocks(made, spec, options);
    return made;
  };
  const Replica replica = make_replica(factory, type, spec.train.seed);
  if (own) return;
  const Batch sample = first_samples(train, measured_samples(spec));
  if (replica.model.samples) replica.model.samples->keys = sample.keys;
  check_blocks(replica.model, inputs_of(replica.model, sample, type, /*channels_last=*/false));
}

}  // namespace starling
