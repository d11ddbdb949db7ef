#include "starling/spec/describe.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "starling/base/error.h"
#include "starling/spec/schema.h"
#include "starling/spec/strategy_table.h"

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
            "  Number of processes that train together.\n\n"
            "  type     an integer\n"
            "  default  1\n"
            "  allowed  at least 1 and at most 65536\n"
            "  unit     processes\n"
            "  flag     -n, --ranks N\n"
            "  set by   --set train.ranks=1\n"
            "  resume   must not change when a run is resumed\n");
  EXPECT_THAT(explain("optimizer"), HasSubstr("optimizer.momentum "));
  const auto json = nlohmann::json::parse(explain_json("optimizer.name"));
  EXPECT_EQ(json.at("key"), "optimizer.name");
  EXPECT_EQ(json.at("enum"), nlohmann::json({"sgd", "adam", "adamw", "adagrad", "lars", "lamb"}));
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

// Returns the content of a file of the repository.
std::string committed(const std::string& path) {
  const auto root = std::filesystem::path(__FILE__).parent_path().parent_path().parent_path();
  std::ifstream file(root / path);
  EXPECT_TRUE(file) << path << " is missing";
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Tests that the committed page equals the page of the schema.
// `starling config schema --markdown >docs/reference/configuration.md` writes the page.
TEST(Describe, CommittedPageIsCurrent) {
  EXPECT_TRUE(committed("docs/reference/configuration.md") == schema_markdown())
      << "renew it: starling config schema --markdown >docs/reference/configuration.md";
}

TEST(Describe, CommittedTablesOfStrategiesAreCurrent) {
  const std::string page = committed("docs/explanation/exchanges.md");
  const size_t begin = page.find("-->\n") + 4;
  const size_t end = page.find("\n<!-- the end of the tables -->");
  ASSERT_NE(end, std::string::npos);
  EXPECT_TRUE(page.substr(begin, end - begin) == "\n" + strategies_markdown())
      << "replace the tables by what `starling strategies --markdown` prints";
}

TEST(Describe, StrategiesNameEveryRowWithItsPage) {
  const std::string text = strategies_markdown();
  for (const StrategyRow& row : strategy_rows()) {
    std::string page = committed("docs/" + std::string(row.page.substr(0, row.page.find('#'))));
    EXPECT_GT(page.size(), 1000u) << row.page;
    if (row.exchange == nullptr) continue;
    EXPECT_FALSE(row.exchange->step.empty()) << row.name;
    EXPECT_FALSE(row.exchange->bytes.empty()) << row.name;
  }
  EXPECT_THAT(text, HasSubstr("| [`all-reduce`](all-reduce.md) | w ← w"));
  EXPECT_THAT(text, HasSubstr("\n| [`--hybrid auto\\|LAYERS`](tensor.md#hybrid) | "));
  EXPECT_THAT(text, HasSubstr("](../reference/codecs.md) | "));
}

// No exchange is missing in the table of what exchanges assume and guarantee, and none has a text that no row
// shows.
TEST(Describe, EveryExchangeSaysWhatItAssumesAndGuarantees) {
  const std::string text = strategies_markdown();
  for (const ExchangeTraits& exchange : exchange_table()) {
    const std::vector<ConsistencyRow> rows = consistency_rows(exchange);
    for (const std::string_view all : {exchange.assumes, exchange.guarantees})
      EXPECT_EQ(std::count(all.begin(), all.end(), '\n') + 1, std::ssize(rows))
          << exchange.name << ": " << all;
    for (const ConsistencyRow& row : rows) {
      EXPECT_GT(row.assumes.size(), 10u) << row.name;
      EXPECT_GT(row.guarantees.size(), 10u) << row.name;
      EXPECT_THAT(text, HasSubstr("| [`" + row.name + "`](")) << row.name;
      EXPECT_THAT(text, HasSubstr(") | " + std::string(row.kind) + " | " + std::string(row.waits) + " | "));
    }
  }
}

TEST(Describe, TheKindOfAnExchangeFollowsFromItsTraits) {
  const auto kinds = [](ExchangeTraits traits) {
    traits.name = "x";
    traits.assumes = "a\nb\nc";
    traits.guarantees = "d\ne";
    traits.one_process_update = true;
    std::string all;
    for (const ConsistencyRow& row : consistency_rows(traits))
      all += fmt::format("{}: {} {}{}{};", row.name, row.kind, row.assumes, row.guarantees, row.one_process);
    return all;
  };
  EXPECT_EQ(kinds({.lockstep = Lockstep::kEveryStep}), "x: synchronous adtrue;");
  EXPECT_EQ(kinds({.lockstep = Lockstep::kRounds}), "x: bounded adfalse;");
  EXPECT_EQ(kinds({.lockstep = Lockstep::kNever, .neighbors = true}), "x: bounded adfalse;");
  EXPECT_EQ(kinds({.lockstep = Lockstep::kNever}), "x: asynchronous adfalse;");
  EXPECT_EQ(kinds({.lockstep = Lockstep::kByStaleness}),
            "x --staleness 0: synchronous adtrue;x --staleness s: bounded befalse;x --staleness inf: "
            "asynchronous cfalse;");
}

// Returns the cells of the rows of README's table of strategies, without spaces around them.
std::vector<std::vector<std::string>> readme_rows(const std::string& readme) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream section(readme.substr(readme.find("\n## Strategies\n")));
  std::string line;
  while (std::getline(section, line) && line != "## Speed") {
    if (!line.starts_with("| `--")) continue;
    std::vector<std::string> cells;
    std::istringstream row(line.substr(2));
    for (std::string cell; std::getline(row, cell, '|');) {
      cell.erase(cell.find_last_not_of(' ') + 1);
      cells.push_back(cell.substr(std::min(cell.find_first_not_of(' '), cell.size())));
    }
    rows.push_back(cells);
  }
  return rows;
}

