// Saves and resumes jobs on other numbers of ranks, and damages what they saved.
#include "starling/job/job_checkpoint.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/testing/run_ranks.h"
#include "starling/testing/take_lock.h"
#include "starling/testing/temp_dir.h"

namespace starling {
namespace {

using testing::HasSubstr;
using Values = std::map<std::string, std::string>;

// Of one wait. It is shorter than the wait for a holder of the lock, so a rank that waits for rank 0 with
// this limit fails.
constexpr std::chrono::seconds kTimeout{3};

const Values kProblem = {{"topics", "100"}, {"words", "7f"}};

std::unique_ptr<Group> group_of(const ThreadRank& self, int size) {
  GroupSetup setup;
  setup.rank = self.rank, setup.size = size;
  setup.options.timeout = kTimeout;
  return size == 1 ? make_single_group() : make_group(*self.store, setup);
}

// Calls `body` with the checkpoints of each of `ranks` ranks.
void with_checkpoints(int ranks, const JobCheckpointOptions& options,
                      const std::function<void(Group&, JobCheckpoint&)>& body) {
  run_ranks(ranks, [&](const ThreadRank& self) {
    const auto group = group_of(self, ranks);
    JobCheckpoint checkpoint(*group, options);
    body(*group, checkpoint);
  });
}

// Each rank saves `rank + 1` numbers, beginning with 10 * step.
void save_step(Group& group, JobCheckpoint& checkpoint, int64_t step) {
  std::vector<int32_t> numbers(static_cast<size_t>(group.rank()) + 1);
  std::iota(numbers.begin(), numbers.end(), static_cast<int32_t>(10 * step));
  const std::vector<double> none;
  CheckpointArrays arrays;
  arrays.put<int32_t>("numbers", numbers);
  arrays.put<double>("none", none);
  checkpoint.save(step, arrays, {{"loss", "0x1p-3"}});
}

void save_steps(int ranks, const JobCheckpointOptions& options, int64_t first, int64_t last) {
  with_checkpoints(ranks, options, [&](Group& group, JobCheckpoint& checkpoint) {
    checkpoint.find();
    for (int64_t step = first; step <= last; ++step) save_step(group, checkpoint, step);
  });
}

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
  names.erase("lock");
  return names;
}

// Returns the message of the Error that find() throws on every one of two ranks.
std::string fault_of_find(const JobCheckpointOptions& options, ErrorCode code) {
  std::string message;
  with_checkpoints(2, options, [&](Group& group, JobCheckpoint& checkpoint) {
    try {
      checkpoint.find();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_EQ(error.rank(), 0);
      if (group.rank() == 1) message = error.what();
    }
  });
  return message;
}

// Changes one byte of a file, counted from its end.
void flip(const std::string& path, int64_t from_end) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-from_end, std::ios::end);
  const char old = static_cast<char>(file.get());
  file.seekp(-from_end, std::ios::end);
  file.put(static_cast<char>(old ^ 0x10));
}

TEST(JobCheckpoint, ARunOnAnyNumberOfRanksReadsThePartsOfAnyNumber) {
  const TempDir dir;
  const JobCheckpointOptions options{dir.file("new/folder"), "topics", kProblem};
  save_steps(3, options, 1, 4);
  for (const int ranks : {1, 2, 3}) {
    with_checkpoints(ranks, options, [&](Group&, JobCheckpoint& checkpoint) {
      const auto state = checkpoint.find();
      ASSERT_TRUE(state);
      EXPECT_EQ(state->step, 4);
      EXPECT_EQ(state->ranks, 3);
      EXPECT_EQ(state->values, (Values{{"loss", "0x1p-3"}}));
      for (int rank = 0; rank < 3; ++rank) {
        const CheckpointArrays arrays = checkpoint.read(*state, rank);
        std::vector<int32_t> expected(static_cast<size_t>(rank) + 1);
        std::iota(expected.begin(), expected.end(), 40);
        EXPECT_EQ(arrays.get<int32_t>("numbers"), expected);
        EXPECT_TRUE(arrays.get<double>("none").empty());
        EXPECT_THROW(arrays.get<double>("absent"), Error);
        if (rank % 2 == 0) {
          EXPECT_THROW(arrays.get<int64_t>("numbers"), Error);  // an odd number of int32_t
        }
      }
    });
  }
}

