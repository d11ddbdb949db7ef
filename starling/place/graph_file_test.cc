#include "starling/place/graph_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>

#include "starling/base/error.h"

namespace starling {
namespace {

// Returns the message of the error, or an empty text if there is none.
std::string refusal(const std::string& text) {
  try {
    parse_placement_file(text, "graph.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

TEST(PlacementFile, HoldsGroupsDevicesAndALink) {
  const PlacementFile file = parse_placement_file(
      R"({"groups": [{"name": "a", "kind": "conv", "forward_s": 1, "backward_s": 2, "state_bytes": 8},
                     {"name": "b", "inputs": ["a"]}, {"inputs": ["a", "b"]}],
          "devices": [{"speed": 2, "memory_bytes": 100}, {"name": "slow"}],
          "link": {"latency_s": 0.5, "bytes_per_s": 4}})",
      "graph.json");
  ASSERT_EQ(file.graph.groups.size(), 3u);
  EXPECT_EQ(file.graph.groups[0].kind, "conv");
  EXPECT_EQ(file.graph.groups[0].backward_s, 2);
  EXPECT_EQ(file.graph.groups[2].name, "group 2");
  EXPECT_THAT(file.graph.groups[2].inputs, testing::ElementsAre(0, 1));
  ASSERT_TRUE(file.topology.has_value());
  EXPECT_EQ(file.topology->devices[0].speed, 2);
  EXPECT_TRUE(std::isinf(file.topology->devices[1].memory_bytes));
  EXPECT_EQ(file.topology->devices[1].name, "slow");
  EXPECT_EQ(file.topology->links[0][1].latency_s, 0.5);
  EXPECT_EQ(file.topology->links[1][0].occupied_s(8), 2);
  EXPECT_FALSE(parse_placement_file(R"({"groups": [{"update_s": 1}]})", "graph.json").topology.has_value());
}

TEST(PlacementFile, HasTheGraphThatWasWritten) {
  const PlacementGraph graph = make_towers(2, 2, 9);
  const PlacementGraph read = parse_placement_file(placement_file_text(graph), "graph.json").graph;
  ASSERT_EQ(read.groups.size(), graph.groups.size());
  for (size_t g = 0; g < graph.groups.size(); ++g) {
    const OperationGroup &a = read.groups[g], &b = graph.groups[g];
    EXPECT_EQ(std::tie(a.name, a.kind, a.forward_s, a.backward_s, a.update_s, a.state_bytes, a.kept_bytes,
                       a.output_bytes, a.inputs),
              std::tie(b.name, b.kind, b.forward_s, b.backward_s, b.update_s, b.state_bytes, b.kept_bytes,
                       b.output_bytes, b.inputs));
  }
}

TEST(PlacementFile, RefusesWhatIsWrongAndNamesIt) {
  using testing::HasSubstr;
  EXPECT_THAT(refusal("{"), HasSubstr("is no JSON"));
  EXPECT_THAT(refusal("[]"), HasSubstr("must be an object"));
  EXPECT_THAT(refusal("{}"), HasSubstr("no operation groups"));
  EXPECT_THAT(refusal(R"({"groups": 3})"), HasSubstr("\"groups\", which must be an array"));
  EXPECT_THAT(refusal(R"({"groups": [{"forward": 1}]})"), HasSubstr("unknown key \"forward\""));
  EXPECT_THAT(refusal(R"({"groups": [{"forward_s": "1"}]})"), HasSubstr("\"forward_s\" that is no number"));
  EXPECT_THAT(refusal(R"({"groups": [{"forward_s": -1}]})"), HasSubstr("forward_s -1"));
  EXPECT_THAT(refusal(R"({"groups": [{"name": 1}]})"), HasSubstr("\"name\" that is no text"));
  EXPECT_THAT(refusal(R"({"groups": [{"name": "a", "inputs": ["a"]}]})"), HasSubstr("no earlier group"));
  EXPECT_THAT(refusal(R"({"groups": [{"inputs": [0]}]})"), HasSubstr("no earlier group"));
  EXPECT_THAT(refusal(R"({"groups": [{"name": "a"}, {"name": "a"}]})"), HasSubstr("named \"a\""));
  EXPECT_THAT(refusal(R"({"groups": [{"forward_s": 1}], "devices": []})"), HasSubstr("names no device"));
  EXPECT_THAT(refusal(R"({"groups": [{"forward_s": 1}], "devices": [{"speed": 0}]})"),
              HasSubstr("the speed 0"));
  EXPECT_THAT(refusal(R"({"groups": [{"forward_s": 1}], "devices": [{}], "link": {"bytes_per_s": 0}})"),
              HasSubstr("a bandwidth above 0"));
  EXPECT_THAT(refusal(R"({"groups": [{"forward_s": 1}], "link": {}})"), HasSubstr("no devices"));
  EXPECT_THAT(refusal(R"({"groups": [{"output_bytes": 1}]})"), HasSubstr("take 0 s"));
  EXPECT_THAT(refusal(R"({"groups": [{"forward_s": 1e308}, {"forward_s": 1e308}]})"),
              HasSubstr("take inf s"));
  std::string devices = "{}";
  for (size_t d = 0; d < kMostDevices; ++d) devices += ", {}";
  EXPECT_THAT(refusal(R"({"groups": [{"forward_s": 1}], "devices": [)" + devices + "]}"),
              HasSubstr("names 17 devices"));
}

TEST(PlacementFile, RefusesTextThatIsNestedDeeply) {
  // Without a limit, so many levels overflow the stack.
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  EXPECT_THAT(refusal(deep), testing::HasSubstr("nested deeper than 8 levels"));
  EXPECT_THAT(refusal(R"({"groups": [{"inputs": [[[[[[[[[[]]]]]]]]]]}]})"),
              testing::HasSubstr("nested deeper"));
}

// The number of links is the square of that of the devices: 576 MB from a file of 24 KB.
TEST(PlacementFile, RefusesManyDevicesBeforeItMakesTheirLinks) {
  std::string devices = "{}";
  for (int d = 1; d < 6000; ++d) devices += ", {}";
  const std::string text = R"({"groups": [{"forward_s": 1}], "devices": [)" + devices + "]}";
  const auto peak_kb = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  const auto before = peak_kb();
  EXPECT_THAT(refusal(text), testing::HasSubstr("names 6000 devices; the largest number is 16"));
  EXPECT_LT(peak_kb() - before, 100'000);
}

TEST(PlacementFile, RefusesAFolderAndAMissingFile) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "folder.json";
  std::filesystem::create_directories(folder);
  EXPECT_THROW(read_placement_text(folder.string()), ConfigError);
  EXPECT_THROW(read_placement_text((folder / "graph.json").string()), ConfigError);
  std::ofstream(folder / "graph.json") << "{}\n";
  EXPECT_EQ(read_placement_text((folder / "graph.json").string()), "{}\n");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace starling
