#include "starling/run/folder/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "starling/base/clock.h"
#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/job/folder_lock.h"
#include "starling/run/folder/run_weights.h"
#include "starling/testing/error_of.h"
#include "starling/testing/temp_dir.h"

namespace starling {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr const char* kStart = "0123abcdef";  // names the start of the run
constexpr const char* kRefusal = "the lock is refused";

class MessageSink final : public EventSink {
 public:
  void emit(const Event& event) override {
    const auto* message = std::get_if<Message>(&event);
    if (message == nullptr) return;
    texts.push_back(message->text);
    if (hear) hear(message->text);
  }
  std::vector<std::string> texts;
  std::function<void(const std::string& text)> hear;
};

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  return names;
}

// What a run leaves at its end.
struct RunEnd {
  std::string error;                 // of RunFolder::finish(); empty if there was none
  std::vector<std::string> run;      // the files in the run folder
  std::vector<std::string> outside;  // the files in the folder of train.save
  std::vector<std::string> checkpoints;
  std::vector<std::string> said;
};

void leave_checkpoint(const fs::path& run, int64_t step, const std::string& incarnation) {
  CheckpointState checkpoint;
  checkpoint.step = step;
  checkpoint.model["weight"] = {torch::ones({2}), {}, {}};
  CheckpointOptions options;
  options.keep = 9;
  options.lineage = {incarnation, incarnation, 1, {}};
  write_checkpoint(run, checkpoint, options);
}

// Ends a run whose rank has the lock with `epoch` (0: it has not). `require` is FolderLock::require().
// `prepare` is given the run and its folder when the run has begun.
RunEnd end_run(int64_t epoch, const std::function<void()>& require,
               const std::string& saved = "weights.safetensors",
               const std::function<void(RunFolder& folder, const fs::path& run)>& prepare = {}) {
  const TempDir run, outside;
  const SystemClock clock;
  const std::atomic<bool> stop{false};
  const auto group = make_single_group();
  MessageSink sink;
  RunEnvironment environment{*group, {}, {sink, clock, stop}};
  environment.kept.folder = run.path();
  environment.kept.incarnation = kStart;
  environment.kept.lock_epoch = [epoch] { return epoch; };
  environment.kept.require_lock = require;
  RunSpec spec;
  spec.train.save = saved.empty() ? run.path() / "weights.safetensors" : outside.path() / saved;
  RunFolder folder(spec, environment);
  if (prepare) prepare(folder, run.path());
  RunEnd end;
  sink.hear = [&](const std::string& text) {
    const bool renamed = text.find("written by another run") != std::string::npos;
    EXPECT_TRUE(!renamed || fs::exists(run.path() / kWeightsFile)) << "the weights come first";
  };
  end.error = error_of([&] {
    folder.finish(
        [] {
          StrategyState state;
          state.parameters["weight"] = torch::ones({2});
          return state;
        },
        /*interrupted=*/false, /*together=*/true, {});
  });
  end.run = names_in(run.path());
  if (fs::exists(run.path() / "checkpoints")) end.checkpoints = names_in(run.path() / "checkpoints");
  end.outside = names_in(outside.path());
  end.said = sink.texts;
  return end;
}

TEST(RunFolder, TheHolderOfTheLockWritesAllWeights) {
  const RunEnd end = end_run(1, [] {});
  EXPECT_EQ(end.error, "");
  EXPECT_THAT(end.run, UnorderedElementsAre(kConfigFile, kWeightsFile));
  EXPECT_THAT(end.outside, UnorderedElementsAre("weights.safetensors"));
  EXPECT_THAT(end.said, IsEmpty());
}

// The rank leads because the former leader was lost after the last checkpoint.
TEST(RunFolder, ANewLeaderSetsCheckpointsOfOtherRunsAside) {
  const RunEnd end = end_run(
      2, [] {}, "weights.safetensors",
      [](RunFolder&, const fs::path& run) {
        leave_checkpoint(run, 10, kStart);
        leave_checkpoint(run, 20, "another");
        leave_checkpoint(run, 30, kStart);
      });
  EXPECT_EQ(end.error, "");
  EXPECT_THAT(end.run, UnorderedElementsAre(kConfigFile, kWeightsFile, "checkpoints"));
  EXPECT_THAT(end.checkpoints, UnorderedElementsAre("step-000010", "aside-step-000020", "step-000030"));
  EXPECT_THAT(end.said, testing::ElementsAre(HasSubstr("step-000020 was written by another run or start")));
}

