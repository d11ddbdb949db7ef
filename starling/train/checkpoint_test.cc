#include "starling/train/checkpoint.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

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

// The options of a run with the lineage of incarnation `incarnation`, which continues nothing.
CheckpointOptions keeping(int64_t keep, IoStep before = {}, const std::string& incarnation = "a") {
  CheckpointOptions options;
  options.keep = keep;
  options.before = std::move(before);
  options.lineage.run = options.lineage.incarnation = incarnation;
  return options;
}

// Changes one bit of a file in place. The size stays.
void flip(const fs::path& file) {
  std::string bytes = read_bytes(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(file, std::ios::binary) << bytes;
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.equal(b);
}

int64_t newest_step(const fs::path& run, std::vector<PassedCheckpoint>* passed = nullptr) {
  const auto found = newest_whole(run, passed);
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
  for (const int64_t step : {10, 20, 30, 1000000}) write_checkpoint(run.path(), state_at(step), keeping(2));
  EXPECT_THAT(steps_in(run.path()), testing::ElementsAre(1000000, 30));
  fs::resize_file(checkpoint_path(run.path(), 1000000) / "model.safetensors", 10);  // torn ones do not count
  write_checkpoint(run.path(), state_at(1000001), keeping(2));
  EXPECT_THAT(steps_in(run.path()), testing::ElementsAre(1000001, 30));
  EXPECT_THAT(names_in(run.path() / "checkpoints"),
              testing::UnorderedElementsAre("damaged-step-1000000", "step-000030", "step-1000001"));
}

TEST(Checkpoint, APruneThatFindsAChangedBitKeepsTheWholeOneBefore) {
  const TempDir run;
  std::vector<std::string> said;
  CheckpointOptions options = keeping(2);
  options.say = [&](const std::string& text) { said.push_back(text); };
  write_checkpoint(run.path(), state_at(10), options);
  write_checkpoint(run.path(), state_at(20), options);
  flip(checkpoint_path(run.path(), 20) / "model.safetensors");
  write_checkpoint(run.path(), state_at(30), options);
  EXPECT_THAT(names_in(run.path() / "checkpoints"),
              testing::UnorderedElementsAre("damaged-step-000020", "step-000010", "step-000030"));
  ASSERT_EQ(said.size(), 1u);
  EXPECT_THAT(said[0], testing::AllOf(HasSubstr("step-000020"), HasSubstr("damaged-step-000020")));
}

TEST(Checkpoint, ARunDeletesOnlyItsOwnLineage) {
  const TempDir run;
  for (const int64_t step : {10, 20, 30}) write_checkpoint(run.path(), state_at(step), keeping(3));
  write_checkpoint(run.path(), state_at(1000), keeping(2, {}, "another"));
  CheckpointOptions mine = keeping(1, {}, "b");
  mine.lineage = continued(check_checkpoint(checkpoint_path(run.path(), 20)).lineage, 20, "b", 2);
  write_checkpoint(run.path(), state_at(25), mine);
  EXPECT_THAT(steps_in(run.path()), testing::ElementsAre(1000, 30, 25)) << "10 and 20 are ancestors";
  const CheckpointState back = read_checkpoint(checkpoint_path(run.path(), 25));
  EXPECT_EQ(back.lineage.run, "a");
  EXPECT_EQ(back.lineage.incarnation, "b");
  EXPECT_EQ(back.lineage.epoch, 2);
  ASSERT_EQ(back.lineage.ancestors.size(), 1u);
  EXPECT_EQ(back.lineage.ancestors[0].incarnation, "a");
  EXPECT_EQ(back.lineage.ancestors[0].step, 20);
  write_checkpoint(run.path(), state_at(30), mine);  // this name is that of a checkpoint of another branch
  EXPECT_THAT(names_in(run.path() / "checkpoints"),
              testing::UnorderedElementsAre("step-001000", "aside-step-000030", "step-000030"));
  EXPECT_EQ(read_checkpoint(run.path() / "checkpoints" / "aside-step-000030").lineage.incarnation, "a");
}

TEST(Checkpoint, WhatIsAboveTheStepIsSetAside) {
  const TempDir run;
  for (const int64_t step : {10, 20, 30}) write_checkpoint(run.path(), state_at(step), keeping(3));
  flip(checkpoint_path(run.path(), 30) / "optimizer.safetensors");
  std::vector<std::string> said;
  set_aside_above(run.path(), 10, [&](const std::string& text) { said.push_back(text); });
  EXPECT_THAT(names_in(run.path() / "checkpoints"),
              testing::UnorderedElementsAre("damaged-step-000030", "aside-step-000020", "step-000010"));
  EXPECT_EQ(said.size(), 2u);
  for (int i = 0; i < 2; ++i) write_checkpoint(run.path(), state_at(20), keeping(9));
  set_aside_above(run.path(), 10, {});
  EXPECT_TRUE(fs::exists(run.path() / "checkpoints" / "aside-step-000020.2"));
}

TEST(Checkpoint, WhatIsOfAnotherLineageIsSetAside) {
  const TempDir run;
  CheckpointOptions other = keeping(9), own = keeping(9);
  other.lineage = {"a", "a", 1, {}};
  own.lineage = continued(other.lineage, 20, "b", 2);
  for (const int64_t step : {10, 20, 30}) write_checkpoint(run.path(), state_at(step), other);
  for (const int64_t step : {25, 40, 50}) write_checkpoint(run.path(), state_at(step), own);
  write_checkpoint(run.path(), state_at(60), other);
  flip(checkpoint_path(run.path(), 50) / "manifest.json");     // whose it is cannot be read
  fs::remove(checkpoint_path(run.path(), 60) / "state.json");  // damaged, but whose it is can be read
  std::vector<std::string> said;
  set_aside_foreign(run.path(), 20, own.lineage, [&](const std::string& text) { said.push_back(text); });
  EXPECT_THAT(names_in(run.path() / "checkpoints"),
              testing::UnorderedElementsAre("step-000010", "step-000020", "step-000025", "aside-step-000030",
                                            "step-000040", "step-000050", "aside-step-000060"));
  EXPECT_THAT(said, testing::ElementsAre(HasSubstr("step-000060 was written by another run or start"),
                                         HasSubstr("step-000030 was written by another run or start")));
}

// A version that this program does not know is an error. It is never skipped or renamed as damage.
TEST(Checkpoint, ANewerFormatIsRefused) {
  const TempDir run;
  write_checkpoint(run.path(), state_at(10), keeping(1));
  write_checkpoint(run.path(), state_at(20), keeping(2));
  const fs::path manifest = checkpoint_path(run.path(), 20) / "manifest.json";
  auto newer = nlohmann::json::parse(read_bytes(manifest));
  newer["version"] = newest_checkpoint_version() + 1;
  newer.erase("manifest_xxh3");  // checkpoint_folder_test.cc has the case of a hash
  write_bytes(manifest, newer.dump());
  EXPECT_THAT(error_of([&] { newest_whole(run.path(), nullptr); }),
              HasSubstr("the checkpoint is newer than this Starling"));
  EXPECT_THAT(error_of([&] { read_checkpoint(checkpoint_path(run.path(), 20)); }), HasSubstr("newer"));
  write_checkpoint(run.path(), state_at(30), keeping(1));
  EXPECT_THAT(names_in(run.path() / "checkpoints"),
              testing::UnorderedElementsAre("step-000020", "step-000030"));
}

// Two writers of one step: the former leader was stopped while it wrote, and the new leader has taken over.
TEST(Checkpoint, TwoWritersDoNotShareAFolder) {
  const TempDir run;
  CheckpointOptions former = keeping(2), next = keeping(2);
  former.lineage.epoch = 1;
  next.lineage.epoch = 2;
  former.before = [&](std::string_view step) {
    if (step != "rename") return;
    CheckpointState state = state_at(20);
    state.seed = 2;
    write_checkpoint(run.path(), state, next);
  };
  EXPECT_THROW(write_checkpoint(run.path(), state_at(20), former), Error);
  EXPECT_EQ(read_checkpoint(checkpoint_path(run.path(), 20)).seed, 2u);
  EXPECT_THAT(names_in(run.path() / "checkpoints"), testing::ElementsAre("step-000020"));
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
  std::vector<PassedCheckpoint> passed;
  EXPECT_EQ(newest_step(run.path() / "absent", &passed), -1);
  EXPECT_TRUE(passed.empty());
}

// Damages one file of the newest checkpoint in three ways. The checkpoint before must be found, and the
// message must name the damage.
class TornCheckpoint : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    write_checkpoint(run_.path(), state_at(10));
    write_checkpoint(run_.path(), state_at(20));
    file_ = checkpoint_path(run_.path(), 20) / GetParam();
    ASSERT_TRUE(fs::exists(file_));
  }
  void expect_skipped(const std::string& why = "damaged: ", bool unreadable = false) {
    std::vector<PassedCheckpoint> passed;
    EXPECT_EQ(newest_step(run_.path(), &passed), 10);
    ASSERT_EQ(passed.size(), 1u);
    EXPECT_THAT(passed[0].text,
                testing::AllOf(HasSubstr("step-000020"), HasSubstr(why), HasSubstr(GetParam())));
    EXPECT_EQ(passed[0].unreadable, unreadable);
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
  const size_t at = manifest ? bytes.find("xxh3\": \"") + 8 : bytes.size() - 1;  // in a hash
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  std::ofstream(file_, std::ios::binary) << bytes;  // in place, as a bad disk would
  std::vector<PassedCheckpoint> passed;
  EXPECT_EQ(newest_step(run_.path(), &passed), 10);
  ASSERT_EQ(passed.size(), 1u);
  EXPECT_THAT(passed[0].text, HasSubstr("does not have the manifest's hash"));
}

