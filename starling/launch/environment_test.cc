#include "starling/launch/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/launch/launch_options.h"
#include "starling/launch/slurm.h"

namespace starling {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

Environment read(std::vector<const char*> variables) {
  variables.push_back(nullptr);
  return read_environment(variables.data());
}

std::string complaint(const std::vector<const char*>& variables) {
  try {
    read(variables);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "none";
}

TEST(Environment, NothingSetIsAlone) {
  const Environment e = read({"TERM=xterm", "NO_COLOR=", "CI=false", "OMP_NUM_THREADS=4,2"});
  EXPECT_EQ(e.identity.origin, ProcessOrigin::kAlone);
  EXPECT_EQ(e.identity.world_size, 1);
  EXPECT_EQ(e.term, "xterm");
  EXPECT_FALSE(e.no_color);
  EXPECT_FALSE(e.ci);
  EXPECT_EQ(e.omp_num_threads, 4);
  EXPECT_EQ(e.key_fd, -1);
}

TEST(Environment, Torchrun) {
  const Environment e =
      read({"RANK=3", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=node-a",
            "MASTER_PORT=29500", "SLURM_PROCID=0", "SLURM_NTASKS=4", "NO_COLOR=1", "CI=true"});
  EXPECT_EQ(e.identity.origin, ProcessOrigin::kTorchrun);
  EXPECT_EQ(e.identity.rank, 3);
  EXPECT_EQ(e.identity.world_size, 8);
  EXPECT_EQ(e.identity.local_rank, 1);
  EXPECT_EQ(e.identity.local_world_size, 2);
  EXPECT_EQ(e.master_host, "node-a");
  EXPECT_EQ(e.master_port, 29500);
  EXPECT_TRUE(e.no_color);
  EXPECT_TRUE(e.ci);
}

TEST(Environment, ColorsAreForTerminalsUnlessItSaysOtherwise) {
  Environment e;
  e.term = "xterm";
  EXPECT_TRUE(wants_color(e, "always", -1));
  EXPECT_FALSE(wants_color(e, "never", -1));
  EXPECT_FALSE(wants_color(e, "auto", -1));  // no terminal
  e.no_color = true;
  EXPECT_TRUE(wants_color(e, "always", -1));
  const char* const contradictory[] = {"NO_COLOR=1", "RANK=5", "WORLD_SIZE=2", nullptr};
  EXPECT_FALSE(wants_color(contradictory, "auto", -1));
}

TEST(Environment, Srun) {
  const Environment e = read({"SLURM_PROCID=5", "SLURM_NTASKS=6", "SLURM_LOCALID=1", "SLURM_NODEID=2",
                              "SLURM_TASKS_PER_NODE=2(x3)", "SLURM_NODELIST=cpu[07-09]",
                              "SLURM_JOB_ID=123456", "SLURM_STEP_ID=0"});
  EXPECT_EQ(e.identity.origin, ProcessOrigin::kSlurm);
  EXPECT_EQ(e.identity.rank, 5);
  EXPECT_EQ(e.identity.world_size, 6);
  EXPECT_EQ(e.identity.local_rank, 1);
  EXPECT_EQ(e.identity.local_world_size, 2);
  EXPECT_EQ(e.master_host, "cpu07");
  EXPECT_EQ(e.master_port, 23456);
  EXPECT_EQ(e.job_id, "123456");
}

TEST(Environment, Mpiexec) {
  const Environment open =
      read({"OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=1",
            "OMPI_COMM_WORLD_LOCAL_SIZE=2", "PMIX_RANK=3", "PMIX_NAMESPACE=77", "SLURM_PROCID=0",
            "SLURM_NTASKS=2", "SLURM_STEP_ID=0", "SLURM_JOB_ID=5", "MASTER_ADDR=node-a"});
  EXPECT_EQ(open.identity.origin, ProcessOrigin::kMpi);
  EXPECT_EQ(open.identity.rank, 3);
  EXPECT_EQ(open.identity.world_size, 4);
  EXPECT_EQ(open.identity.local_rank, 1);
  EXPECT_EQ(open.identity.local_world_size, 2);
  EXPECT_EQ(open.job_id, "77");
  EXPECT_EQ(open.master_host, "node-a");
  EXPECT_EQ(open.master_port, 29500);
  const Environment mpich = read({"PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2"});
  EXPECT_EQ(mpich.identity.origin, ProcessOrigin::kMpi);
  EXPECT_EQ(mpich.identity.rank, 1);
  EXPECT_EQ(mpich.identity.local_world_size, 2);
  EXPECT_EQ(mpich.job_id, "");
  EXPECT_EQ(read({"PMI_RANK=0", "PMI_SIZE=1"}).identity.origin, ProcessOrigin::kAlone);
  EXPECT_THAT(complaint({"PMI_RANK=2", "PMI_SIZE=2"}), StartsWith("PMI_RANK: 2 contradicts PMI_SIZE=2"));
  EXPECT_THAT(complaint({"OMPI_COMM_WORLD_RANK=0"}), StartsWith("OMPI_COMM_WORLD_SIZE: not set"));
  EXPECT_THAT(complaint({"PMIX_RANK=0"}), StartsWith("PMIX_SIZE: not set, although PMIX_RANK is set"));
}

TEST(Environment, SrunsOwnVariablesComeBeforeThoseItSetsForMpi) {
  const Environment e =
      read({"PMI_RANK=1", "PMI_SIZE=2", "PMIX_RANK=1", "SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_LOCALID=1",
            "SLURM_TASKS_PER_NODE=2", "SLURM_NODELIST=a", "SLURM_STEP_ID=0"});
  EXPECT_EQ(e.identity.origin, ProcessOrigin::kSlurm);
  EXPECT_EQ(e.identity.local_world_size, 2);
}

TEST(Environment, ABatchScriptOrOneTaskIsAlone) {
  EXPECT_EQ(read({"SLURM_PROCID=0", "SLURM_NTASKS=4", "ENVIRONMENT=BATCH"}).identity.origin,
            ProcessOrigin::kAlone);
  EXPECT_EQ(read({"SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_STEP_ID=4294967290"}).identity.origin,
            ProcessOrigin::kAlone);
  EXPECT_EQ(read({"SLURM_PROCID=0", "SLURM_NTASKS=1", "SLURM_STEP_ID=0"}).identity.origin,
            ProcessOrigin::kAlone);
}

TEST(Environment, ContradictionsNameTheirVariables) {
  EXPECT_THAT(complaint({"RANK=0"}), StartsWith("WORLD_SIZE: not set, although RANK is set"));
  EXPECT_THAT(complaint({"WORLD_SIZE=2"}), StartsWith("RANK: not set, although WORLD_SIZE is set"));
  EXPECT_THAT(complaint({"RANK=2", "WORLD_SIZE=2"}), StartsWith("RANK: 2 contradicts WORLD_SIZE=2"));
  EXPECT_THAT(complaint({"RANK=x", "WORLD_SIZE=2"}), HasSubstr("RANK: \"x\" is not a number"));
  EXPECT_THAT(complaint({"RANK=-1", "WORLD_SIZE=2"}), HasSubstr("RANK: \"-1\""));
  EXPECT_THAT(complaint({"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=1"}),
              HasSubstr("LOCAL_WORLD_SIZE=1"));
  EXPECT_THAT(complaint({"RANK=0", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=3"}), HasSubstr("WORLD_SIZE=2"));
  EXPECT_THAT(complaint({"RANK=0", "WORLD_SIZE=2"}), StartsWith("MASTER_ADDR: not set"));
  EXPECT_THAT(complaint({"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h"}), StartsWith("MASTER_PORT: not set"));
  EXPECT_THAT(complaint({"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=70000"}),
              StartsWith("MASTER_PORT: "));
  EXPECT_THAT(complaint({"STARLING_KEY_FD=5", "STARLING_KEY_FILE=k"}), HasSubstr("STARLING_KEY_FILE"));
  EXPECT_THAT(complaint({"SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_LOCALID=1", "SLURM_STEP_ID=0"}),
              StartsWith("SLURM_NODELIST: \"\" names no host"));
}

TEST(Environment, ThreadsThatShareCoresWaitWithoutComputing) {
  LaunchOptions options;
  const auto of = [&](bool crowded, int count = 2) {
    return rank_environment(options, 0, {.count = count, .crowded = crowded}, 29501, {}, {});
  };
  EXPECT_THAT(of(true), Contains("OMP_WAIT_POLICY=passive"));
  EXPECT_THAT(of(true), Not(Contains(HasSubstr("GOMP_SPINCOUNT"))));
  EXPECT_THAT(of(false), Not(Contains(HasSubstr("OMP_WAIT_POLICY"))));
  EXPECT_THAT(of(false), Contains("GOMP_SPINCOUNT=1000"));
  EXPECT_THAT(of(false, 1), Not(Contains(HasSubstr("GOMP_SPINCOUNT"))));
  const char* chosen[] = {"OMP_WAIT_POLICY=active", nullptr};
  options.environment = chosen;
  EXPECT_THAT(of(true), Not(Contains("OMP_WAIT_POLICY=passive")));
  EXPECT_THAT(of(false), Not(Contains(HasSubstr("GOMP_SPINCOUNT"))));
}

TEST(Environment, TheLaunchersChildrenReadBackWhatItWrote) {
  LaunchOptions options;
  options.ranks = 4;
  options.run_dir = "runs/x";
  options.share.job_store = "10.0.0.1:4711";
  const char* outer[] = {"HOME=/root", "RANK=7", "WORLD_SIZE=9", "STARLING_KEY_FILE=/k", nullptr};
  options.environment = outer;
  const Rendezvous rendezvous{.address = "unix:@starling-1", .job_id = "j", .key_fd = {}, .server = {}};
  const std::vector<std::string> strings =
      rank_environment(options, 2, {.count = 3}, 29501, rendezvous, {.key = 10, .error = 11, .board = 12});
  EXPECT_THAT(strings, Contains("HOME=/root"));
  EXPECT_THAT(strings, Not(Contains(HasSubstr("KEY_FILE"))));
  EXPECT_THAT(strings, Not(Contains(HasSubstr("OMP_WAIT_POLICY"))));
  std::vector<const char*> variables;
  variables.reserve(strings.size());
  for (const std::string& s : strings) variables.push_back(s.c_str());
  const Environment e = read(variables);
  EXPECT_EQ(e.identity.origin, ProcessOrigin::kLauncher);
  EXPECT_EQ(e.identity.rank, 2);
  EXPECT_EQ(e.identity.local_world_size, 4);
  EXPECT_EQ(e.store, "unix:@starling-1");
  EXPECT_EQ(e.job_store, "10.0.0.1:4711");
  EXPECT_EQ(e.job_id, "j");
  EXPECT_EQ(e.key_fd, 10);
  EXPECT_EQ(e.error_fd, 11);
  EXPECT_EQ(e.board_fd, 12);
  EXPECT_EQ(e.omp_num_threads, 3);
  EXPECT_EQ(e.run_dir, "runs/x");
  EXPECT_EQ(e.master_port, 29501);
}

TEST(Slurm, FirstHost) {
  EXPECT_EQ(first_slurm_host("gpu[07-12,20],login"), "gpu07");
  EXPECT_EQ(first_slurm_host("node1,node2"), "node1");
  EXPECT_EQ(first_slurm_host("node-3.cluster"), "node-3.cluster");
  EXPECT_EQ(first_slurm_host("rack[2-3]n[004,9]x"), "rack2n004x");
  EXPECT_EQ(first_slurm_host("bad[1-"), "");
  EXPECT_EQ(first_slurm_host("bad[]"), "");
  EXPECT_EQ(first_slurm_host(""), "");
}

TEST(Slurm, TasksPerNode) {
  EXPECT_THAT(slurm_tasks_per_node("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(slurm_tasks_per_node("4"), ElementsAre(4));
  EXPECT_THAT(slurm_tasks_per_node("2(x"), IsEmpty());
  EXPECT_THAT(slurm_tasks_per_node("2(x999999999)"), IsEmpty());
  EXPECT_THAT(slurm_tasks_per_node("two"), IsEmpty());
}

}  // namespace
}  // namespace starling
