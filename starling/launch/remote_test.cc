// Tests of the protocol between the launcher and the agents, and of the errors when a command ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/launch/host_agent.h"
#include "starling/launch/host_lines.h"
#include "starling/launch/launch_rendezvous.h"
#include "starling/launch/remote_command.h"
#include "starling/launch/version.h"
#include "starling/testing/error_of.h"

namespace starling {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

TEST(HostLines, WordsAndNumbers) {
  const HostLine line = split_host_line("out 3  two  blanks ");
  EXPECT_EQ(line.word, "out");
  const auto number = split_number(line.rest);
  ASSERT_TRUE(number);
  EXPECT_EQ(number->first, 3);
  EXPECT_EQ(number->second, " two  blanks ");
  EXPECT_EQ(split_host_line("alone").rest, "");
  EXPECT_FALSE(split_number("x 3"));
  EXPECT_FALSE(split_number(""));
  EXPECT_FALSE(split_number("99999999999999 x"));
  EXPECT_THAT(words_of_line("  a  b "), ElementsAre("a", "b"));
}

TEST(HostLines, HelloComesBackAndNoiseIsNone) {
  const HostHello hello{kHostProtocol, program_version(), "id \"1\"", "node-a"};
  const auto read = parse_hello(to_line(hello));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->version, hello.version);
  EXPECT_EQ(read->host_id, hello.host_id);
  EXPECT_EQ(read->host_name, "node-a");
  for (const char* noise : {"", "Welcome to node-a", "starling-host", "starling-host {", "starling-host []",
                            "starling-host {\"version\":7}"})
    EXPECT_FALSE(parse_hello(noise)) << noise;
}

