// Tests the rows that a program adds: what is refused, and that the configuration knows them.
#include "starling/spec/extensions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "starling/base/error.h"
#include "starling/spec/command_line.h"
#include "starling/spec/config.h"
#include "starling/spec/print.h"
#include "starling/spec/validate.h"

// The functions of the rows are never called here, so their types need no contents.
namespace starling {
class Strategy {};
class Codec {};
struct DataSets {};
}  // namespace starling

namespace starling {
namespace {

using testing::HasSubstr;

std::unique_ptr<Strategy> no_strategy(const ExchangeParts& /*parts*/) {
  return nullptr;
}
std::unique_ptr<Codec> no_codec(const CodecSpec& /*spec*/, const std::vector<TensorShape>& /*shapes*/) {
  return nullptr;
}
DataSets no_data(const SourceRequest& /*request*/) {
  return {};
}
void no_all_reduce(RemoteTeam& /*team*/, void* /*data*/, size_t /*count*/, const Elements& /*elements*/) {}

// Returns the message of the fault that `call` throws, or an empty text.
template <typename Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Extensions, RefusesRowsThatCannotBeUsed) {
  const auto refused = [](const Extensions& extensions) { return refusal_of([&] { extensions.check(); }); };
  EXPECT_EQ(refused(Extensions().exchange({.name = "mine"}, no_strategy).codec({.name = "mine"}, no_codec)),
            "");
  EXPECT_EQ(refused(Extensions().exchange({.name = "gossip"}, no_strategy)),
            "starling::Extensions: the exchange \"gossip\": Starling has this name already. Use another one");
  EXPECT_EQ(refused(Extensions().codec({.name = "mine"}, no_codec).codec({.name = "mine"}, no_codec)),
            "starling::Extensions: the codec \"mine\" is added twice");
  EXPECT_THAT(refused(Extensions().codec({.name = "mine", .values = "fp16"}, no_codec)),
              HasSubstr("the codec \"mine\": traits.values must be empty"));
  EXPECT_EQ(refused(Extensions().source("my:kind", "", no_data)),
            "starling::Extensions: the data source \"my:kind\": a name consists of letters, digits, - and _");
  EXPECT_EQ(refused(Extensions().all_reduce("", no_all_reduce)),
            "starling::Extensions: the all-reduce \"\": a name consists of letters, digits, - and _");
  EXPECT_EQ(refused(Extensions().all_reduce("ring", no_all_reduce)),
            "starling::Extensions: the all-reduce \"ring\": Starling has this name already. Use another one");
  EXPECT_EQ(refused(Extensions().exchange({.name = "mine"}, nullptr)),
            "starling::Extensions: the exchange \"mine\" has no function that makes it");
  EXPECT_THAT(refused(Extensions().exchange({.name = "mine", .shards = true}, no_strategy)),
              HasSubstr("traits.shards must be false"));
}

TEST(Extensions, OwnTheTextsOfTheirTraits) {
  Extensions extensions;
  {
    const std::string name = "a-name-that-is-longer-than-a-small-string",
                      settings = "first second third fourth";
    extensions.exchange({.name = name, .keys = settings}, no_strategy);
    extensions.codec({.name = name, .settings = settings}, no_codec);
  }
  const Extensions copy = extensions;
  const AddedExchange* exchange = find_added_exchange(&copy, "a-name-that-is-longer-than-a-small-string");
  ASSERT_NE(exchange, nullptr);
  EXPECT_TRUE(exchange->traits.reads("third"));
  EXPECT_EQ(find_added_codec(&copy, exchange->traits.name)->traits.settings, "first second third fourth");
  EXPECT_EQ(find_added_exchange(nullptr, "mine"), nullptr);
  EXPECT_EQ(find_added_source(&copy, "mine"), nullptr);
}

class WithRows : public testing::Test {
 protected:
  WithRows() {
    Extensions extensions;
    extensions.exchange(
        {.name = "mine", .keys = "graph codec", .lockstep = Lockstep::kEveryStep, .codec = true},
        no_strategy);
    extensions.source("rows", "rows:FILE", no_data).all_reduce("line", no_all_reduce);
    extensions.codec({.name = "grid", .momentum = false}, no_codec);
    config_.spec.extensions = std::make_shared<Extensions>(extensions);
  }
  Config config_;
};

TEST_F(WithRows, TheConfigurationKnowsThem) {
  apply_set(config_, "exchange.name=mine");
  apply_set(config_, "comm.algorithm=line");
  apply_set(config_, "data.source=rows:x");
  apply_set(config_, "exchange.codec=grid");
  config_.spec.model.name = kUserModel;
  EXPECT_THAT(validate(config_.spec, config_.origins), testing::IsEmpty());
  EXPECT_TRUE(in_lockstep(config_.spec));
  EXPECT_EQ(exchanges_of(config_.spec).back()->name, "mine");
  EXPECT_EQ(exchanges_of(RunSpec{}).size() + 1, exchanges_of(config_.spec).size());
  EXPECT_FALSE(find_codec("grid", config_.spec)->momentum);
  EXPECT_EQ(find_codec("grid", RunSpec{}), nullptr);
  apply_set(config_, "train.threads_mode=batch");
  EXPECT_THAT(refusal_of([&] { validate(config_.spec, config_.origins); }),
              HasSubstr("works with exchange.name = \"all-reduce\" only, not with \"mine\""));
}

TEST_F(WithRows, OtherConfigurationsDoNot) {
  Config other;
  EXPECT_THAT(refusal_of([&] { apply_set(other, "exchange.name=mine"); }),
              HasSubstr("exchange.name = \"mine\" is unknown: "));
  EXPECT_THAT(refusal_of([&] { apply_set(other, "comm.algorithm=line"); }),
              HasSubstr("or the program that adds it (starling::Extensions)"));
  EXPECT_THAT(refusal_of([&] { apply_set(config_, "exchange.name=mines"); }),
              HasSubstr("did you mean \"mine\"? use one of all-reduce, "));
}

TEST_F(WithRows, ACheckpointOfTheProgramIsReadWithoutThem) {
  apply_set(config_, "exchange.name=mine");
  config_.spec.model.name = kUserModel;
  const nlohmann::json json = spec_to_json(config_.spec);
  EXPECT_EQ(spec_from_json(json, "state.json").exchange.name, "mine");
  nlohmann::json of_starling = json;
  of_starling["model"]["name"] = "lenet5";
  EXPECT_THAT(refusal_of([&] { spec_from_json(of_starling, "state.json"); }),
              HasSubstr("state.json: exchange.name = \"mine\" is unknown"));
}

TEST(Extensions, AProgramTakesStarlingsKindsOfData) {
  const auto extensions = std::make_shared<Extensions>(Extensions().take_data());
  EXPECT_TRUE(extensions->takes_data());
  EXPECT_FALSE(Extensions().takes_data());
  const char* const line[] = {"program", "--data", "images:pets", "--set", "data.augment=true"};
  const RunSpec spec = ProgramOptions("program", extensions).parse(5, line).config.spec;
  EXPECT_EQ(spec.data.source, "images:pets");
  EXPECT_TRUE(spec.data.augment);
  const char* const unknown[] = {"program", "--data", "csv:points.csv"};
  const Config config = ProgramOptions("program", extensions).parse(3, unknown).config;
  EXPECT_THAT(refusal_of([&] { validate(config.spec, config.origins); }),
              HasSubstr("data.source = \"csv:points.csv\" is unknown"));
}

TEST_F(WithRows, OnlyAProgramWithASourceTakesTheKeysOfData) {
  const char* const line[] = {"program", "--data", "rows:x", "--set", "model.tokens=8"};
  EXPECT_EQ(ProgramOptions("program", config_.spec.extensions).parse(5, line).config.spec.data.source,
            "rows:x");
  EXPECT_THAT(refusal_of([&] { ProgramOptions("program").parse(3, line); }),
              HasSubstr("--data: data.source does not apply, because this program brings its own data"));
  const char* const model[] = {"program", "--set", "model.name=lenet5"};
  EXPECT_THAT(refusal_of([&] { ProgramOptions("program", config_.spec.extensions).parse(3, model); }),
              HasSubstr("model.name does not apply, because this program brings its own model"));
}

}  // namespace
}  // namespace starling