// A folder in the file's place lets read(2) fail, as a disk with an error does.
TEST_P(TornCheckpoint, Unreadable) {
  fs::remove(file_);
  fs::create_directory(file_);
  expect_skipped("cannot be read now", true);
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

// Kills the writer before each of its steps in turn. Nothing of the writer runs afterwards.
TEST(Checkpoint, KilledAtAnyStepLeavesAWholeOne) {
  for (const bool again : {false, true})  // again: the step's folder already exists
    for (const char* const at : {"model.safetensors", "optimizer.safetensors", "ranks.safetensors",
                                 "state.json", "manifest.json", "rename", "prune"}) {
      const TempDir run;
      write_checkpoint(run.path(), state_at(10), keeping(2));
      if (again) write_checkpoint(run.path(), state_at(20), keeping(2));
      const auto kill_at = [&](std::string_view step) {
        if (step == at) ::raise(SIGKILL);
      };
      ASSERT_EQ(in_child([&] {
                  write_checkpoint(run.path(), state_at(20), keeping(1, kill_at));
                  return 0;
                }),
                -SIGKILL);
      const bool renamed = std::string(at) == "prune";
      std::vector<PassedCheckpoint> passed;
      ASSERT_EQ(newest_step(run.path(), &passed), renamed || again ? 20 : 10) << at;
      EXPECT_TRUE(passed.empty()) << passed[0].text;
      write_checkpoint(run.path(), state_at(30), keeping(1));  // the leftovers are removed too
      EXPECT_THAT(names_in(run.path() / "checkpoints"), testing::ElementsAre("step-000030")) << at;
    }
}

constexpr int kNoSeccomp = 98;  // the exit status of a process that may not have a filter

// From now on, this process cannot exchange two folders in one step, as on NFS.
void refuse_to_exchange() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_renameat2, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {static_cast<unsigned short>(std::size(code)), code};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
    ::_exit(kNoSeccomp);
}

