#include "starling/commands/doctor.h"

#include <ATen/Context.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "starling/commands/cpu_topology.h"

namespace starling {
namespace {

using testing::HasSubstr;

TEST(Doctor, MeasuresThisMachineAndLeavesTheSettingsAlone) {
  at::globalContext().setFloat32MatmulPrecision("high");
  const DoctorReport report = examine();
  EXPECT_EQ(at::globalContext().float32MatmulPrecision(), at::Float32MatmulPrecision::HIGH);
  at::globalContext().setFloat32MatmulPrecision("highest");
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["event"], "doctor");
  for (const char* key : {"gemm_fp32_mkl_gflops", "gemm_fp32_onednn_gflops", "gemm_bf16_gflops"}) {
    EXPECT_GT(json["arithmetic"][key].get<double>(), 0) << key;
  }
  EXPECT_LT(json["arithmetic"]["gemm_fp32_mkl_error"].get<double>(), 1e-5);
  EXPECT_GT(json["arithmetic"]["gemm_fp32_mkl_error"].get<double>(), 0);
  EXPECT_GE(json["cpu"]["cores"].get<int>(), 1);
  EXPECT_GT(json["memory"]["total_bytes"].get<double>(), 0);
  EXPECT_THAT(json["build"]["libtorch"].get<std::string>(), HasSubstr("2."));
  EXPECT_TRUE(json["network"].contains("interface_lo"));
  EXPECT_TRUE(json["network"].contains("congestion_control"));
  EXPECT_TRUE(json["limits"].contains("open_files"));
}

TEST(Doctor, TextNamesEachProblemWithItsFixAndKeepsTheWidth) {
  DoctorReport report;
  report.sections = {
      {"cpu",
       {{"model", "model", std::string("a long name ") + "of several words that goes on and on", 0, false}}}};
  report.problems = {{"few files", "ulimit -n 65536", true}};
  const std::string text = to_text(report, false, 50);
  EXPECT_THAT(text, HasSubstr("problem few files\n          fix: ulimit -n 65536"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 50u) << line;
  EXPECT_THAT(to_text({}, false), HasSubstr("No problems found."));
}

// Makes two sockets with two cores each. Each core has two hardware threads. Processor 7 is offline.
TEST(CpuTopology, CountsWhatTheProcessorsShare) {
  const std::filesystem::path root =
      std::filesystem::temp_directory_path() / fmt::format("topology-{}", ::getpid());
  const auto write = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text << '\n';
  };
  for (int cpu = 0; cpu < 7; ++cpu) {
    const std::string folder = fmt::format("cpu/cpu{}", cpu),
                      pair = fmt::format("{}-{}", cpu / 2 * 2, cpu / 2 * 2 + 1);
    write(folder + "/topology/thread_siblings_list", pair);
    write(folder + "/topology/physical_package_id", std::to_string(cpu / 4));
    const auto cache = [&](int index, const char* level, const char* type, const char* size,
                           const std::string& shared) {
      const std::string at = fmt::format("{}/cache/index{}", folder, index);
      write(at + "/level", level);
      write(at + "/type", type);
      write(at + "/size", size);
      write(at + "/shared_cpu_list", shared);
    };
    cache(0, "1", "Data", "48K", pair);
    cache(1, "1", "Instruction", "32K", pair);
    cache(2, "3", "Unified", "30M", cpu < 4 ? "0-3" : "4-7");
  }
  write("cpu/cpu7/online", "0");
  write("cpu/cpufreq/boost", "1");
  write("node/node0/cpulist", "0-3");
  write("node/node1/cpulist", "4-7");
  const doctor::CpuTopology topology = doctor::read_cpu_topology(root);
  EXPECT_EQ(topology.packages, 2);
  EXPECT_EQ(topology.cores, 4);
  EXPECT_EQ(topology.units, 7);
  EXPECT_EQ(topology.numa_nodes, 2);
  ASSERT_EQ(topology.caches.size(), 2u);
  EXPECT_EQ(topology.caches.at(1).count, 4);
  EXPECT_EQ(topology.caches.at(1).bytes, 48u << 10);
  EXPECT_EQ(topology.caches.at(3).count, 2);
  EXPECT_EQ(topology.caches.at(3).bytes, 30u << 20);
  std::filesystem::remove_all(root);
  EXPECT_EQ(doctor::read_cpu_topology(root).units, 0);
}

}  // namespace
}  // namespace starling