TEST(HostLines, NumbersOutOfRangeAreRefused) {
  EXPECT_EQ(error_code_of(static_cast<int>(ErrorCode::kData)), ErrorCode::kData);
  for (const int number : {-1, 99, 2'000'000'000}) EXPECT_EQ(error_code_of(number), ErrorCode::kInternal);
  const auto line_of = [](const std::function<void(HostJob&)>& change) {
    HostJob job{"id", make_job_identity().key};
    change(job);
    return to_line(job).substr(4);
  };
  EXPECT_EQ(parse_job(line_of([](HostJob&) {})).ranks, 1);
  for (const std::string& line :
       {line_of([](HostJob& job) { job.ranks = 0; }), line_of([](HostJob& job) { job.first = -1; }),
        line_of([](HostJob& job) { job.first = 1; }), line_of([](HostJob& job) { job.threads = -2; }),
        line_of([](HostJob& job) { job.security = static_cast<DataSecurity>(9); })})
    EXPECT_THROW(parse_job(line), Error) << line;
  std::string key = line_of([](HostJob&) {});
  key.replace(key.find("\"key\":\"") + 7, 2, "-f");
  EXPECT_THROW(parse_job(key), Error) << key;
}

TEST(HostLines, TheJobComesBackOnOneLine) {
  HostJob job{"id", make_job_identity().key};
  job.folder = "/a b";
  job.program = "app";
  job.argv = {"starling", "train", "--set", "data.source=\"x\ny\""};
  job.environment = {"OMP_PROC_BIND=1"};
  job.run_dir = "runs/x";
  job.interface = "eth0";
  job.security = DataSecurity::kEncrypt;
  job.first = 2;
  job.ranks = 3;
  job.world = 8;
  job.threads = 4;
  job.reach_ms = 7;
  job.silence_ms = 5;
  job.pin = false;
  job.listens = true;
  const std::string text = to_line(job);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const HostLine line = split_host_line(text);
  EXPECT_EQ(line.word, "job");
  const HostJob read = parse_job(line.rest);
  EXPECT_THAT(std::vector(read.key.bytes().begin(), read.key.bytes().end()),
              testing::ElementsAreArray(job.key.bytes()));
  EXPECT_EQ(read.folder, job.folder);
  EXPECT_EQ(read.program, job.program);
  EXPECT_EQ(read.argv, job.argv);
  EXPECT_EQ(read.security, job.security);
  EXPECT_EQ(read.environment, job.environment);
  EXPECT_EQ(read.run_dir, job.run_dir);
  EXPECT_EQ(read.interface, job.interface);
  EXPECT_EQ(read.first + read.ranks + read.world + read.threads + read.reach_ms + read.silence_ms, 29);
  EXPECT_FALSE(read.pin);
  EXPECT_TRUE(read.listens);
  EXPECT_THROW(parse_job("{}"), Error);
  EXPECT_THROW(parse_job("nonsense"), Error);
}

TEST(RemoteCommand, QuotesForAShell) {
  EXPECT_EQ(shell_quoted("/opt/it's here/$x"), "'/opt/it'\\''s here/$x'");
}

TEST(RemoteCommand, IsLookedUpInThePath) {
  EXPECT_EQ(find_program("sh", {"PATH=/nowhere:/bin"}), "/bin/sh");
  EXPECT_EQ(find_program("/bin/sh", {}), "/bin/sh");
  for (const char* none : {"", "no-such-program", "/no/such/program", "/etc"})
    EXPECT_EQ(find_program(none, {"PATH=/bin"}), "") << none;
  const auto refusal = [](auto find) {
    return error_of<ConfigError>([find] { find("none", {"PATH=/bin"}); });
  };
  EXPECT_THAT(refusal(program_to_reach),
              StartsWith("launch.command: \"none\" is not a program on this host. Install"));
  EXPECT_THAT(refusal(program_to_start), StartsWith("launch: \"none\" is not a program on host "));
}

TEST(RemoteCommand, ThisHost) {
  EXPECT_TRUE(is_this_host("localhost"));
  EXPECT_TRUE(is_this_host("127.0.0.1"));
  EXPECT_FALSE(is_this_host("node-a.of.another.cluster"));
}

TEST(RemoteCommand, TheEnvironmentThatGoesAlong) {
  const char* environment[] = {
      "OMP_PROC_BIND=1", "HOME=/root",          "LD_LIBRARY_PATH=/l", "RANK=3", "AWS_SECRET=x",
      "MKL_X=2",         "LD_LIBRARY_PATHS=/m", "UCX_TLS=rc",         nullptr};
  EXPECT_THAT(forwarded_environment(environment),
              ElementsAre("OMP_PROC_BIND=1", "LD_LIBRARY_PATH=/l", "MKL_X=2", "UCX_TLS=rc"));
}

TEST(RemoteCommand, WhatItsEndMeans) {
  std::deque<std::string> words;
  keep_words(words, "  \r", 2);
  EXPECT_THAT(last_words(words), IsEmpty());
  for (const char* line : {"one", "two ", "three\r"}) keep_words(words, line, 2);
  EXPECT_EQ(last_words(words), ": two; three");
  const Error missing = connection_error("ssh -x", "/opt/starling", "b", {false, 127}, words);
  EXPECT_EQ(missing.code(), ErrorCode::kConfig);
  EXPECT_THAT(missing.what(),
              StartsWith("launch.program: host b cannot run /opt/starling: two; three. Install"));
  const Error unknown = connection_error("ssh -x", "/opt/starling", "b", {false, 255}, words);
  EXPECT_EQ(unknown.code(), ErrorCode::kComm);
  EXPECT_THAT(unknown.what(),
              StartsWith("host b cannot be reached (ssh ended with exit status 255): two; three."));
  EXPECT_THAT(unknown.what(), HasSubstr("ssh -x b true"));
}

TEST(HostAgent, IsAskedForByOneArgument) {
  const char* agent[] = {"starling", "--starling-host-agent"};
  const char* other[] = {"starling", "train", "--starling-host-agent"};
  EXPECT_TRUE(is_host_agent(2, agent));
  EXPECT_FALSE(is_host_agent(3, other));
  EXPECT_FALSE(is_host_agent(1, agent));
}

}  // namespace
}  // namespace starling