// Writes step 20 anew in a process that cannot exchange folders. Returns the exit status of the process.
int replace_by_renames(const fs::path& run, const IoStep& before) {
  return in_child([&] {
    refuse_to_exchange();
    CheckpointState state = state_at(20);
    state.seed = 5;
    write_checkpoint(run, state, keeping(2, before));
    return 0;
  });
}

TEST(Checkpoint, IsReplacedWhereFoldersCannotBeExchanged) {
  const TempDir run;
  write_checkpoint(run.path(), state_at(20), keeping(2));
  const int status = replace_by_renames(run.path(), {});
  if (status == kNoSeccomp) GTEST_SKIP() << "seccomp filters are not permitted here";
  ASSERT_EQ(status, 0);
  EXPECT_EQ(read_checkpoint(checkpoint_path(run.path(), 20)).seed, 5u);
  EXPECT_THAT(names_in(run.path() / "checkpoints"), testing::ElementsAre("step-000020"));
}

// The former checkpoint has no name of a checkpoint while the new one takes its place. It is not lost then.
TEST(Checkpoint, TheReplacedOneGetsItsNameBack) {
  for (const bool killed : {true, false}) {
    const TempDir run;
    write_checkpoint(run.path(), state_at(20), keeping(2));
    const int status = replace_by_renames(run.path(), [&](std::string_view step) {
      if (step != "replace") return;
      if (killed) ::raise(SIGKILL);
      throw Error(ErrorCode::kCheckpoint, "as if");
    });
    if (status == kNoSeccomp) GTEST_SKIP() << "seccomp filters are not permitted here";
    ASSERT_EQ(status, killed ? -SIGKILL : 42);
    EXPECT_EQ(newest_step(run.path()), killed ? -1 : 20);
    remove_leftovers(run.path());
    EXPECT_EQ(newest_step(run.path()), 20);
    EXPECT_NE(read_checkpoint(checkpoint_path(run.path(), 20)).seed, 5u);
    EXPECT_THAT(names_in(run.path() / "checkpoints"), testing::ElementsAre("step-000020"));
  }
}