TEST(JobCheckpoint, KeepsOnlyThePartsOfTheNewestCheckpoint) {
  const TempDir dir;
  const JobCheckpointOptions options{dir.path(), "topics", kProblem};
  save_steps(3, options, 1, 2);
  EXPECT_EQ(names_in(dir.path()),
            (std::set<std::string>{"job.json", "part-2-0-of-3", "part-2-1-of-3", "part-2-2-of-3"}));
  save_steps(2, options, 3, 3);
  EXPECT_EQ(names_in(dir.path()), (std::set<std::string>{"job.json", "part-3-0-of-2", "part-3-1-of-2"}));
}

TEST(JobCheckpoint, WithoutAFolderNothingIsFoundOrSaved) {
  with_checkpoints(2, {"", "topics", {}}, [](Group& group, JobCheckpoint& checkpoint) {
    EXPECT_FALSE(checkpoint.find());
    save_step(group, checkpoint, 1);
  });
}

TEST(JobCheckpoint, AnotherProblemOrJobIsRefusedByNameOnEveryRank) {
  const TempDir dir;
  JobCheckpointOptions options{dir.path(), "topics", kProblem};
  save_steps(2, options, 1, 1);
  options.problem["topics"] = "50";
  EXPECT_THAT(fault_of_find(options, ErrorCode::kConfig), HasSubstr("topics is 100 there and 50 here"));
  options.problem = kProblem;
  options.problem["seed"] = "1";
  EXPECT_THAT(fault_of_find(options, ErrorCode::kConfig), HasSubstr("seed is none there and 1 here"));
  options.problem = kProblem;
  options.job = "lasso";
  EXPECT_THAT(fault_of_find(options, ErrorCode::kConfig), HasSubstr("of `starling topics`"));
}

TEST(JobCheckpoint, ADamagedManifestIsRefused) {
  const TempDir dir;
  const JobCheckpointOptions options{dir.path(), "topics", kProblem};
  save_steps(2, options, 1, 1);
  const std::string path = dir.file("job.json");
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[1]"), std::string("{\"job\":1}"),
        std::string(1000, '['), std::string("{\"job\":\"topics\",\"format\":1}")}) {
    std::ofstream(path, std::ios::trunc) << text;
    EXPECT_THAT(fault_of_find(options, ErrorCode::kCheckpoint), HasSubstr("job.json: is damaged")) << text;
  }
  std::filesystem::remove(path);
  EXPECT_THAT(fault_of_find(options, ErrorCode::kCheckpoint), HasSubstr("but no job.json"));
}

// A changed scalar would be read as it stands, because the parts are whole.
TEST(JobCheckpoint, EveryChangedByteOfTheManifestIsRefused) {
  const TempDir dir;
  const JobCheckpointOptions options{dir.path(), "topics", kProblem};
  save_steps(1, options, 1, 1);
  const std::string path = dir.file("job.json");
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path));
  with_checkpoints(1, options, [&](Group&, JobCheckpoint& checkpoint) {
    for (int64_t at = 1; at <= bytes; ++at) {
      flip(path, at);
      EXPECT_THROW(checkpoint.find(), Error) << at;
      flip(path, at);
    }
    EXPECT_TRUE(checkpoint.find());
  });
}

TEST(JobCheckpoint, AManifestOfAnEarlierVersionHasNoHash) {
  const TempDir dir;
  std::ofstream(dir.file("job.json"))
      << R"({"format":1,"job":"topics","problem":{},"step":3,"ranks":1,"values":{"loss":"1"}})";
  with_checkpoints(1, {dir.path(), "topics", {}}, [](Group&, JobCheckpoint& checkpoint) {
    const auto state = checkpoint.find();
    ASSERT_TRUE(state);
    EXPECT_EQ(state->values, (Values{{"loss", "1"}}));
  });
}

