// The first inputs of the fuzzers of checkpoints, made by our writers.
#include <algorithm>
#include <array>
#include <limits>

#include "starling/base/read_file.h"
#include "starling/job/job_checkpoint.h"
#include "starling/lbfgs/lbfgs_checkpoint.h"
#include "starling/train/checkpoint_scalars.h"
#include "tests/fuzz/corpus.h"
#include "tests/fuzz/job_folder.h"
#include "tests/fuzz/lone_group.h"

namespace starling {
namespace {

// Inputs of job_fuzz.cc: `job.json`, or a part without its hash.
void job_seeds(Corpus corpus) {
  const JobFolder folder;
  LoneGroup group;
  CheckpointArrays arrays;
  arrays.put<int64_t>("topics", std::array{int64_t{1}, int64_t{2}, int64_t{3}});
  arrays.put<uint16_t>("begin", std::array{uint16_t{4}, uint16_t{5}});
  JobCheckpoint(group, {.folder = folder.path().string(), .job = "topics", .problem = {{"topics", "100"}}})
      .save(7, arrays, {{"loss", "0x1p-3"}, {"count", "12"}});
  corpus.add(bytes_of({0}) + read_file(folder.path().string() + "/job.json").text);
  corpus.add(bytes_of({0}) + R"({"format":1,"job":"topics","problem":{},"ranks":1,"step":3,"values":{}})");
  corpus.add(bytes_of({0}) + R"({"format":1,"job":"topics","problem":{"topics":"100"},"ranks":1,)"
                             R"("step":9223372036854775807,"values":{"a":"b"}})");  // found
  const std::string part = read_file(folder.path().string() + "/part-7-0-of-1").text;
  corpus.add(bytes_of({1}) + part.substr(0, part.size() - 8));
  corpus.add(bytes_of({2}) + part);
}

// An array of a rank's part, as restore_fuzz.cc reads it.
template <typename T>
std::string array_of(int name, int rank, const std::vector<T>& values) {
  const std::string content(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  const auto size = static_cast<int>(content.size());
  return bytes_of({name, rank, size % 256, size / 256}) + content;
}

// A scalar, as restore_fuzz.cc reads it.
std::string value_of(int name, const std::string& text) {
  return bytes_of({name, static_cast<int>(text.size())}) + text;
}

std::string topics_of_two_ranks() {
  return array_of<int64_t>(0, 0, {0, 1}) + array_of<uint32_t>(1, 0, {0, 3, 4}) +
         array_of<uint16_t>(2, 0, {0, 1, 2, 0}) + array_of<int64_t>(0, 1, {3}) +
         array_of<uint32_t>(1, 1, {0, 2}) + array_of<uint16_t>(2, 1, {1, 1});
}

std::string lasso_of_two_ranks() {
  std::string bytes = array_of<double>(3, 0, {1, 3}) + array_of<double>(3, 1, {-2, 1}) +
                      array_of<double>(4, 0, {0.5, 0, 1}) + array_of<double>(5, 0, {0.1, 0, 0.2}) +
                      array_of<int64_t>(6, 0, {0, 2});
  for (const auto& [name, text] : {std::pair{11, "0x1.8p+0"},
                                   {12, "0x0p+0"},
                                   {13, "6"},
                                   {14, "1"},
                                   {15, "4"},
                                   {16, "4"},
                                   {17, "0x1p-2"},
                                   {18, "0x1p-8"}})
    bytes += value_of(name, text);
  return bytes;
}

// The state of a chain: counters, a point, and the adaptation.
std::string chain_of(int counters, std::vector<double> rest, int transitions) {
  std::vector<double> state(static_cast<size_t>(counters), 0);
  state.front() = transitions;
  state.insert(state.end(), rest.begin(), rest.end());
  std::vector<double> draws(static_cast<size_t>(2 * std::max(0, transitions - 44)), 0.25);
  return array_of(7, 0, state) + array_of(8, 0, draws);
}

template <typename T>
std::string factors_of_two_ranks(bool rotation) {
  std::vector<T> w(6, T{1}), h(rotation ? 4 : 8, T{2});
  std::string bytes = array_of(9, 0, std::vector<T>(4, T{1})) + array_of(9, 1, w) + array_of(10, 0, h);
  if (!rotation) return bytes;
  return bytes + array_of(10, 1, h) + array_of<double>(5, 0, {0, 1}) + array_of<double>(5, 1, {0.5, 2, 0});
}

// Inputs of restore_fuzz.cc: kind, step, ranks − 1, then arrays and scalars.
void restore_seeds(Corpus corpus) {
  corpus.add(bytes_of({0, 1, 1}) + topics_of_two_ranks());
  for (int schedule = 0; schedule < 6; ++schedule)
    corpus.add(bytes_of({1, schedule, 3, 1}) + lasso_of_two_ranks());
  for (const int transitions : {2, 46}) {
    // x, its gradient and density, variances, the step size, the spread
    corpus.add(bytes_of({2, transitions, 0}) +
               chain_of(5, {0.5, 1, -0.5, -1, -0.6, 1, 1, 2.3, 0, 0, 0, 1, 1, 0.5, 1, 0, 0}, transitions));
    // x, its density, the factor, its scale, the adaptations, the spread
    corpus.add(bytes_of({3, transitions, 0}) +
               chain_of(4, {0.5, 1, -0.6, 0.1, 0, 0, 0.1, 0.5, 2, 2, 0.5, 1, 0.1, 0, 0, 0.1}, transitions));
  }
  corpus.add(bytes_of({4, 1, 1}) + factors_of_two_ranks<float>(true));
  corpus.add(bytes_of({5, 1, 1}) + factors_of_two_ranks<double>(true));
  corpus.add(bytes_of({6, 1, 1}) + factors_of_two_ranks<float>(false));
  corpus.add(bytes_of({7, 1, 1}) + factors_of_two_ranks<double>(false));
}

// Inputs of lbfgs_fuzz.cc: a text without its hash, or what fills the parts.
void lbfgs_seeds(Corpus corpus) {
  const JobFolder folder;
  LbfgsManifest manifest{.elements = 5, .memory = 3, .ridge = 0.1, .samples = 77, .ranks = 2, .state = {}};
  manifest.state = {.iterations = 9,
                    .evaluations = 12,
                    .objective = 0.5,
                    .largest_gradient = 0.01,
                    .least_objective = 0.5,
                    .least_gradient = 0.01,
                    .slots = {2, 0, 1},
                    .started = true};
  write_manifest(folder.path().string(), manifest);
  std::string text = read_file(folder.path().string() + "/lbfgs.txt").text;
  corpus.add(bytes_of({0}) + text);
  text.resize(text.rfind("hash "));
  corpus.add(bytes_of({1}) + text);
  text.replace(text.find('3'), 1, "2");  // the earlier format has no hash
  corpus.add(bytes_of({0}) + text);
  for (const int ranks : {1, 2, 3})
    corpus.add(bytes_of({2, ranks - 1, 0}) + std::string(8 * 30, '\3') + bytes_of({0, 0}));
  corpus.add(bytes_of({2, 1, 240}) + std::string(8 * 30, '\3') + bytes_of({3, 0, 1, 1}));
  corpus.add(bytes_of({2, 1, 250}) + std::string(8 * 30, '\3') + bytes_of({3, 0, 1, 1}));
}

void state_seeds(Corpus corpus) {
  CheckpointScalars state;
  state.step = 100, state.total_steps = 1000, state.epoch = 3, state.batches = 100, state.seed = ~uint64_t{0};
  state.losses = {2.25, 0.1, std::numeric_limits<double>::quiet_NaN()};
  state.choices = {{"gemm", "mkl"}, {"layout", "channels-last"}};
  corpus.add(write_checkpoint_scalars(state));
  const std::string whole = R"({"batches":2,"choices":{},"config":{},"epoch":0,"losses":[null,1],"seed":1,)"
                            R"("total_steps":9,"step":)";
  for (const char* step : {"2", "-1", "9007199254740992", "9223372036854775807"})
    corpus.add(whole + step + "}");
  state.spec.model.name = "mlp";
  corpus.add(write_checkpoint_scalars(state));
}

}  // namespace

void checkpoint_seeds(const std::filesystem::path& root) {
  job_seeds({root, "job"});
  restore_seeds({root, "restore"});
  lbfgs_seeds({root, "lbfgs"});
  state_seeds({root, "state"});
}

}  // namespace starling