// Both are there if the writer is killed after the new one has the name.
TEST(Checkpoint, AReplacedOneIsRemovedBesideTheNewOne) {
  const TempDir run;
  const fs::path folder = write_checkpoint(run.path(), state_at(20), keeping(2));
  fs::copy(folder, folder.parent_path() / ".replaced-step-000020");
  remove_leftovers(run.path());
  EXPECT_THAT(names_in(run.path() / "checkpoints"), testing::ElementsAre("step-000020"));
}

TEST(Checkpoint, AReplacedOneStaysIfNobodyKnowsWhetherTheNewOneIsThere) {
  const TempDir run;
  const fs::path folder = write_checkpoint(run.path(), state_at(20), keeping(2));
  fs::rename(folder, folder.parent_path() / ".replaced-step-000020");
  fs::create_symlink(folder.filename(), folder);  // stat() fails with ELOOP
  remove_leftovers(run.path());
  EXPECT_TRUE(fs::exists(folder.parent_path() / ".replaced-step-000020"));
  fs::remove(folder);
  remove_leftovers(run.path());
  EXPECT_EQ(newest_step(run.path()), 20);
}

TEST(Checkpoint, AFolderThatCannotBeListedIsNotEmpty) {
  const TempDir run;
  fs::create_symlink("checkpoints", run.path() / "checkpoints");  // opendir() fails with ELOOP
  EXPECT_THAT(error_of([&] { list_checkpoints(run.path()); }), HasSubstr("checkpoints: cannot be read now"));
  EXPECT_TRUE(may_exist(run.path() / "checkpoints"));
  EXPECT_FALSE(may_exist(run.path() / "none"));
}

// A holder that was suspended while it pruned is not the holder any more.
TEST(Checkpoint, AFormerHolderRemovesNothingOfALaterOne) {
  const TempDir run;
  const auto make = [&](const char* name) { fs::create_directories(run.path() / "checkpoints" / name); };
  CheckpointOptions options = keeping(1);
  options.lineage.epoch = 2;
  for (const char* name : {".writing-step-000005-2-17", ".writing-step-000007-3-18", ".writing-step-000006"})
    make(name);
  write_checkpoint(run.path(), state_at(10), options);
  EXPECT_THAT(names_in(run.path() / "checkpoints"),
              testing::UnorderedElementsAre("step-000010", ".writing-step-000007-3-18"));
  make(".writing-step-000008-1-19");
  int asked = 0;
  options.before = [&](std::string_view at) {  // the lock is lost while the checkpoints are hashed
    if (at == "prune" && ++asked == 2) throw Error(ErrorCode::kCheckpoint, "as if");
  };
  write_checkpoint(run.path(), state_at(20), options);
  EXPECT_EQ(asked, 2);
  EXPECT_THAT(names_in(run.path() / "checkpoints"),
              testing::UnorderedElementsAre("step-000010", "step-000020", ".writing-step-000007-3-18",
                                            ".writing-step-000008-1-19"));
}