// Returns the file that the link "[text](file)" or "[text][number]" of README names.
std::string readme_target(const std::string& readme, const std::string& link) {
  if (link.ends_with(')')) return link.substr(link.find('(') + 1, link.size() - link.find('(') - 2);
  const std::string definition = "\n" + link.substr(link.rfind('[')) + ": ";
  const size_t begin = readme.find(definition);
  if (begin == std::string::npos) return "no " + definition;
  return readme.substr(begin + definition.size(), readme.find('\n', begin + 1) - begin - definition.size());
}

// README's short table: each row has the advice and the page of the table of strategies, and each exchange
// has a row.
TEST(Describe, ReadmeShowsTheStrategies) {
  const std::string readme = committed("README.md");
  std::set<std::string> shown;
  for (const auto& cells : readme_rows(readme)) {
    ASSERT_EQ(cells.size(), 3u) << cells.front();
    std::string flag = cells[0].substr(1, cells[0].size() - 2);
    constexpr std::string_view kExchange = "--exchange ";
    if (flag.starts_with(kExchange)) flag = flag.substr(kExchange.size());
    const auto rows = strategy_rows();
    const auto row = std::find_if(rows.begin(), rows.end(), [&](const StrategyRow& r) {
      return r.name == flag || r.name.starts_with(flag + "|");
    });
    ASSERT_NE(row, rows.end()) << flag << " is in README only";
    EXPECT_TRUE(cells[1].starts_with(row->use_when)) << flag << ": README says when \"" << cells[1] << '"';
    EXPECT_TRUE(("docs/" + std::string(row->page)).starts_with(readme_target(readme, cells[2])))
        << flag << ": README's page is " << readme_target(readme, cells[2]);
    shown.insert(row->name);
  }
  for (const ExchangeTraits& exchange : exchange_table())
    EXPECT_TRUE(shown.contains(std::string(exchange.name))) << exchange.name << " has no row in README";
}

}  // namespace
}  // namespace starling
