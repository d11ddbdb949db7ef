#include "starling/spec/schema.h"

#include <gmock/gmock.h>

#include <set>

#include "starling/base/error.h"

namespace starling {
namespace {

struct Anything {
  template <class T>
  operator T() const;
};

// Returns the number of fields of an aggregate, which is the largest number of initializers that it accepts.
template <class T, class... Fields>
constexpr size_t field_count() {
  if constexpr (requires { T{Fields{}..., Anything{}}; }) {
    return field_count<T, Fields..., Anything>();
  } else {
    return sizeof...(Fields);
  }
}

size_t entries_of(std::string_view table) {
  size_t count = 0;
  for (const SchemaEntry& entry : schema()) count += table_of(entry) == table;
  return count;
}

std::string error_of(const std::string& key, const Value& value) {
  RunSpec spec;
  try {
    write(*find_entry(key), spec, value, "here");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Schema, HasExactlyOneEntryForEachField) {
  EXPECT_EQ(entries_of("model"), field_count<ModelSpec>());
  EXPECT_EQ(entries_of("data"), field_count<DataSpec>());
  EXPECT_EQ(entries_of("optimizer"), field_count<OptimizerSpec>());
  EXPECT_EQ(entries_of("schedule"), field_count<ScheduleSpec>());
  EXPECT_EQ(entries_of("train"), field_count<TrainSpec>());
  EXPECT_EQ(entries_of("run"), field_count<RunFolderSpec>());
  EXPECT_EQ(entries_of("checkpoint"), field_count<CheckpointSpec>());
  EXPECT_EQ(entries_of("comm"), field_count<CommSpec>());
  EXPECT_EQ(entries_of("verify"), field_count<VerifySpec>());
  EXPECT_EQ(table_names().size() + 1, field_count<RunSpec>());  // RunSpec::extensions is no table
  std::set<std::string_view> keys;
  for (const SchemaEntry& entry : schema()) keys.insert(entry.key);
  EXPECT_EQ(keys.size(), schema().size());
}

// Returns a value of the entry's type that is in range and is not the default.
Value another_value(const SchemaEntry& entry) {
  Value standard = default_of(entry);
  switch (type_of(entry)) {
    case ValueType::kBool:
      return !std::get<bool>(standard);
    case ValueType::kInteger:
      return std::get<int64_t>(standard) + 1;
    case ValueType::kNumber:
      return std::get<double>(standard) * 0.5 + 0.125;
    case ValueType::kText:
      return "other";
    case ValueType::kWord: {
      const auto words = split_words(entry.allowed);
      return words.front() == std::get<std::string>(standard) ? words.back() : words.front();
    }
    case ValueType::kIntegers:
      return std::vector<int64_t>{3, 1, 4};
    case ValueType::kNumbers:
      return std::vector<double>{3, 1, 4};
  }
  return standard;
}

TEST(Schema, EachEntryReachesAFieldOfItsOwn) {
  for (const SchemaEntry& entry : schema()) {
    RunSpec spec;
    const Value value = another_value(entry);
    write(entry, spec, value, "test");
    for (const SchemaEntry& other : schema()) {
      EXPECT_EQ(read(other, spec), &other == &entry ? value : default_of(other))
          << entry.key << " wrote " << other.key;
    }
  }
}

TEST(Schema, DefaultsPassTheirOwnChecksAndEveryEntryIsDocumented) {
  for (const SchemaEntry& entry : schema()) {
    EXPECT_EQ(error_of(std::string(entry.key), default_of(entry)), "") << entry.key;
    EXPECT_TRUE(entry.doc.ends_with('.')) << entry.key;
    EXPECT_FALSE(entry.doc.starts_with(':')) << "no exchange reads " << entry.key;
    // The flag of a truth value has no argument.
    EXPECT_EQ(entry.flags.empty() || type_of(entry) == ValueType::kBool, entry.placeholder.empty())
        << entry.key;
  }
}

TEST(Schema, EnumeratorsAndWordsAgree) {
  EXPECT_EQ(to_string(Precision::kFp64), "fp64");
  EXPECT_EQ(to_string(ThreadsMode::kBatch), "batch");
  EXPECT_EQ(to_string(Order::kSequential), "sequential");
  EXPECT_EQ(to_string(BatchNorm::kSync), "sync");
  EXPECT_EQ(to_string(OptimizerShare::kSharded), "sharded");
  EXPECT_EQ(enum_from_string<Precision>("bf16"), Precision::kBf16);
  EXPECT_EQ(enum_from_string<Precision>("fp8"), std::nullopt);
  RunSpec spec;
  write(*find_entry("train.precision"), spec, std::string("bf16"), "test");
  EXPECT_EQ(spec.train.precision, Precision::kBf16);
}

TEST(Schema, RefusesWrongTypesWordsAndRanges) {
  EXPECT_EQ(error_of("train.ranks", std::string("two")), "here: train.ranks is an integer, not \"two\"");
  EXPECT_EQ(error_of("train.ranks", 2.5), "here: train.ranks is an integer, not 2.5");
  EXPECT_EQ(error_of("optimizer.lr", true), "here: optimizer.lr is a number, not true");
  EXPECT_EQ(error_of("model.widths", int64_t{3}), "here: model.widths is a list of integers, not 3");
  EXPECT_EQ(error_of("model.widths", std::vector<double>{0.5}),
            "here: model.widths is a list of integers, not [0.5]");
  EXPECT_EQ(error_of("train.ranks", int64_t{0}),
            "here: train.ranks = 0 is out of range: it must be at least 1 and at most 65536");
  EXPECT_EQ(error_of("optimizer.momentum", 1.0),
            "here: optimizer.momentum = 1.0 is out of range: it must be at least 0 and below 1");
  EXPECT_EQ(error_of("optimizer.lr", std::numeric_limits<double>::quiet_NaN()),
            "here: optimizer.lr = nan is out of range: it must be finite");
  EXPECT_EQ(error_of("model.widths", std::vector<int64_t>{784, 0}),
            "here: model.widths = [784, 0] is out of range: it must be at least 1");
  EXPECT_EQ(
      error_of("model.name", std::string("lenet")),
      "here: model.name = \"lenet\" is unknown: did you mean \"lenet5\"? use one of mlp, lenet5, resnet18, "
      "resnet34, resnet50, alexnet, nin, googlenet, vgg19, gpt, llama");
  EXPECT_EQ(error_of("optimizer.lr", int64_t{1}), "");  // an integer is a number
}

TEST(Schema, FindsTheNearKey) {
  EXPECT_EQ(near_key("train.rank"), "train.ranks");
  EXPECT_EQ(near_key("train.globalbatch"), "train.global_batch");
  EXPECT_EQ(near_key("lr"), "optimizer.lr");
  EXPECT_EQ(near_key("train.lr"), "optimizer.lr");
  EXPECT_EQ(near_key("optimiser.nmae"), "optimizer.name");
  EXPECT_EQ(near_key("train.batch"), "train.global_batch");
  EXPECT_EQ(near_key("zzzzzzzzzzzz"), "");
}

// A text that is not UTF-8 cannot be written as JSON into checkpoints.
TEST(Schema, TextsAreUtf8) {
  const SchemaEntry& entry = *find_entry("data.source");
  RunSpec spec;
  for (const char* text : {"d\u00e4ten", "\u20ac", "\U0001F426", "\xed\x9f\xbf"}) {
    write(entry, spec, std::string(text), "here");
    EXPECT_EQ(spec.data.source, text);
  }
  for (const char* text : {"\xa7", "a\xc3", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                           "\xf8", "\xe2\x28\xa1"})
    EXPECT_THROW(write(entry, spec, std::string(text), "here"), ConfigError) << text;
  EXPECT_EQ(spec.data.source, "\xed\x9f\xbf");
}

}  // namespace
}  // namespace starling
