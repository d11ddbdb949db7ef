#include "starling/train/checkpoint.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "starling/base/error.h"
#include "starling/testing/error_of.h"
#include "starling/testing/temp_dir.h"
#include "starling/train/checkpoint_match.h"

namespace starling {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

CheckpointState state_at(int64_t step) {
  const double x = static_cast<double>(step);
  CheckpointState state;
  state.step = step;
  state.total_steps = 1000;
  state.epoch = 3;
  state.batches = step;
  state.seed = 0xfedcba9876543210u;
  state.losses = {2.25, 0.1, std::numeric_limits<double>::quiet_NaN()};
  state.choices = {{"gemm", "mkl"}, {"layout", "channels-last"}};
  state.spec.model.name = "mlp";
  state.spec.optimizer.lr = 0.1;
  state.model = whole_tensors(
      {{"fc.weight", at::full({3, 4}, x, at::kFloat)}, {"fc.bias", at::arange(4, at::kDouble)}});
  state.optimizer["fc.weight"]["momentum"] = {at::full({3, 4}, -x, at::kFloat), {}, {}};
  state.optimizer["fc.bias"]["momentum"] = {at::full({2}, x / 3, at::kDouble), {4}, {2}};  // a slice
  state.ranks["replica=0"]["rng.torch"] = at::arange(5, at::kByte);
  state.ranks["replica=1"]["rng.torch"] = at::arange(1, 6, at::kByte);
  return state;
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.equal(b);
}

int64_t newest_step(const fs::path& run, std::vector<std::string>* warnings = nullptr) {
  const auto found = newest_whole(run, warnings);
  return found ? found->step : -1;
}

std::vector<int64_t> steps_in(const fs::path& run) {
  std::vector<int64_t> steps;
  for (const auto& folder : list_checkpoints(run)) steps.push_back(folder.step);
  return steps;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  return names;
}

TEST(Checkpoint, ReadsBackWhatWasWritten) {
  const TempDir run;
  const CheckpointState state = state_at(100);
  const fs::path folder = write_checkpoint(run.path(), state);
  EXPECT_EQ(folder, run.path() / "checkpoints" / "step-000100");
  const CheckpointState back = read_checkpoint(folder);
  EXPECT_EQ(back.step, 100);
  EXPECT_EQ(back.total_steps, 1000);
  EXPECT_EQ(back.epoch, 3);
  EXPECT_EQ(back.batches, 100);
  EXPECT_EQ(back.seed, state.seed);
  EXPECT_EQ(back.losses[1], 0.1);
  EXPECT_TRUE(std::isnan(back.losses[2]));
  EXPECT_EQ(back.choices, state.choices);
  EXPECT_EQ(back.spec.model.name, "mlp");
  EXPECT_TRUE(same(back.model.at("fc.weight").value, state.model.at("fc.weight").value));
  EXPECT_TRUE(same(back.model.at("fc.bias").value, state.model.at("fc.bias").value));
  const StoredTensor& slice = back.optimizer.at("fc.bias").at("momentum");
  EXPECT_TRUE(same(slice.value, state.optimizer.at("fc.bias").at("momentum").value));
  EXPECT_THAT(slice.global_shape, testing::ElementsAre(4));
  EXPECT_THAT(slice.offset, testing::ElementsAre(2));
  EXPECT_THAT(back.optimizer.at("fc.weight").at("momentum").global_shape, testing::ElementsAre(3, 4));
  EXPECT_TRUE(same(back.ranks.at("replica=1").at("rng.torch"), state.ranks.at("replica=1").at("rng.torch")));
}

TEST(Checkpoint, ModelFileHoldsPlainNames) {
  const TempDir run;
  const fs::path folder = write_checkpoint(run.path(), state_at(1));
  const TensorFile file = read_safetensors((folder / "model.safetensors").string());
  EXPECT_EQ(file.tensors.count("fc.weight"), 1u);
  EXPECT_EQ(file.metadata.at("format"), "pt");
}

TEST(Checkpoint, KeepsTheNewestWholeOnes) {
  const TempDir run;
  for (const int64_t step : {10, 20, 30, 1000000})
    write_checkpoint(run.path(), state_at(step), {.keep = 2, .before = {}});
  EXPECT_THAT(steps_in(run.path()), testing::ElementsAre(1000000, 30));
  fs::resize_file(checkpoint_path(run.path(), 30) / "model.safetensors", 10);  // torn ones do not count
  write_checkpoint(run.path(), state_at(1000001), {.keep = 2, .before = {}});
  EXPECT_THAT(steps_in(run.path()), testing::ElementsAre(1000001, 1000000));
  EXPECT_EQ(names_in(run.path() / "checkpoints").size(), 2u);
}

TEST(Checkpoint, WritingAStepAgainReplacesIt) {
  const TempDir run;
  write_checkpoint(run.path(), state_at(10));
  CheckpointState state = state_at(10);
  state.seed = 5;
  write_checkpoint(run.path(), state);
  EXPECT_EQ(read_checkpoint(checkpoint_path(run.path(), 10)).seed, 5u);
  EXPECT_EQ(names_in(run.path() / "checkpoints").size(), 1u);
}

TEST(Checkpoint, NoFolderIsNoCheckpoint) {
  const TempDir run;
  std::vector<std::string> warnings;
  EXPECT_EQ(newest_step(run.path() / "absent", &warnings), -1);
  EXPECT_TRUE(warnings.empty());
}

// Damages one file of the newest checkpoint in three ways; the one before must be found and the message say what is torn.
class TornCheckpoint : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    write_checkpoint(run_.path(), state_at(10));
    write_checkpoint(run_.path(), state_at(20));
    file_ = checkpoint_path(run_.path(), 20) / GetParam();
    ASSERT_TRUE(fs::exists(file_));
  }
  void expect_skipped() {
    std::vector<std::string> warnings;
    EXPECT_EQ(newest_step(run_.path(), &warnings), 10);
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_THAT(warnings[0], testing::AllOf(HasSubstr("step-000020"), HasSubstr("not a whole checkpoint"),
                                            HasSubstr(GetParam())));
    EXPECT_THROW(read_checkpoint(checkpoint_path(run_.path(), 20)), Error);
    EXPECT_EQ(read_checkpoint(checkpoint_path(run_.path(), 10)).step, 10);
  }
  TempDir run_;
  fs::path file_;
};

