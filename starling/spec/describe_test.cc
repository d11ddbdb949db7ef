#include "starling/spec/describe.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "starling/base/error.h"
#include "starling/spec/schema.h"

namespace starling {
namespace {

using testing::HasSubstr;

TEST(Describe, JsonSchemaCoversEveryKey) {
  const auto json = nlohmann::json::parse(json_schema());
  EXPECT_EQ(json.at("$schema"), "https://json-schema.org/draft/2020-12/schema");
  size_t count = 0;
  for (const auto& [name, table] : json.at("properties").items()) {
    EXPECT_EQ(table.at("additionalProperties"), false);
    count += table.at("properties").size();
  }
  EXPECT_EQ(count, schema().size());
  const auto& train = json.at("properties").at("train").at("properties");
  EXPECT_EQ(train.at("ranks").at("type"), "integer");
  EXPECT_EQ(train.at("ranks").at("minimum"), 1);
  EXPECT_EQ(train.at("ranks").at("default"), 1);
  EXPECT_EQ(train.at("precision").at("enum"), nlohmann::json({"fp32", "bf16", "fp64"}));
  EXPECT_EQ(train.at("bucket_mb").at("exclusiveMinimum"), 0);
  const auto& widths = json.at("properties").at("model").at("properties").at("widths");
  EXPECT_EQ(widths.at("items").at("type"), "integer");
  EXPECT_EQ(widths.at("default"), nlohmann::json({784, 256, 10}));
}

TEST(Describe, ExplainsAKey) {
  EXPECT_EQ(explain("train.ranks"),
            "train.ranks\n"
            "  Processes that train together.\n\n"
            "  type     an integer\n"
            "  default  1\n"
            "  allowed  at least 1 and at most 65536\n"
            "  unit     processes\n"
            "  flag     -n, --ranks N\n"
            "  set by   --set train.ranks=1\n"
            "  resume   must be as in the run that is resumed\n");
  EXPECT_THAT(explain("optimizer"), HasSubstr("optimizer.momentum "));
  const auto json = nlohmann::json::parse(explain_json("optimizer.name"));
  EXPECT_EQ(json.at("key"), "optimizer.name");
  EXPECT_EQ(json.at("enum").size(), 4u);
  EXPECT_EQ(json.at("flag"), "--optimizer NAME");
}

TEST(Describe, NamesTheNearKey) {
  try {
    explain("train.rnaks");
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "train.rnaks: no such key: did you mean train.ranks?");
  }
}

TEST(Describe, MarkdownNamesEveryKeyAndFlag) {
  const std::string text = schema_markdown();
  for (const SchemaEntry& entry : schema())
    EXPECT_THAT(text, HasSubstr("| `" + std::string(entry.key) + "` |"));
  EXPECT_THAT(text, HasSubstr("`-n, --ranks N`"));
}

// The committed page is what the schema says; `starling config schema --markdown >docs/configuration.md`
// renews it.
TEST(Describe, CommittedPageIsCurrent) {
  const auto root = std::filesystem::path(__FILE__).parent_path().parent_path().parent_path();
  std::ifstream file(root / "docs" / "configuration.md");
  ASSERT_TRUE(file) << "docs/configuration.md is missing";
  const std::string page{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_TRUE(page == schema_markdown())
      << "renew it: starling config schema --markdown >docs/configuration.md";
}

}  // namespace
}  // namespace starling