// A manifest that cannot be opened now, for example for want of permission, may be readable later.
TEST(Checkpoint, OneThatCannotBeReadKeepsItsName) {
  const TempDir run;
  const fs::path manifest = write_checkpoint(run.path(), state_at(10), keeping(1)) / "manifest.json";
  fs::rename(manifest, run.path() / "manifest");
  fs::create_symlink("manifest.json", manifest);  // open() fails with ELOOP
  const CheckpointCheck check = check_checkpoint(manifest.parent_path());
  EXPECT_THAT(check.damage, testing::AllOf(HasSubstr(manifest.string()), HasSubstr("symbolic links")));
  EXPECT_TRUE(check.unreadable);
  EXPECT_THAT(check.problem(),
              testing::AllOf(HasSubstr("cannot be read now"), testing::Not(HasSubstr("damaged")),
                             testing::Not(HasSubstr("unchanged"))));
  std::vector<PassedCheckpoint> passed;
  EXPECT_EQ(newest_step(run.path(), &passed), -1);
  ASSERT_EQ(passed.size(), 1u);
  EXPECT_TRUE(passed[0].unreadable);
  EXPECT_THAT(error_of([&] { read_checkpoint(manifest.parent_path()); }),
              testing::AllOf(HasSubstr("may be whole"), testing::Not(HasSubstr("never"))));
  write_checkpoint(run.path(), state_at(20), keeping(1));
  EXPECT_EQ(newest_step(run.path()), 20);
  EXPECT_THAT(steps_in(run.path()), testing::ElementsAre(20, 10));
  fs::rename(run.path() / "manifest", manifest);
  EXPECT_TRUE(check_checkpoint(manifest.parent_path()).whole());
}

TEST(Checkpoint, AnUnreadableOneInTheWayIsSetAside) {
  const TempDir run;
  const fs::path folder = write_checkpoint(run.path(), state_at(10), keeping(1));
  fs::remove(folder / "manifest.json");
  fs::create_symlink("manifest.json", folder / "manifest.json");
  write_checkpoint(run.path(), state_at(10), keeping(1, {}, "b"));
  EXPECT_THAT(names_in(run.path() / "checkpoints"),
              testing::UnorderedElementsAre("step-000010", "aside-step-000010"));
}

TEST(Checkpoint, AFailureAtAnyStepRemovesWhatWasWritten) {
  for (const char* const at : {"model.safetensors", "state.json", "manifest.json", "rename"}) {
    const TempDir run;
    write_checkpoint(run.path(), state_at(10));
    const auto fail_at = [&](std::string_view step) {
      if (step == at) throw Error(ErrorCode::kCheckpoint, "as if");
    };
    EXPECT_THROW(write_checkpoint(run.path(), state_at(20), keeping(2, fail_at)), Error);
    EXPECT_THAT(names_in(run.path() / "checkpoints"), testing::ElementsAre("step-000010")) << at;
  }
}

// A limit on the size of files stands for a full disk: write() fails in the middle of a file.
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

TEST(CheckpointMatch, RefusesAnotherConfigurationAndNamesEveryDifference) {
  const auto state = state_at(7);
  RunSpec spec = state.spec;
  EXPECT_NO_THROW(require_same_configuration("run", state, spec));
  spec.optimizer.lr = 0.5;
  spec.train.seed = 9;
  const std::string message = error_of([&] { require_same_configuration("run", state, spec); });
  EXPECT_THAT(message,
              testing::AllOf(HasSubstr("optimizer.lr: the value was 0.1"), HasSubstr("is 0.5 now"),
                             HasSubstr("Also different: train.seed. "), HasSubstr("--resume never")));
}

// The manifest is copied and written again for its hash. Both would overflow the stack.
TEST(Checkpoint, ADeeplyNestedManifestIsDamaged) {
  const TempDir run;
  const fs::path folder = checkpoint_path(run.path(), 1);
  fs::create_directories(folder);
  std::ofstream(folder / "manifest.json")
      << R"({"format":"starling-checkpoint","version":2,"files":{"a":{}},"x":)" << std::string(500'000, '[')
      << std::string(500'000, ']') << "}";
  EXPECT_EQ(check_checkpoint(folder).damage, "manifest.json is damaged");
}

TEST(Checkpoint, ADeeplyNestedStateIsMalformed) {
  const TempDir run;
  CheckpointFolderWriter writer(run.path(), 1);
  writer.add_text("state.json",
                  R"({"step":1,"total_steps":1,"epoch":0,"batches":1,"seed":1,"losses":[],"choices":{},)"
                  R"("config":{"train":{"seed":)" +
                      std::string(500'000, '[') + std::string(500'000, ']') + "}}}");
  const fs::path folder = writer.commit();
  ASSERT_TRUE(check_checkpoint(folder).whole());
  EXPECT_THAT(error_of([&] { read_checkpoint(folder); }), HasSubstr("nested deeper than 8 levels"));
}

}  // namespace
}  // namespace starling
