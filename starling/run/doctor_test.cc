#include "starling/run/doctor.h"

#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

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

}  // namespace
}  // namespace starling
