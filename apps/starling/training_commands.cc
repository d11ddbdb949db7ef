#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "apps/starling/invocation.h"
#include "apps/starling/number_option.h"
#include "starling/base/error.h"
#include "starling/launch/environment.h"
#include "starling/run/checked_config.h"
#include "starling/run/folder/run_weights.h"

namespace starling {
namespace {

using TrainingCommand = int (*)(const RunSpec&, const CommandOptions&);

void add_training_command(CLI::App& app, Invocation& invocation, const CommandText& text,
                          const FlagChoice& flags, TrainingCommand command) {
  CLI::App& added = add_command(app, invocation, text, [&invocation, command] {
    return command(checked_config(invocation, /*launches=*/true).spec, invocation.options);
  });
  invocation.flags.add_flags(added, flags);
}

// Returns the flags of a command that reads a saved model. `sections` are shown, besides those of the model
// and the data. `model` and `data` say what the command does with them.
FlagChoice saved_model_flags(std::vector<Section> sections, std::vector<std::string_view> keys,
                             std::string_view model, std::string_view data) {
  sections.insert(sections.begin(), {Section::kModel, Section::kData});
  return {.sections = std::move(sections),
          .keys = std::move(keys),
          .left_out = {"data.order", "data.partition", "data.share", "train.threads_mode"},
          .meanings = {{"model.name", model},
                       {"model.init",
                        "File with the weights: safetensors, .pt of torch.save, or a file of "
                        "`starling compress`."},
                       {"data.source", data},
                       {"train.ranks", "Number of processes that share the work."}}};
}

// What a command does with a saved model.
struct SavedModel {
  RunSpec spec;
  int64_t step = 0;        // number of updates that made the weights, 0 if it is unknown
  std::string vocabulary;  // RunWeights::vocabulary
};

// Returns the model of RUN_DIR or --init. Flags, --set and files override the configuration of the run.
SavedModel saved_model(const Invocation& invocation, bool launches) {
  SavedModel model;
  Config base;
  RunWeights weights;
  if (!invocation.run_dir.empty()) {
    weights = find_run_weights(invocation.run_dir);
    base = evaluation_of(weights, invocation.run_dir);
  }
  const ConfigUse use{.launches = launches, .trains = false};
  model.spec = checked_config(invocation.flags.read_over(base), read_environment(::environ), use,
                              invocation.options.verbosity)
                   .spec;
  if (model.spec.model.init.empty())
    throw ConfigError("RUN_DIR",
                      "there are no weights: name a run folder, or a file of weights by --init FILE");
  if (model.spec.model.init == weights.file) {
    model.step = weights.step;
    model.vocabulary = weights.vocabulary;
  }
  return model;
}

void add_run_dir(CLI::App& command, Invocation& invocation) {
  command
      .add_option("RUN_DIR", invocation.run_dir,
                  "Run folder, or one of its checkpoints. It gives the weights, the model and the data")
      ->type_name("");
}

void add_eval_command(CLI::App& app, Invocation& invocation) {
  CLI::App& eval = add_command(
      app, invocation,
      {.name = "eval",
       .group = kTrainGroup,
       .summary = "Test a trained network on the test data",
       .details =
           "RUN_DIR is the folder of a run. Flags override its configuration, for example the data. Without "
           "RUN_DIR, --init names the weights.",
       .examples = {"starling eval runs/digits", "starling eval runs/digits --data idx:mnist",
                    "starling eval --model lenet5 --data idx:mnist --init lenet5.safetensors"}},
      [&invocation] {
        const SavedModel model = saved_model(invocation, /*launches=*/true);
        return eval_command(model.spec, model.step, invocation.options);
      });
  add_run_dir(eval, invocation);
  invocation.flags.add_flags(
      eval, saved_model_flags({Section::kRanks, Section::kNetwork}, {},
                              "Network to test. `starling zoo ls` lists the networks.",
                              "Data whose test part is used: idx:DIR, cifar-bin:DIR, images:PATH, text:FILE, "
                              "served:HOST:PORT[,key=FILE], or the generated sets digits and grammar."));
}

void add_sample_command(CLI::App& app, Invocation& invocation) {
  CLI::App& sample = add_command(
      app, invocation,
      {.name = "sample",
       .group = kTrainGroup,
       .summary = "Continue a text with a trained network",
       .details =
           "The network is one of text (gpt or llama). Equal options and an equal --seed give an equal text.",
       .examples = {"starling sample runs/gpt --prompt 'The ' --length 500 --temperature 0.8"}},
      [&invocation] {
        const SavedModel model = saved_model(invocation, /*launches=*/false);
        return sample_command(model.spec, model.vocabulary, invocation.sample, invocation.options);
      });
  add_run_dir(sample, invocation);
  sample.add_option("--prompt", invocation.sample.prompt, "Text that the network continues")
      ->required()
      ->type_name("TEXT");
  add_number_option(sample, "--length", invocation.sample.length, "Number of characters to add", "N", 1,
                    1'000'000);
  add_number_option(sample, "--temperature", invocation.sample.temperature,
                    "Above 1 the text is more varied, below 1 less. 0 takes the likeliest character", "T", 0,
                    100);
  add_number_option(sample, "--top-k", invocation.sample.top_k,
                    "Draw from the K likeliest characters. 0 draws from all", "K", 0, 1'000'000);
  FlagChoice flags = saved_model_flags(
      {}, {"train.seed"}, "Network of the weights: gpt or llama.",
      "Text whose characters the network knows, if RUN_DIR does not list them: text:FILE or grammar.");
  flags.meanings.emplace_back("train.seed", "Seed of the characters that are drawn.");
  invocation.flags.add_flags(sample, flags);
}

// Returns the run folder of RUN_DIR, which may be RUN/checkpoints/step-N. A run removes its old checkpoints,
// so that a file in one of them would be lost.
std::filesystem::path run_folder_of(const std::string& run_dir) {
  std::filesystem::path folder = std::filesystem::absolute(run_dir).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // "RUN/" ends with a slash
  if (folder.parent_path().filename() != "checkpoints") return run_dir;
  return (std::filesystem::path(run_dir) / "../..").lexically_normal();
}

void add_compress_flags(CLI::App& compress, CompressOptions& options) {
  compress.add_option("--out", options.file, "File to write [RUN_DIR/model.compressed]")->type_name("FILE");
  compress.add_flag("--force", options.force, "Replace an existing file");
  add_number_option(
      compress, "--density", options.density,
      "Share of the weights that remain. Small layers keep a larger share, large layers a smaller one", "D",
      0.0001, 1);
  compress
      .add_option("--layer-density", options.layer_densities,
                  "Densities of single layers, for example fc1=0.07,fc2=0.1. --density then holds for all "
                  "other layers")
      ->type_name("LAYER=D,…");
  add_number_option(compress, "--prune-epochs", options.prune_epochs,
                    "Epochs of training while weights are pruned and afterwards", "E", 0, 10'000);
  add_number_option(compress, "--cluster-epochs", options.cluster_epochs,
                    "Epochs that train the shared values", "E", 0, 10'000);
  add_number_option(compress, "--retrain-lr", options.lr,
                    "Learning rate of Adam. It falls to 0, and is a tenth of it for the shared values", "LR",
                    1e-9, 10);
  add_number_option(compress, "--retrain-batch", options.batch, "Samples of a step", "N", 1, 1'000'000);
  add_number_option(compress, "--linear-bits", options.linear_bits,
                    "The weights of a fully connected layer share at most 2^B values", "B", 1, 12);
  add_number_option(compress, "--conv-bits", options.conv_bits,
                    "The weights of a convolutional layer share at most 2^B values", "B", 1, 12);
  compress.add_flag("--fp32-values", options.fp32_values,
                    "Store shared values and biases in fp32, and not in fp16");
}

void add_compress_command(CLI::App& app, Invocation& invocation) {
  CLI::App& compress = add_command(
      app, invocation,
      {.name = "compress",
       .group = kTrainGroup,
       .summary = "Compress the weights of a trained network into a small file",
       .details = "Prunes the network, lets its weights share values, trains both on the data of the run, "
                  "and writes Huffman codes (Deep Compression). eval --init FILE tests the file.",
       .examples = {"starling compress runs/digits",
                    "starling compress runs/digits --density 0.05 --out small.compressed",
                    "starling eval runs/digits --init runs/digits/model.compressed"}},
      [&invocation] {
        CompressOptions options = invocation.compress;
        if (options.file.empty())
          options.file = (run_folder_of(invocation.run_dir) / kCompressedWeightsFile).string();
        const SavedModel model = saved_model(invocation, /*launches=*/false);
        return compress_command(model.spec, options, invocation.options);
      });
  compress
      .add_option("RUN_DIR", invocation.run_dir,
                  "Run folder, or one of its checkpoints. It gives the weights, the model and the data")
      ->required()
      ->type_name("");
  add_compress_flags(compress, invocation.compress);
  FlagChoice flags = saved_model_flags(
      {}, {"train.seed", "train.threads", "train.eval_batch"},
      "Network to compress. `starling zoo ls` lists the networks.",
      "Data that train and test the pruned network: idx:DIR, cifar-bin:DIR, images:PATH, text:FILE, "
      "served:HOST:PORT[,key=FILE], or the generated sets digits and grammar.");
  flags.meanings.emplace_back("train.seed", "Seed of the order of the samples and of dropout.");
  invocation.flags.add_flags(compress, flags);
}

}  // namespace

void add_training_commands(CLI::App& app, Invocation& invocation) {
  add_training_command(
      app, invocation,
      {.name = "train",
       .group = kTrainGroup,
       .summary = "Train a network",
       .details = "Trains on one or several ranks, tests after every epoch, and writes logs, events and "
                  "checkpoints to the run folder. A run that was interrupted resumes if the command is "
                  "repeated with its --run-dir.",
       .examples = {"starling train --model lenet5 --data idx:mnist -n 2 --epochs 5",
                    "starling train -c job.toml -n 4 --exchange gossip"}},
      {}, train_command);
  add_eval_command(app, invocation);
  add_sample_command(app, invocation);
  add_compress_command(app, invocation);
  add_training_command(
      app, invocation,
      {.name = "verify",
       .group = kTrainGroup,
       .summary = "Compare parallel training with a single process in fp64",
       .details =
           "Repeats the steps of the configured training in one process, and compares the updates of every "
           "tensor. The exit status is 1 if a difference exceeds verify.tolerance.",
       .examples = {"starling verify -n 4 --mesh replica=2,stage=2"}},
      {.sections = {Section::kModel, Section::kData, Section::kOptimizer, Section::kTraining, Section::kRanks,
                    Section::kParallel, Section::kNetwork, Section::kVerify}},
      verify_command);
}

}  // namespace starling