// Another process takes the lock while the new leader writes the weights. The last look at the lock is that
// before the renaming.
TEST(RunFolder, ALeaderThatHasLostTheLockRenamesNothing) {
  for (const int looks : {1, 2}) {
    int left = looks;
    const RunEnd end = end_run(
        2,
        [&left] {
          if (left-- <= 0) throw ConfigError("--run-dir", kRefusal);
        },
        "weights.safetensors", [](RunFolder&, const fs::path& run) { leave_checkpoint(run, 20, "another"); });
    EXPECT_EQ(end.error, "");
    EXPECT_THAT(end.checkpoints, UnorderedElementsAre("step-000020"));
    EXPECT_EQ(std::ranges::count(end.run, kConfigFile), looks - 1);
    EXPECT_THAT(end.said, testing::ElementsAre(HasSubstr(kRefusal)));
  }
}

// The new leader cannot write config.toml, or cannot rename a checkpoint, when it begins to lead.
TEST(RunFolder, ANewLeaderTriesAgainToPrepareTheFolder) {
  for (const bool renames : {true, false}) {
    const RunEnd end = end_run(
        2, [] {}, "weights.safetensors",
        [renames](RunFolder& folder, const fs::path& run) {
          leave_checkpoint(run, 20, "another");
          // A link that points to itself, or a folder that holds something, is in the way.
          const fs::path other = run / "checkpoints/aside-step-000020", config = run / kConfigFile;
          if (renames) fs::create_directory_symlink(other.filename(), other);
          if (!renames) fs::create_directories(config / "folder");
          CheckpointState checkpoint;
          checkpoint.step = 10;
          checkpoint.model["weight"] = {torch::ones({2}), {}, {}};
          folder.save_checkpoint(checkpoint, /*last=*/true);
          const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
          while (!folder.ready_to_save() && std::chrono::steady_clock::now() < limit)
            std::this_thread::yield();
          EXPECT_TRUE(fs::exists(checkpoint_path(run, 10)));
          fs::remove_all(renames ? other : config);
        });
    EXPECT_EQ(end.error, "");
    EXPECT_THAT(end.run, UnorderedElementsAre(kConfigFile, kWeightsFile, "checkpoints"));
    EXPECT_THAT(end.checkpoints, UnorderedElementsAre("step-000010", "aside-step-000020"));
    EXPECT_THAT(end.said, testing::ElementsAre(HasSubstr(renames ? "rename it" : kConfigFile),
                                               HasSubstr("step-000020 was written by another run or start")));
  }
}

TEST(RunFolder, AFolderThatAnotherRankHoldsGetsNothing) {
  const RunEnd end = end_run(1, [] { throw Error(ErrorCode::kCheckpoint, kRefusal); });
  EXPECT_THAT(end.error, HasSubstr(kRefusal));
  EXPECT_THAT(end.run, IsEmpty());
  EXPECT_THAT(end.outside, IsEmpty());  // the other rank writes the file
}

TEST(RunFolder, AFolderThatAnotherRunUsesGetsNothing) {
  const auto refuse = [] { throw ConfigError("--run-dir", kRefusal); };
  const RunEnd end = end_run(1, refuse);
  EXPECT_THAT(end.error, HasSubstr(kRefusal));
  EXPECT_THAT(end.run, IsEmpty());
  EXPECT_THAT(end.outside, UnorderedElementsAre("weights.0123abcd.safetensors"));
  EXPECT_THAT(end_run(1, refuse, /*saved=*/"").run, IsEmpty());
  EXPECT_THAT(end_run(1, refuse, "w.pt").outside, UnorderedElementsAre("w.0123abcd.pt"));
  EXPECT_THAT(end_run(1, refuse, "w.safetensors.index.json").outside,
              testing::Contains("w.0123abcd.safetensors.index.json"));
}

TEST(RunFolder, ARankThatNeverHadTheLockLeavesTheFileOfAnother) {
  const RunEnd end = end_run(0, [] { throw Error(ErrorCode::kCheckpoint, kRefusal); });
  EXPECT_THAT(end.error, HasSubstr(kRefusal));
  EXPECT_THAT(end.run, IsEmpty());
  EXPECT_THAT(end.outside, UnorderedElementsAre("weights.0123abcd.safetensors"));
}

TEST(RunFolder, WeightsAreSavedIfTheLockCannotBeWritten) {
  const auto refuse = [] { throw LockNotWritten(kRefusal); };
  const RunEnd end = end_run(0, refuse);
  EXPECT_THAT(end.error, HasSubstr(kRefusal));
  EXPECT_THAT(end.run, IsEmpty());
  EXPECT_THAT(end.outside, UnorderedElementsAre("weights.safetensors"));
  EXPECT_THAT(end.said, testing::ElementsAre(HasSubstr("the trained weights were written to")));
  EXPECT_THAT(end_run(0, refuse, /*saved=*/"").run, IsEmpty());
}

}  // namespace
}  // namespace starling