// The conversion of such a number to an integer is undefined.
TEST(JobCheckpoint, NumbersThatAreNoIntegersAreRefused) {
  const TempDir dir;
  const JobCheckpointOptions options{dir.path(), "topics", {}};
  const auto write = [&](const std::string& format, const std::string& step, const std::string& ranks) {
    std::ofstream(dir.file("job.json"), std::ios::trunc)
        << R"({"format":)" << format << R"(,"job":"topics","problem":{},"step":)" << step << R"(,"ranks":)"
        << ranks << R"(,"values":{}})";
  };
  write("1", "3", "2");
  with_checkpoints(1, options, [](Group&, JobCheckpoint& checkpoint) { EXPECT_TRUE(checkpoint.find()); });
  for (const auto& [format, step, ranks] :
       std::vector<std::tuple<std::string, std::string, std::string>>{{"1.5", "3", "2"},
                                                                      {"true", "3", "2"},
                                                                      {"1", "3.5", "2"},
                                                                      {"1", "1e300", "2"},
                                                                      {"1", "true", "2"},
                                                                      {"1", "9223372036854775807", "2"},
                                                                      {"1", "3", "1.5"},
                                                                      {"1", "3", "4294967297"},
                                                                      {"4294967297", "3", "2"}}) {
    write(format, step, ranks);
    EXPECT_THAT(fault_of_find(options, ErrorCode::kCheckpoint), HasSubstr("job.json: is damaged"))
        << format << " " << step << " " << ranks;
  }
}

TEST(JobCheckpoint, BytesBehindAZeroByteAreRefused) {
  const TempDir dir;
  const JobCheckpointOptions options{dir.path(), "topics", kProblem};
  save_steps(1, options, 1, 1);
  std::ofstream(dir.file("job.json"), std::ios::app) << std::string("\0garbage", 8);
  EXPECT_THAT(fault_of_find(options, ErrorCode::kCheckpoint), HasSubstr("job.json: is damaged"));
}

// Reading a folder fails after it was opened, as reading a file of a damaged disk does.
TEST(JobCheckpoint, AManifestThatCannotBeReadIsAnErrorWithItsPath) {
  const TempDir dir;
  const JobCheckpointOptions options{dir.path(), "topics", kProblem};
  save_steps(1, options, 1, 1);
  std::filesystem::remove(dir.file("job.json"));
  std::filesystem::create_directory(dir.file("job.json"));
  EXPECT_THAT(fault_of_find(options, ErrorCode::kCheckpoint),
              HasSubstr("job.json: cannot be opened or read: Is a directory"));
}

// One changed bit makes format 2 look like format 3.
TEST(JobCheckpoint, AChangedFormatIsDamage) {
  const TempDir dir;
  const JobCheckpointOptions options{dir.path(), "topics", kProblem};
  save_steps(1, options, 1, 1);
  std::string text;
  std::getline(std::ifstream(dir.file("job.json"), std::ios::binary), text, '\0');
  text.replace(text.find("\"format\": 2"), 11, "\"format\": 3");
  std::ofstream(dir.file("job.json"), std::ios::trunc) << text;
  EXPECT_THAT(fault_of_find(options, ErrorCode::kCheckpoint), HasSubstr("job.json: is damaged"));
}

TEST(JobCheckpoint, AFolderThatCannotBeMadeIsRefusedWithARemedy) {
  const std::string fault = fault_of_find({"/proc/no-folder", "topics", kProblem}, ErrorCode::kCheckpoint);
  EXPECT_THAT(fault, HasSubstr("the folder cannot be made: No such file or directory; give a folder that"));
}

