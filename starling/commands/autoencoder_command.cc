#include "starling/commands/autoencoder_command.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "starling/base/atomic_file.h"
#include "starling/base/error.h"
#include "starling/base/unique_fd.h"
#include "starling/commands/interrupted_text.h"
#include "starling/commands/result_folder.h"
#include "starling/commands/training_images.h"
#include "starling/factor/npy.h"
#include "starling/grid/train_autoencoder.h"
#include "starling/job/job_checkpoint.h"
#include "starling/parallel/replica/tensor_memory.h"
#include "starling/run/rank_program.h"
#include "starling/spec/strategy_table.h"
#include "starling/telemetry/output.h"

namespace starling {
namespace {

constexpr int64_t kShownSteps = 10;  // of each layer

// Returns the number for a layer of a list that has one number per layer, or one for all layers.
int64_t number_for(const char* flag, const std::vector<int64_t>& list, size_t layer, size_t layers) {
  if (list.size() == 1) return list.front();
  if (list.size() != layers)
    throw ConfigError(flag, fmt::format("{} numbers for {} layers; give one number, or one per layer",
                                        list.size(), layers));
  return list[layer];
}

std::vector<MacroLayerOptions> layers_of(const AutoencoderSpec& what) {
  size_t layers = 1;
  for (const auto* list :
       {&what.maps, &what.fields, &what.strides, &what.pools, &what.pool_strides, &what.norms})
    layers = std::max(layers, list->size());
  std::vector<MacroLayerOptions> result(layers);
  for (size_t l = 0; l < layers; ++l) {
    const auto number = [&](const char* flag, const std::vector<int64_t>& list) {
      return number_for(flag, list, l, layers);
    };
    result[l] = {.maps = number("--maps", what.maps),
                 .fields = {number("--fields", what.fields), number("--strides", what.strides), 0},
                 .pool = {number("--pools", what.pools), number("--pool-strides", what.pool_strides), 0},
                 .norm = {.size = number("--norms", what.norms)}};
  }
  return result;
}

// Returns the options without what depends on the data.
GridAutoencoderOptions autoencoder_options(const RunSpec& spec, const AutoencoderSpec& what) {
  GridAutoencoderOptions options;
  options.layers = layers_of(what);
  options.sparsity = what.sparsity;
  options.lr = spec.optimizer.lr;
  options.momentum = spec.optimizer.momentum;
  options.batch = spec.train.global_batch;
  options.seed = spec.train.seed;
  options.type = spec.train.precision == Precision::kFp64 ? at::kDouble : at::kFloat;
  options.checkpoint = what.checkpoint;
  options.checkpoint_every = what.checkpoint_every;
  return options;
}

// Returns the steps of an epoch count. Errors: ConfigError if they are too many.
int64_t steps_of_epochs(double epochs, const GridAutoencoderOptions& options, int64_t images) {
  const double steps = std::ceil(epochs * static_cast<double>(images) / static_cast<double>(options.batch));
  const int64_t most = most_autoencoder_steps(options);
  if (!(steps >= 1 && steps < static_cast<double>(most)))
    throw ConfigError("--epochs",
                      fmt::format("{} epochs of {} images are {:.3g} steps; use from 1 to {} steps", epochs,
                                  images, steps, most));
  return static_cast<int64_t>(steps);
}

// Returns the options of a run, and checks them with its images. Errors: ConfigError; Error(kMemory).
GridAutoencoderOptions checked_options(const RunSpec& spec, const AutoencoderSpec& what, const RankGrid& grid,
                                       const TrainingImages& images) {
  GridAutoencoderOptions options = autoencoder_options(spec, what);
  options.images = images.size();
  options.data = fmt::format(
      "{}, {} images{}{}{}", images.name(), images.count(), spec.data.normalize ? ", normalized" : "",
      spec.data.augment ? fmt::format(", augmented with a pad of {}", spec.data.pad) : "",
      spec.data.order == Order::kShuffled ? "" : ", in order");
  if (options.batch > images.count())
    throw ConfigError("--global-batch",
                      fmt::format("{} samples per step, but {} has {} images; use at most {}", options.batch,
                                  images.name(), images.count(), images.count()));
  options.steps = spec.train.steps;
  if (options.steps == 0) options.steps = steps_of_epochs(spec.train.epochs, options, images.count());
  check_grid_autoencoder(options, grid);
  const int64_t bytes = grid_state_bytes(options, grid);
  const double limit_mb = what.memory_limit_mb;
  if (limit_mb > 0 && static_cast<double>(bytes) > limit_mb * 1e6)
    throw Error(
        ErrorCode::kMemory,
        fmt::format("a rank of a grid of {} keeps {:.1f} MB of filters, gradients and momenta, and the "
                    "limit is {:g} MB: use more ranks, fewer maps, or a larger --memory-limit",
                    text_of(grid), static_cast<double>(bytes) / 1e6, limit_mb));
  return options;
}

// Returns the hash of all images. Each rank reads a part of them. Collective.
uint64_t hash_over_ranks(const TrainingImages& images, Group& group) {
  uint64_t own = 0;
  agree_on_success(group, [&] { own = images.hash(group.rank(), group.size()); });
  std::vector<uint64_t> all(static_cast<size_t>(group.size()));
  all_gather(group, &own, all.data(), sizeof(own), DataType::kUint8);
  return std::accumulate(all.begin(), all.end(), uint64_t{0});
}

std::string filters_path(const std::string& folder, const char* kind, size_t layer) {
  return fmt::format("{}/{}-{}.npy", folder, kind, layer + 1);
}

// Shows that a file can be written, without changing it. Errors: ConfigError with the flag.
void check_target(const char* flag, const std::string& path, int rank) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw ConfigError(flag, fmt::format("{} is a folder, and a file of this name is to be written", path));
  if (std::filesystem::exists(path, ignored)) {
    const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!file.valid())
      throw ConfigError(flag, fmt::format("{} cannot be written: {}; choose another place", path,
                                          std::generic_category().message(errno)));
    return;
  }
  try {
    const AtomicFile probe(fmt::format("{}-{}", path, rank));  // leaves no trace
  } catch (const Error& error) {
    throw ConfigError(flag, error.what());
  }
}

