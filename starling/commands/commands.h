// The commands of the program `starling` as functions. Each executes one command with a validated
// configuration. It returns the exit status. 0 means success. 1 means an expected failure, such as a `verify`
// above its tolerance. If a command returns another status, its comment names that status. Other failures are
// exceptions (base/error.h), which the program turns into a message and an exit status.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "starling/spec/command_line.h"
#include "starling/spec/config.h"
#include "starling/spec/run_spec.h"

namespace starling {

// Options that all commands share.
struct CommandOptions : GlobalOptions {
  std::vector<std::string> argv;  // the whole command line, including the program
};

// Trains a model. Returns 128 + the signal if a signal interrupted the run.
int train_command(const RunSpec& spec, const CommandOptions& options);
// Evaluates a saved model, whose weights are in model.init. `step` is the number of updates that made them, 0
// if it is unknown.
int eval_command(const RunSpec& spec, int64_t step, const CommandOptions& options);

// The options of `sample`.
struct SampleOptions {
  std::string prompt;      // the text that the model continues
  int64_t length = 200;    // number of characters to add
  double temperature = 1;  // divides the logits; 0 takes the likeliest character
  int64_t top_k = 0;       // draw from the k likeliest characters; 0: from all
};
// Prints a text that a saved text model continues (commands/sample.h). `vocabulary` holds its characters, or
// is empty if the data must be read for them.
int sample_command(const RunSpec& spec, const std::string& vocabulary, const SampleOptions& sample,
                   const CommandOptions& options);
// The options of `compress`.
struct CompressOptions {
  std::string file;               // the file to write
  bool force = false;             // whether an existing file is replaced
  double density = 0.08;          // share of the weights that remain
  std::string layer_densities;    // densities of single layers, "fc1=0.07,fc2=0.1"
  double prune_epochs = 8;        // epochs while and after weights are pruned
  double cluster_epochs = 2;      // epochs that train the centroids
  double lr = 0.001;              // learning rate of Adam at the beginning of the pruning
  double cluster_lr_share = 0.1;  // share of `lr` with which the centroids begin
  int64_t batch = 64;             // samples of a step
  int64_t linear_bits = 5;        // a fully connected layer has at most 2^linear_bits values
  int64_t conv_bits = 8;          // a convolutional layer has at most 2^conv_bits values
  bool fp32_values = false;       // whether codebooks and biases are stored in fp32, and not in fp16
};
// Compresses the weights in model.init (commands/compress.h) and prints how many bytes each layer takes, and
// the accuracy before and after.
int compress_command(const RunSpec& spec, const CompressOptions& compress, const CommandOptions& options);
// Compares the updates of p ranks with those of one process (commands/verify.h). Returns 1 above the
// tolerance.
int verify_command(const RunSpec& spec, const CommandOptions& options);
// Starts train.ranks copies of a program on the hosts that the run names, or on this host
// (docs/how-to/several-hosts.md). For an exchange that has servers, it starts exchange.servers more. The
// first element of `program` is its name or path. Returns the exit status of the job.
int launch_command(const RunSpec& spec, const std::vector<std::string>& program,
                   const CommandOptions& options);
// Examines this machine and prints the result (commands/doctor.h).
int doctor_command(const CommandOptions& options);
// Prints the content of the flight recorders in a run's folder (comm/recorder/flight_recorder.h): which rank
// waits for which. Errors: ConfigError if the folder has none.
int doctor_recorder_command(const std::string& folder, const CommandOptions& options);
// Prints where the time of a run went, what one process would have taken, and what to try first
// (report/why.h). Errors: ConfigError if `run_dir` is not the folder of a run.
int why_command(const std::string& run_dir, const CommandOptions& options);
// Prints the checkpoints of a run folder, or one checkpoint (commands/ckpt.h).
int ckpt_ls_command(const std::string& path, const CommandOptions& options);
// As ckpt_ls_command(), but reads all files and compares them with their hashes. Returns kExitCheckpoint if
// one is not whole.
int ckpt_verify_command(const std::string& path, const CommandOptions& options);
// Prints how the tensors of two checkpoints differ. Returns 1 if they do.
int ckpt_diff_command(const std::string& a, const std::string& b, const CommandOptions& options);
// Writes the model of a checkpoint to a file of weights. averaged: with the averaged weights.
int ckpt_export_command(const std::string& path, const std::string& file, bool force, bool averaged,
                        const CommandOptions& options);
// Prints the models of the zoo.
int zoo_ls_command(const CommandOptions& options);
// Prints the strategies, or only those of `name`: "gossip", "mesh" for --mesh, or "lbfgs" for its command.
// Errors: ConfigError for any other name.
int strategies_command(const std::string& name, const CommandOptions& options);

// The options of `zoo show`.
struct ZooShowOptions {
  int64_t batch = 1024;  // samples per step over all ranks
  int64_t pixels = 0;    // pixels per side of an image; 0: the usual size of the model
};
// Prints what each layer of a model weighs, takes in and computes. Errors: ConfigError for a batch below 1,
// for pixels that are too few, and for pixels given to a model that reads no images.
int zoo_show_command(const ModelSpec& spec, const ZooShowOptions& show, const CommandOptions& options);

// The options of `factorize`.
struct FactorizeSpec {
  std::string ratings;  // a file; empty: generated ratings
  int64_t factors = 16;
  double l2 = 0.02;
  double lr_decay = 0.95;
  double test_share = 0.1;
  double priority = 1;           // share of the rows that an epoch updates, chosen by progress
  double memory_limit_mb = 0;    // how much of the matrix a rank may hold; 0: no limit
  std::string save;              // a folder for the result
  std::string checkpoint;        // a folder
  int64_t checkpoint_every = 1;  // epochs
  int64_t rows = 2000, columns = 1000, entries = 100'000;  // size of generated ratings
};
// Factorizes a matrix (commands/factorize_command.h) with train.ranks, train.epochs, train.seed and
// optimizer.lr. If exchange.name is parameter-server, H is on servers. Otherwise the algorithm rotates H
// among the ranks.
int factorize_command(const RunSpec& spec, const FactorizeSpec& what, const CommandOptions& options);

// The options of `lbfgs`.
struct LbfgsSpec {
  std::string data;                // a CSV file, idx:DIR or cifar-bin:DIR; empty: generated samples
  std::string label = "last";      // the column of the label in a CSV file: first or last
  std::optional<double> positive;  // the label that becomes 1, while all others become 0
  double ridge = 1e-3;
  double tolerance = 1e-9;  // of the largest element of the gradient
  int memory = 10;          // pairs of vectors
  int64_t iterations = 1000;
  int portions = 32;  // per rank
  bool no_backups = false;
  bool equal_portions = false;
  bool compare_portions = false;
  std::string checkpoint;  // a folder
  int64_t checkpoint_every = 10;
  std::string save;                         // a file for the weights
  int64_t samples = 20'000, features = 50;  // size of generated samples
};
// Fits a ridge logistic regression by Sandblaster L-BFGS (commands/lbfgs_command.h) with train.ranks,
// train.seed and train.emulate. Returns 128 + the signal if a signal interrupted the run.
int lbfgs_command(const RunSpec& spec, const LbfgsSpec& what, const CommandOptions& options);

// The options of `mcmc`.
struct McmcSpec {
  std::string data;                // a CSV file, idx:DIR or cifar-bin:DIR; empty: generated samples
  std::string model;               // gaussian or logistic; empty: logistic with DATA, gaussian without it
  std::string label = "last";      // the column of the label in a CSV file: first or last
  std::optional<double> positive;  // the label that becomes 1, while all others become 0
  double ridge = 1;                // λ of the prior exp(−λ/2 |w|²)
  int sub_posteriors = 0;          // 0: one per rank; at least 4 for a Gaussian
  int64_t draws = 2000;            // per sub-posterior
  int64_t warmup = 1000;           // transitions per sub-posterior
  std::string sampler = "hmc";     // or random-walk
  double target_acceptance = 0.8;  // of hmc
  std::string combine = "parametric";
  std::string save;        // a file for the combined draws
  std::string checkpoint;  // a folder
  int64_t checkpoint_every = 1000;
  int64_t samples = 10'000, features = 2;  // size of generated samples
};
// Samples a posterior by embarrassingly parallel MCMC (commands/mcmc_command.h) with train.ranks and
// train.seed. Returns 128 + the signal if a signal interrupted the run.
int mcmc_command(const RunSpec& spec, const McmcSpec& what, const CommandOptions& options);

// The options of `lasso`.
struct LassoSpec {
  std::string data;            // a CSV or .npy file; empty: generated samples
  std::string label = "last";  // the column of y: first or last
  std::string schedule = "strads";
  double lambda = 0;          // 0: lambda_share of the smallest λ at which all weights are zero
  double lambda_share = 0.1;  // between 0 and 1
  bool no_intercept = false;
  double tolerance = 1e-6;       // of the duality gap, as a share of the objective of zero weights
  std::optional<double> target;  // an objective at which the run ends, too
  int64_t updates = 64;          // per round
  double rho = 0.1;              // the limit of the correlations in a round
  double exploration = 0.02;     // the share of uniform draws
  int64_t max_updates = 1'000'000'000;
  std::string checkpoint;                                             // a folder
  int64_t checkpoint_every = 1000;                                    // rounds
  std::string save;                                                   // a file for the weights
  int64_t samples = 400, features = 2000, block = 50, nonzeros = 40;  // size of generated samples
  double correlation = 0.9;                                           // of the features of a block
  double noise = 1;
};
// Fits a lasso by scheduled updates of weights (commands/lasso_command.h) with train.ranks and train.seed.
// Returns 128 + the signal if a signal interrupted the run.
int lasso_command(const RunSpec& spec, const LassoSpec& what, const CommandOptions& options);

// The options of `autoencoder`. A list has one number for all layers, or one per layer.
struct AutoencoderSpec {
  std::string grid;  // ROWSxCOLUMNS; empty: the grid whose sides differ least
  std::vector<int64_t> maps = {8};
  std::vector<int64_t> fields = {8, 4}, strides = {2, 1};  // pixels
  std::vector<int64_t> pools = {3}, pool_strides = {1};    // positions of filters
  std::vector<int64_t> norms = {3};                        // pools
  double sparsity = 0.1;                                   // λ
  double memory_limit_mb = 0;                              // of a rank's state; 0: no limit
  std::string checkpoint;                                  // a folder
  int64_t checkpoint_every = 100;                          // steps
  std::string save;                                        // a folder for the filters
  std::string save_features;                               // a file
};
// Trains a locally connected autoencoder on a grid of ranks (commands/autoencoder_command.h) with
// train.ranks, train.steps or train.epochs, train.global_batch, train.precision, train.seed, optimizer.lr,
// optimizer.momentum and the data of the run. Returns 128 + the signal if a signal interrupted the run.
int autoencoder_command(const RunSpec& spec, const AutoencoderSpec& what, const CommandOptions& options);

// The options of `topics`.
struct TopicsSpec {
  std::string data;        // a bag of words in the format of the UCI repository; empty: a generated corpus
  std::string vocabulary;  // a file with one word per line
  int32_t topics = 0;      // 0: 100, or 20 for a generated corpus
  double alpha = 0.1;      // of each topic
  double beta = 0.01;      // of each word
  std::string sampler = "light";  // or saber
  std::string start = "anchors";  // or random
  int64_t sweeps = 100;
  int64_t warm_sweeps = 20;       // in which β falls to its value
  int cycles = 2;                 // pairs of proposals per token, of light
  int64_t slices = 0;             // 0: automatic
  double memory_limit_mb = 0;     // how much of the model a rank may hold; 0: no limit
  double test_share = 0.05;       // of the documents
  std::string held_out;           // a bag of words, in place of test_share
  int64_t score_every = 0;        // sweeps; 0: at the end only
  std::string score;              // a phi.npy that is scored, in place of a run
  std::string save;               // a folder for the topics
  std::string checkpoint;         // a folder
  int64_t checkpoint_every = 10;  // sweeps
  int64_t documents = 2000;       // of a generated corpus
  int32_t words = 2000;           // of a generated corpus
};
// Finds topics in documents (commands/topics_command.h) with train.ranks and train.seed. Returns 128 + the
// signal if a signal interrupted the run.
int topics_command(const RunSpec& spec, const TopicsSpec& what, const CommandOptions& options);

// The options of `place`.
struct PlaceSpec {
  std::string model;  // a model of the zoo, towers, or a JSON file; empty: the example
  // Speeds and memories (place/device_text.h). Empty: those of the file or of the example, or else 1,0.5.
  std::string devices;
  int micro_batches = 4;
  int64_t samples = 8;         // of a step
  int64_t pixels = 64;         // largest height and width of pictures; 0: no limit
  double latency_us = -1;      // of each link; -1: measured, or the default
  double bandwidth_mb_s = -1;  // of each link; -1: measured, or the default
  bool branches = false;       // parallel branches are groups of their own
  bool measure = false;        // measure the best placements as stages
  int64_t rounds = 0;          // measured steps of each placement; 0: 15, or 5 in the example
  int64_t moves = 8000;        // of simulated annealing
  int64_t updates = 150;       // of the policy, on each rank
  double policy_lr = 5e-3;     // of the policy
  std::string save_graph;      // a file for the graph
};
// Finds devices for the groups of a model (commands/place_command.h) with train.ranks and train.seed. Returns
// 128 + the signal if a signal interrupted the run.
int place_command(const RunSpec& spec, const PlaceSpec& what, const CommandOptions& options);

// The options of `bench scaling`.
struct ScalingSpec {
  std::vector<int64_t> counts = {1, 2, 4, 8};  // numbers of ranks
  // true: the global batch is fixed, and with it the computation of all ranks together. false: a rank's
  // batch and computation are fixed.
  bool strong = false;
  int64_t batch = 8;  // samples per rank; strong: over all ranks
  int64_t steps = 30;
  double compute_ms = 20;  // emulated computation per step of a rank; strong: of all ranks; 0: none
  std::string link = "bandwidth=100mbit,latency=1ms";  // emulation of the slow link
  std::string straggler = "slow-rank=1:2x";
};
// Measures samples/s for several numbers of ranks (commands/bench_scaling.h).
int bench_scaling_command(const RunSpec& spec, const ScalingSpec& scaling, const CommandOptions& options);

// Prints the memory that a rank would need (commands/plan_memory.h). If `params` is 0, the configured model's
// number of parameters counts.
int plan_memory_command(const Config& config, double params, const CommandOptions& options);

// The options of `compare`.
struct CompareOptions {
  std::string runs;             // --runs (spec/run_text.h)
  std::string budget;           // --budget samples=N|seconds=S
  double target_accuracy = -1;  // between 0 and 1; -1: none
  // -1: none
  double target_loss = -1;
  bool measure_exchange = false;  // --measure-exchange
};
// Trains each of the runs and compares them (commands/compare.h). `files` lists the configuration files of
// -c. Returns 1 if a run failed, and 130 after an interruption.
int compare_command(const Config& base, const std::vector<std::string>& files, const CompareOptions& compare,
                    const CommandOptions& options);

// Trains the runs of `starling tour` and writes their report (commands/tour.h). `only` selects the sections
// whose title contains this text. Returns what compare_command() returns.
int tour_command(const Config& base, bool quick, const std::string& only, const CommandOptions& options);

// Measures layers for about `seconds` seconds (commands/bench_layers.h) and prints a table.
int bench_layers_command(double seconds, const CommandOptions& options);

// The options of `bench comm`.
struct CommBenchOptions {
  uint64_t smallest = 256;
  uint64_t largest = 16 << 20;  // bytes
  double seconds = 10;          // approximate duration of the measurement
  bool tune = false;            // keep the fastest algorithms for later runs (run/folder/tuning_file.h)
};
// Starts spec.train.ranks ranks, measures the collectives (commands/bench_comm.h) and prints one table for
// each. Returns 1 if a result was wrong.
int bench_comm_command(const RunSpec& spec, const CommBenchOptions& bench, const CommandOptions& options);

// Writes the generated data that data.source names into out_dir, as files that the sources idx: and text:
// read. With `force` the files replace existing ones.
int data_make_command(const RunSpec& spec, const std::string& out_dir, bool force,
                      const CommandOptions& options);

// The options of `data serve`.
struct DataServeOptions {
  int64_t port = 0;      // 0: a free port
  std::string key_file;  // created if missing; empty: a file of this host that exists while the server runs
  double lease_s = 300;  // a worker that is silent for longer loses the batches that it holds
};
// Serves images or a text to ranks over the network until it is told to stop (commands/data_serve.h).
int data_serve_command(const RunSpec& spec, const DataServeOptions& serve, const CommandOptions& options);
// Prints facts about a data source (data/formats/inspect.h).
int data_inspect_command(const RunSpec& spec, const CommandOptions& options);

}  // namespace starling