TEST(JobCheckpoint, ADamagedPartIsRefused) {
  const TempDir dir;
  const JobCheckpointOptions options{dir.path(), "topics", kProblem};
  save_steps(1, options, 1, 1);
  const std::string path = dir.file("part-1-0-of-1");
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path));
  with_checkpoints(1, options, [&](Group&, JobCheckpoint& checkpoint) {
    const auto state = checkpoint.find();
    ASSERT_TRUE(state);
    for (int64_t at = 1; at <= bytes; ++at) {
      flip(path, at);
      EXPECT_THROW(checkpoint.read(*state, 0), Error) << at;
      flip(path, at);
    }
    EXPECT_NO_THROW(checkpoint.read(*state, 0));
    std::filesystem::resize_file(path, 7);
    EXPECT_THROW(checkpoint.read(*state, 0), Error);
    std::filesystem::remove(path);
    EXPECT_THROW(checkpoint.read(*state, 0), Error);
  });
}

// A second run would remove parts that the first one's manifest names.
TEST(JobCheckpoint, ASecondRunInTheFolderIsRefused) {
  const TempDir dir;
  const JobCheckpointOptions options{dir.path(), "topics", kProblem};
  with_checkpoints(1, options, [&](Group& group, JobCheckpoint& checkpoint) {
    checkpoint.find();
    save_step(group, checkpoint, 1);
    const std::string fault = fault_of_find(options, ErrorCode::kConfig);
    EXPECT_THAT(fault, HasSubstr("--checkpoint: "));
    EXPECT_THAT(fault, HasSubstr(fmt::format("is in use by process {}", ::getpid())));
    save_step(group, checkpoint, 2);
  });
  save_steps(2, options, 3, 3);  // the lock has been released
}

TEST(JobCheckpoint, ARunThatHasLostItsLockWritesNothing) {
  const TempDir dir;
  const JobCheckpointOptions options{dir.path(), "topics", kProblem};
  with_checkpoints(2, options, [&](Group& group, JobCheckpoint& checkpoint) {
    checkpoint.find();
    save_step(group, checkpoint, 1);
    if (group.rank() == 0) take_lock_elsewhere(dir.path());
    try {
      save_step(group, checkpoint, 2);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCheckpoint);
      EXPECT_THAT(error.what(), HasSubstr("process 1 on elsewhere has taken over the folder"));
    }
    EXPECT_FALSE(std::filesystem::exists(dir.file("part-2-0-of-2")));
    EXPECT_FALSE(std::filesystem::exists(dir.file("part-2-1-of-2")));
  });
}

TEST(JobCheckpoint, TemporaryFilesOfAKilledRunAreRemoved) {
  const TempDir dir;
  const JobCheckpointOptions options{dir.path(), "topics", kProblem};
  save_steps(2, options, 1, 1);
  for (const char* name : {"part-2-1-of-2.123-0.tmp", "probe-1.123-0.tmp", "job.json.123-0.tmp", "own.tmp"})
    std::ofstream(dir.file(name)) << "x";
  with_checkpoints(2, options, [](Group&, JobCheckpoint& checkpoint) { checkpoint.find(); });
  EXPECT_EQ(names_in(dir.path()),
            (std::set<std::string>{"job.json", "own.tmp", "part-1-0-of-2", "part-1-1-of-2"}));
}

// Without this, the other ranks would wait for the one that has failed.
TEST(JobCheckpoint, AFaultOfOneRankIsThrownByAllAndTheCheckpointBeforeStays) {
  const TempDir dir;
  const JobCheckpointOptions options{dir.path(), "topics", kProblem};
  save_steps(2, options, 1, 1);
  std::filesystem::create_directory(dir.file("part-2-1-of-2"));  // rank 1 cannot write its part
  with_checkpoints(2, options, [&](Group& group, JobCheckpoint& checkpoint) {
    checkpoint.find();
    try {
      save_step(group, checkpoint, 2);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.rank(), 1);
      EXPECT_EQ(error.code(), ErrorCode::kCheckpoint);
      EXPECT_THAT(error.what(), HasSubstr("part-2-1-of-2"));
    }
    const auto state = checkpoint.find();
    ASSERT_TRUE(state);
    EXPECT_EQ(state->step, 1);
    EXPECT_EQ(checkpoint.read(*state, group.rank()).get<int32_t>("numbers").front(), 10);
  });
}

}  // namespace
}  // namespace starling