TEST_P(TornCheckpoint, Truncated) {
  fs::resize_file(file_, fs::file_size(file_) / 2);
  expect_skipped();
}

TEST_P(TornCheckpoint, Missing) {
  fs::remove(file_);
  expect_skipped();
}

TEST_P(TornCheckpoint, OneBitFlipped) {
  std::string bytes = read_bytes(file_);
  const bool manifest = GetParam() == "manifest.json";
  const size_t at = manifest ? bytes.find("xxh3\": \"") + 8 : bytes.size() - 1;
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  std::ofstream(file_, std::ios::binary) << bytes;  // in place, as a bad disk would
  std::vector<std::string> warnings;
  EXPECT_EQ(newest_step(run_.path(), &warnings), 10);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("does not have the manifest's hash"));
}

INSTANTIATE_TEST_SUITE_P(EveryFile, TornCheckpoint,
                         testing::Values("model.safetensors", "optimizer.safetensors", "ranks.safetensors",
                                         "state.json", "manifest.json"),
                         [](const auto& info) { return info.param.substr(0, info.param.find('.')); });

// Runs `body` in a child process and returns its exit status.
template <typename Body>
int in_child(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    int status = 99;
    try {
      status = body();
    } catch (const Error& error) {
      status = error.code() == ErrorCode::kCheckpoint ? 42 : 43;
    } catch (...) {
      status = 44;
    }
    ::_exit(status);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// The writer is killed before each of its steps in turn, with nothing of it run afterwards.
TEST(Checkpoint, KilledAtAnyStepLeavesAWholeOne) {
  for (const bool again : {false, true})  // again: the step's folder exists already
    for (const char* const at : {"model.safetensors", "optimizer.safetensors", "ranks.safetensors",
                                 "state.json", "manifest.json", "rename", "prune"}) {
      const TempDir run;
      write_checkpoint(run.path(), state_at(10));
      if (again) write_checkpoint(run.path(), state_at(20));
      const auto kill_at = [&](std::string_view step) {
        if (step == at) ::raise(SIGKILL);
      };
      ASSERT_EQ(in_child([&] {
                  write_checkpoint(run.path(), state_at(20), {.keep = 1, .before = kill_at});
                  return 0;
                }),
                -SIGKILL);
      const bool renamed = std::string(at) == "prune";
      std::vector<std::string> warnings;
      ASSERT_EQ(newest_step(run.path(), &warnings), renamed || again ? 20 : 10) << at;
      EXPECT_TRUE(warnings.empty()) << warnings[0];
      write_checkpoint(run.path(), state_at(30),
                       {.keep = 1, .before = {}});  // and what was left is cleared away
      EXPECT_THAT(names_in(run.path() / "checkpoints"), testing::ElementsAre("step-000030")) << at;
    }
}

TEST(Checkpoint, AFailureAtAnyStepRemovesWhatWasWritten) {
  for (const char* const at : {"model.safetensors", "state.json", "manifest.json", "rename"}) {
    const TempDir run;
    write_checkpoint(run.path(), state_at(10));
    const auto fail_at = [&](std::string_view step) {
      if (step == at) throw Error(ErrorCode::kCheckpoint, "as if");
    };
    EXPECT_THROW(write_checkpoint(run.path(), state_at(20), {.keep = 2, .before = fail_at}), Error);
    EXPECT_THAT(names_in(run.path() / "checkpoints"), testing::ElementsAre("step-000010")) << at;
  }
}

// A limit on the size of files stands for the full disk: write() fails in the middle of a file.
TEST(Checkpoint, FullDiskKeepsTheOldOnes) {
  const TempDir run;
  write_checkpoint(run.path(), state_at(10));
  CheckpointState state = state_at(20);
  state.optimizer["fc.weight"]["momentum"].value = at::full({100, 1000}, 1.0, at::kFloat);
  const int status = in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100'000, 100'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_checkpoint(run.path(), state);
    } catch (const Error& error) {
      return std::string(error.what()).find("optimizer.safetensors") != std::string::npos ? 42 : 45;
    }
    return 0;
  });
  EXPECT_EQ(status, 42);
  EXPECT_THAT(names_in(run.path() / "checkpoints"), testing::ElementsAre("step-000010"));
  EXPECT_EQ(newest_step(run.path()), 10);
}