// Returns the folder of a file, or "" for a file of the working directory.
std::string folder_of(const std::string& file) {
  return std::filesystem::path(file).parent_path().string();
}

// Makes the folders of the files that follow the training, and tests the files. Collective.
void check_targets(const AutoencoderSpec& what, size_t layers, Group& group) {
  make_result_folder(group, "--save-filters", what.save);
  make_result_folder(group, "--save-features", folder_of(what.save_features));
  agree_on_success(group, [&] {
    for (size_t l = 0; !what.save.empty() && l < layers; ++l)
      for (const char* kind : {"encoder", "decoder"})
        check_target("--save-filters", filters_path(what.save, kind, l), group.rank());
    if (!what.save_features.empty()) check_target("--save-features", what.save_features, group.rank());
  });
}

// Writes this rank's filters of a layer. A row of the file has the numbers of one filter.
void save_layer_filters(const std::string& path, const GridLocallyConnected2d& layer) {
  const PixelRect& part = layer->plan().outputs;
  const ImageWindows& fields = layer->options().windows;
  const int64_t rows = fields.positions(layer->options().height),
                columns = fields.positions(layer->options().width);
  const int64_t maps = layer->options().maps;
  const at::Tensor filters = layer->weight.detach().to(at::kFloat);
  for (int64_t i = 0; i < part.rows.count(); ++i) {
    const at::Tensor row = filters.select(0, i).contiguous();
    const int64_t first = ((part.rows.begin + i) * columns + part.columns.begin) * maps;
    write_npy_rows(path, rows * columns * maps, filters.size(3), first,
                   {row.const_data_ptr<float>(), static_cast<size_t>(row.numel())});
  }
}

void save_filters(const std::string& folder, const std::vector<MacroLayer*>& layers) {
  for (size_t l = 0; l < layers.size(); ++l) {
    save_layer_filters(filters_path(folder, "encoder", l), layers[l]->encoder());
    save_layer_filters(filters_path(folder, "decoder", l), layers[l]->decoder());
  }
}

// Writes this rank's part of the features of all images. A row of the file has the maps of one position.
// Collective.
void save_features(const std::string& path, const std::vector<MacroLayer*>& layers,
                   const TrainingImages& images, const GridAutoencoderOptions& how, const RankGrid& grid,
                   int rank) {
  const ImageSize& output = layers.back()->output();
  const PixelRect pixels = grid.part(rank, how.images.height, how.images.width);
  const PixelRect part = grid.part(rank, output.height, output.width);
  for (int64_t first = 0; first < images.count(); first += how.batch) {
    at::Tensor x = images.in_order(first, std::min(how.batch, images.count() - first), pixels).to(how.type);
    for (MacroLayer* layer : layers) x = layer->features(x);
    const at::Tensor rows = x.permute({0, 2, 3, 1}).to(at::kFloat).contiguous();  // [n, rows, columns, maps]
    for (int64_t n = 0; n < rows.size(0); ++n)
      for (int64_t i = 0; i < rows.size(1); ++i) {
        const at::Tensor row = rows[n][i];
        const int64_t position = ((first + n) * output.height + part.rows.begin + i) * output.width;
        write_npy_rows(path, images.count() * output.height * output.width, output.channels,
                       position + part.columns.begin,
                       {row.const_data_ptr<float>(), static_cast<size_t>(row.numel())});
      }
  }
}

