#include "starling/run/loop/data_loader.h"

#include <fmt/format.h>

#include <utility>

#include "starling/base/error.h"
#include "starling/data/loader.h"
#include "starling/run/loop/own_samples.h"
#include "starling/run/ranks/mesh_groups.h"
#include "starling/run/ranks/same_data.h"
#include "starling/run/run_state.h"
#include "starling/run/training.h"

namespace starling {

struct DataLoader::State {
  RunState& run;
  std::shared_ptr<const Source> source;  // the samples of this rank
  LoaderOptions options;
  int64_t samples = 0;            // of a global batch, if each rank has samples of its own; otherwise 0
  int64_t batches_per_epoch = 0;  // of all ranks together
  std::unique_ptr<Loader> loader = nullptr;  // made when the first batch is asked for
  LoaderBatch batch = {};
  int64_t position = 0;
  int64_t left = 0;      // batches of the present epoch that were not given out
  bool ended = false;    // the present loop
  bool resumed = false;  // and no loop has begun since
  bool open = false;     // a loop has begun, and it has not seen its end
};

namespace {

// The ranks of a replica get equal samples, because they compute each batch together.
LoaderOptions options_of(const RunSpec& spec, const OwnSamples& own, const MeshGroups& axes, int64_t batch) {
  const int replicas = static_cast<int>(axes.mesh().replica);
  if (batch < replicas) {
    throw ConfigError("Run::loader",
                      fmt::format("a batch of {} samples cannot be divided among {} {}; use at "
                                  "least one sample for each of them",
                                  batch, replicas, axes.mesh().ranks() > replicas ? "replicas" : "ranks"));
  }
  if (!own.parts.empty()) {
    LoaderOptions options = loader_options(spec, 0, 1, 0);
    options.global_batch = batch / replicas;
    return options;
  }
  LoaderOptions options = loader_options(spec, static_cast<int>(axes.place().replica), replicas, 0);
  options.global_batch = batch;
  options.unequal = options.remainder = true;
  return options;
}

}  // namespace

DataLoader::DataLoader(std::unique_ptr<State> state) : state_(std::move(state)) {}
DataLoader::DataLoader(DataLoader&&) noexcept = default;
DataLoader::~DataLoader() = default;

int64_t DataLoader::epoch() const {
  const int64_t present = state_->open && state_->position > 0 ? 1 : 0;  // the batch that the loop works on
  return (state_->position - present) / state_->batches_per_epoch;
}
int64_t DataLoader::batches_per_epoch() const {
  return state_->batches_per_epoch;
}
int64_t DataLoader::position() const {
  return state_->position;
}
LoaderBatch& DataLoader::current() {
  return state_->batch;
}
bool DataLoader::at_end() const {
  return state_->ended;
}

bool DataLoader::open() const {
  return state_->open;
}

void DataLoader::go_to(int64_t position, bool open) {
  state_->loader = nullptr;
  state_->position = position;
  state_->open = open;
  state_->resumed = true;
}

DataLoader::Iterator DataLoader::begin() {
  State& s = *state_;
  const int64_t done = s.position % s.batches_per_epoch;
  if (done != 0 && !s.resumed) {  // the loop before was left early
    s.position += s.batches_per_epoch - done;
    s.loader = nullptr;
  }
  // A checkpoint of an epoch's last batch: the loop ends at once, and the program goes on behind it.
  const bool only_end = s.resumed && s.open && done == 0 && s.position > 0;
  s.left = only_end ? 0 : s.batches_per_epoch - s.position % s.batches_per_epoch;
  s.resumed = s.ended = false;
  s.open = true;
  advance();
  return Iterator(*this);
}

void DataLoader::advance() {
  State& s = *state_;
  if (s.run.loop.stopping) end_interrupted(s.run);
  if (s.left == 0) {
    s.ended = true;
    s.open = false;
    return;
  }
  with_faults_reported(s.run, [&] {
    if (!s.loader) {
      LoaderOptions options = s.options;
      options.first_step = s.position;
      s.loader = make_loader(s.source, options);
    }
    Batch read = s.loader->next();
    s.batch = {std::move(read.input), std::move(read.target), std::move(read.keys), s.options.global_batch,
               s.samples};
    s.batch.more_data = std::move(read.more_inputs);
    s.batch.more_targets = std::move(read.more_targets);
    if (s.samples == 0) {
      const int64_t of_epoch = s.position % s.batches_per_epoch;
      const RankShare share = share_of(s.options, samples_of_step(s.options, s.source->size(), of_epoch));
      s.batch.samples = share.samples;
      s.batch.all_samples = share.of;
    }
  });
  if (at::GradMode::is_enabled()) s.run.loop.add_batch(&s, s.batch.samples, s.batch.all_samples);
  ++s.position;
  --s.left;
}

DataLoader Run::loader(std::shared_ptr<const Source> source, int64_t batch) {
  return with_faults_reported(*state_, [&] {
    if (!source) throw ConfigError("Run::loader", "the data is a null pointer; pass a Source");
    RunSpec spec = state_->resolved();
    spec.train.global_batch = batch;
    const int64_t samples = source->size();
    auto state = std::make_unique<DataLoader::State>(DataLoader::State{*state_, source, {}});
    if (state_->session) {
      const RunEnvironment& environment = state_->own_loop();
      require_same_data({source, nullptr}, environment.group, "Run::loader");
      const MeshGroups& axes = state_->own_axes();
      const OwnSamples own = own_samples(spec, {source, nullptr}, axes, environment);
      state->source = own.source;
      state->options = options_of(spec, own, axes, batch);
      state->options.on_stall = own.on_stall;
      if (!own.parts.empty()) state->samples = state->options.global_batch * axes.mesh().replica;
    } else {
      state->options = loader_options(spec, 0, 1, 0);
      state->options.remainder = true;
    }
    check_loader_options(*state->source, state->options);
    state->batches_per_epoch =
        state->samples > 0 ? std::max<int64_t>(1, samples / batch) : (samples + batch - 1) / batch;
    return DataLoader(std::move(state));
  });
}

}  // namespace starling