TEST(Checkpoint, FolderThatCannotBeMade) {
  const TempDir run;
  write_bytes(run.path() / "checkpoints", "a file");
  try {
    write_checkpoint(run.path(), state_at(1));
    FAIL() << "written";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCheckpoint);
    EXPECT_THAT(error.what(), HasSubstr("checkpoints"));
  }
}

TEST(CheckpointMatch, RestoresIntoTheRunsMemory) {
  const auto state = state_at(7);
  const TensorMap target = {{"fc.weight", at::full({3, 4}, 0.0, at::kFloat)},
                            {"fc.bias", at::full({4}, 0.0, at::kDouble)}};
  restore_tensors("run", state.model, target);
  EXPECT_TRUE(same(target.at("fc.weight"), state.model.at("fc.weight").value));
  EXPECT_TRUE(same(target.at("fc.bias"), state.model.at("fc.bias").value));
}

TEST(CheckpointMatch, NamesWhatAnotherModelHas) {
  const auto state = state_at(7);
  TensorMap target = {{"fc.weight", at::full({3, 5}, 0.0, at::kFloat)},
                      {"fc.bias", at::full({4}, 0.0, at::kDouble)}};
  const auto message = [&] { return error_of([&] { restore_tensors("run/x", state.model, target); }); };
  EXPECT_THAT(message(),
              HasSubstr("run/x: checkpoint of another model: fc.weight is [3, 4] there and [3, 5] here"));
  target["fc.weight"] = at::full({3, 4}, 0.0, at::kDouble);
  EXPECT_THAT(message(), HasSubstr("fc.weight is Float there and Double here"));
  target["fc.weight"] = at::full({3, 4}, 0.0, at::kFloat);
  target["head.weight"] = at::full({1}, 0.0, at::kFloat);
  EXPECT_THAT(message(), HasSubstr("it has no tensor head.weight"));
  target.erase("head.weight");
  target.erase("fc.bias");
  EXPECT_THAT(message(), HasSubstr("its tensor fc.bias is not in this run's model"));
  EXPECT_EQ(target.at("fc.weight").sum().item<float>(), 0.0f) << "changed though it did not fit";
}

TEST(CheckpointMatch, ASliceIsNotTakenForTheWhole) {
  const std::map<std::string, StoredTensor> stored = {{"w", {at::full({2}, 1.0, at::kFloat), {4}, {2}}}};
  EXPECT_THAT(error_of([&] { restore_tensors("run", stored, {{"w", at::full({4}, 0.0, at::kFloat)}}); }),
              HasSubstr("only a slice of w"));
}

TEST(CheckpointMatch, RefusesAnotherConfigurationByItsFirstDifference) {
  const auto state = state_at(7);
  RunSpec spec = state.spec;
  EXPECT_NO_THROW(require_same_configuration("run", state, spec));
  spec.optimizer.lr = 0.5;
  spec.train.seed = 9;
  const std::string message = error_of([&] { require_same_configuration("run", state, spec); });
  EXPECT_THAT(message, testing::AllOf(HasSubstr("optimizer.lr was 0.1"), HasSubstr("is 0.5 now"),
                                      HasSubstr("--resume never")));
}

}  // namespace
}  // namespace starling