nlohmann::ordered_json step_fields(const char* event, const GridAutoencoderStep& step) {
  return {{"event", event},
          {"layer", step.layer + 1},
          {"step", step.step},
          {"objective", step.objective},
          {"error", step.error},
          {"response", step.response},
          {"sparseness", step.sparseness}};
}

std::string step_words(const GridAutoencoderStep& step, int64_t steps) {
  return fmt::format(
      "layer {}  step {:>5} of {}  objective {:.6g}  error {:.2f} %  response {:.4g}  sparseness {:.3f}",
      step.layer + 1, step.step, steps, step.objective, 100 * step.error, step.response, step.sparseness);
}

std::string result_words(const GridAutoencoderResult& result, int64_t peak) {
  std::string text;
  if (result.resumed_from >= 0) text = fmt::format("resumed after step {}\n", result.resumed_from);
  for (const GridAutoencoderStep& last : result.layers)
    text +=
        fmt::format("layer {}: {:.2f} % of the images' squares are not reconstructed, sparseness {:.3f}\n",
                    last.layer + 1, 100 * last.error, last.sparseness);
  return text +
         fmt::format(
             "halos: {} bytes in {} messages were sent, and the formula gives {} bytes; all else "
             "sent {} bytes\na rank held at most {} of {} parameters, and {:.1f} MB of tensors; {:.2f} s",
             result.halo_bytes, result.halo_messages, result.halo_bytes_formula, result.other_bytes,
             result.rank_parameters, result.parameters, static_cast<double>(peak) / 1e6, result.seconds);
}

std::string result_json(const GridAutoencoderResult& result, const GridAutoencoderOptions& how,
                        const RankGrid& grid, int64_t peak) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (const GridAutoencoderStep& last : result.layers) {
    layers.push_back(step_fields("layer", last));
    layers.back().erase("event");
  }
  return nlohmann::ordered_json{{"event", "result"},
                                {"interrupted", result.interrupted},
                                {"ranks", grid.size()},
                                {"grid", text_of(grid)},
                                {"layers", layers},
                                {"steps", result.steps},
                                {"resumed_from", result.resumed_from},
                                {"parameters", result.parameters},
                                {"rank_parameters", result.rank_parameters},
                                {"state_bytes", grid_state_bytes(how, {1, 1})},
                                {"rank_state_bytes", grid_state_bytes(how, grid)},
                                {"peak_bytes", peak},
                                {"halo_bytes", result.halo_bytes},
                                {"halo_bytes_formula", result.halo_bytes_formula},
                                {"halo_messages", result.halo_messages},
                                {"other_bytes", result.other_bytes},
                                {"wall_s", result.seconds}}
      .dump();
}

// Returns the largest number of any rank. Collective.
int64_t largest_over_ranks(Group& group, int64_t number) {
  auto value = static_cast<double>(number);
  all_reduce(group, &value, 1, DataType::kFp64, ReduceOp::kMax);
  return static_cast<int64_t>(value);
}

// Refuses settings that change other commands and would have no effect here.
void refuse_what_is_ignored(const RunSpec& spec) {
  const auto require = [](bool unused, const char* flag, const char* reason) {
    if (!unused) throw ConfigError(flag, fmt::format("autoencoder {}; leave it out", reason));
  };
  const bool on_cpu = spec.train.device == DeviceKind::kCpu || spec.train.device == DeviceKind::kAuto;
  require(on_cpu, "--device", "computes on CPUs");
  require(spec.train.threads_mode == ThreadsMode::kOp, "--threads-mode",
          "divides each operation among the threads of a rank");
  require(spec.train.accumulate == 1, "--accumulate", "computes a step as a whole");
  require(spec.data.partition == "auto" || spec.data.partition == "none", "--partition",
          "divides images by their pixels, and no samples");
  require(spec.data.share.empty(), "--share", "divides images by their pixels, and no samples");
  require(spec.optimizer.name == "sgd", "optimizer.name", "has SGD with momentum alone");
  require(!spec.optimizer.nesterov, "optimizer.nesterov", "has SGD with momentum alone");
  require(spec.optimizer.weight_decay == 0, "optimizer.weight_decay", "keeps the norm of its filters");
  require(spec.optimizer.clip_norm == 0, "optimizer.clip_norm", "clips no gradients");
  require(spec.optimizer.clip_value == 0, "optimizer.clip_value", "clips no gradients");
  require(spec.optimizer.ema_decay == 0, "optimizer.ema_decay", "averages no weights");
  require(spec.schedule.name == "constant", "schedule.name", "has a constant learning rate");
}

}  // namespace

void check_autoencoder_command(const RunSpec& spec, const AutoencoderSpec& what) {
  rank_grid_of(what.grid, static_cast<int>(spec.train.ranks));
  layers_of(what);
  const std::string& name = spec.exchange.name;
  if (name != exchange_table().front().name)  // the first row is the default
    throw ConfigError("--exchange",
                      fmt::format("the ranks of autoencoder hold parts of one model and have no "
                                  "exchange; leave out \"{}\"",
                                  name));
  refuse_what_is_ignored(spec);
  if (spec.train.precision == Precision::kBf16)
    throw ConfigError("--precision", "autoencoder computes in fp32 or fp64");
  check_result_folder("--save-filters", what.save);
  check_result_folder("--save-features", folder_of(what.save_features));
  if (!what.save_features.empty() && spec.data.augment)
    throw ConfigError("--save-features", "augmented images are random; leave out data.augment");
}

void check_autoencoder_run(const RunSpec& spec, const AutoencoderSpec& what) {
  const RankGrid grid = rank_grid_of(what.grid, static_cast<int>(spec.train.ranks));
  checked_options(spec, what, grid, TrainingImages(spec));
}

int run_autoencoder(const AutoencoderSpec& what, const CommandOptions& options, Session& session) {
  const RunSpec& spec = session.spec();
  const RunEnvironment environment = session.run_environment();
  const RankGrid grid = rank_grid_of(what.grid, environment.group.size());
  const bool speaks = environment.group.rank() == 0;
  const TrainingImages images(spec);
  GridAutoencoderOptions how = checked_options(spec, what, grid, images);
  check_targets(what, how.layers.size(), environment.group);
  if (!how.checkpoint.empty())
    how.data += fmt::format(", hash {:x}", hash_over_ranks(images, environment.group));
  if (speaks && options.verbosity >= 0 && !options.json)
    print_line(
        fmt::format("Autoencoder of {} layer{} on {}: {} images of {} × {} pixels and {} channel{}, grid {}, "
                    "{} samples per step",
                    how.layers.size(), how.layers.size() == 1 ? "" : "s", images.name(), images.count(),
                    how.images.height, how.images.width, how.images.channels,
                    how.images.channels == 1 ? "" : "s", text_of(grid), how.batch));
  const int64_t every = std::max<int64_t>(1, how.steps / kShownSteps);
  TensorMemory& memory = count_tensor_memory();
  memory.restart_peak();
  int64_t done = 0;
  const GridAutoencoderResult result = train_grid_autoencoder(
      how,
      {.group = environment.group,
       .grid = grid,
       .images = [&](int64_t step, const PixelRect& part) { return images.batch(step, how.batch, part); },
       .clock = environment.process.clock,
       .stop = &environment.process.stop,
       .on_step =
           [&](const GridAutoencoderStep& step) {
             session.note_loop_step(++done);
             if (!speaks || options.verbosity < 0) return;
             if (step.step % every != 0 && step.step != 1 && step.step != how.steps) return;
             print_line(options.json ? step_fields("step", step).dump() : step_words(step, how.steps));
           },
       .on_end =
           [&](const std::vector<MacroLayer*>& layers) {
             if (!what.save.empty()) save_filters(what.save, layers);
             if (!what.save_features.empty())
               save_features(what.save_features, layers, images, how, grid, environment.group.rank());
           }});
  barrier(environment.group);  // now all parts of the files are written
  const int64_t peak = largest_over_ranks(environment.group, memory.peak());
  if (speaks && options.json) print_line(result_json(result, how, grid, peak));
  const int64_t steps = how.steps * std::ssize(how.layers);
  if (speaks && !options.json)
    print_line(result.interrupted ? interrupted_text({"step", result.steps, steps, what.checkpoint})
                                  : result_words(result, peak));
  return result.interrupted ? interrupted_status(session) : 0;
}

}  // namespace starling
