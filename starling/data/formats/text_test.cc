#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "starling/data/formats/text_source.h"
#include "starling/data/formats/text_store.h"
#include "starling/data/generated/grammar.h"
#include "starling/data/testing/files.h"

namespace starling {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_files::message_of;
using testing_files::Scratch;

std::vector<int64_t> window(const TextStore& store, int64_t index, int64_t tokens, int64_t shift = 0) {
  std::vector<int64_t> ids(static_cast<size_t>(tokens) + 1);
  store.read(index, tokens, shift, ids.data());
  return ids;
}

TEST(Utf8, RoundTrip) {
  const std::string text = "aé€😀\n";
  EXPECT_EQ(decode_utf8(text, "x"), U"aé€😀\n");
  EXPECT_EQ(encode_utf8(U"aé€😀\n"), text);
}

TEST(Utf8, RefusesWhatIsNotUtf8WithItsOffset) {
  for (const std::string bad : {"\xff", "\xc3", "\xe2\x82", "\xc0\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80",
                                "\x80", "\xc3(", "\xe0\x80\x80"}) {
    EXPECT_THAT(message_of([&] { decode_utf8("abc" + bad, "t.txt"); }), HasSubstr("t.txt: offset 3"))
        << bad.size();
  }
}

TEST(TextStore, CutsTheTextIntoWindows) {
  const Scratch dir;
  const TextParts parts = open_text(dir.write("t.txt", "abcéabcéab"), 0, 3);
  EXPECT_EQ(parts.test, nullptr);
  EXPECT_EQ(parts.train->vocabulary().text(), "abcé");
  EXPECT_EQ(parts.train->samples(3), 3);
  EXPECT_THAT(window(*parts.train, 0, 3), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(window(*parts.train, 1, 3), ElementsAre(3, 0, 1, 2));
  EXPECT_THAT(window(*parts.train, 1, 3, 1), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(window(*parts.train, 2, 3, 2), ElementsAre(2, 3, 0, 1));  // no further than the end
}

TEST(TextStore, TheLastShareIsForValidation) {
  const Scratch dir;
  std::string text;
  for (int i = 0; i < 100; ++i) text.push_back(static_cast<char>('a' + i / 10));
  const TextParts parts = open_text(dir.write("t.txt", text), 0.2, 4);
  EXPECT_EQ(parts.train->samples(1), 79);
  EXPECT_EQ(parts.test->samples(1), 19);
  EXPECT_THAT(window(*parts.test, 0, 4), ElementsAre(8, 8, 8, 8, 8));
}

TEST(TextStore, TargetsAreInputsShiftedByOne) {
  const Scratch dir;
  const auto source =
      make_text_source("t", open_text(dir.write("t.txt", "the quick brown fox"), 0, 4).train, 4, false, 1);
  EXPECT_EQ(source->info().input_shape, std::vector<int64_t>{4});
  EXPECT_TRUE(source->info().text);
  const Batch batch = source->read({0, 2}, 0), all = source->read({0, 1, 2, 3}, 0);
  EXPECT_EQ(batch.input.sizes(), (std::vector<int64_t>{2, 4}));
  EXPECT_TRUE(batch.target.slice(1, 0, 3).equal(batch.input.slice(1, 1, 4)));
  EXPECT_TRUE(all.target.reshape(-1).slice(0, 0, 15).equal(all.input.reshape(-1).slice(0, 1, 16)));
}

TEST(TextStore, ShiftedWindowsDependOnTheEpochAlone) {
  const Scratch dir;
  const auto store = open_text(dir.write("t.txt", "the quick brown fox jumps over the lazy dog"), 0, 8).train;
  const auto source = make_text_source("t", store, 8, true, 3);
  std::set<std::vector<int64_t>> different;
  for (int64_t epoch = 0; epoch < 12; ++epoch) {
    const at::Tensor a = source->read({1}, epoch).input;
    EXPECT_TRUE(a.equal(source->read({0, 1}, epoch).input.slice(0, 1, 2)));
    different.insert({a.const_data_ptr<int64_t>(), a.const_data_ptr<int64_t>() + 8});
  }
  EXPECT_GT(different.size(), 3u);
}

TEST(TextStore, ShortForeignAndEmptyTextsAreNamed) {
  const Scratch dir;
  const std::string path = dir.write("t.txt", "hello");
  EXPECT_THAT(message_of([&] { open_text(path, 0, 5); }),
              AllOf(HasSubstr("t.txt: offset 5"), HasSubstr("needs 6")));
  EXPECT_THAT(message_of([&] { open_text(path, 0.2, 2); }), HasSubstr("validation part has 1 characters"));
  EXPECT_THAT(message_of([&] { open_text(dir.path("none"), 0, 5); }), HasSubstr("No such file"));
  EXPECT_THAT(message_of([&] { open_text(dir.write("e", ""), 0, 5); }), HasSubstr("empty"));
  const auto train = open_text(path, 0, 2).train;
  EXPECT_THAT(message_of([&] { open_text(dir.write("u", "heél"), 0, 2, train.get()); }),
              AllOf(HasSubstr("u: offset 2"), HasSubstr("é")));
  EXPECT_EQ(open_text(dir.write("v", "ole"), 0, 2, train.get()).train->vocabulary().text(), "ehlo");
}

TEST(Grammar, IsAFunctionOfSeedAndIndex) {
  EXPECT_EQ(grammar_paragraph(1, 5), grammar_paragraph(1, 5));
  EXPECT_NE(grammar_paragraph(1, 5), grammar_paragraph(1, 6));
  EXPECT_NE(grammar_paragraph(1, 5), grammar_paragraph(2, 5));
  const auto a = make_grammar(4, 10), b = make_grammar(4, 1000);
  EXPECT_EQ(window(*a, 7, 300), window(*b, 7, 300));
  EXPECT_NE(window(*a, 7, 300), window(*b, 8, 300));
}

TEST(Grammar, SentencesAreWhole) {
  const auto store = make_grammar(0, 1);
  for (int64_t i = 0; i < 300; ++i) {
    const std::string text = grammar_paragraph(0, i);
    EXPECT_TRUE(text.ends_with(".\n") || text.ends_with("?\n")) << text;
    EXPECT_TRUE(text[0] >= 'A' && text[0] <= 'Z') << text;
    EXPECT_EQ(text.find("  "), std::string::npos) << text;
    EXPECT_EQ(text.find(" ,"), std::string::npos) << text;
    for (const char c : text) ASSERT_GE(store->vocabulary().id_of(static_cast<unsigned char>(c)), 0) << c;
  }
}

TEST(Grammar, VerbsAgreeWithTheirSubjects) {
  int checked = 0;
  for (int64_t i = 0; i < 500; ++i) {
    const std::string text = grammar_paragraph(3, i);
    for (const std::string wrong : {"these bird ", "every birds ", "many dog ", "every dogs "}) {
      EXPECT_EQ(text.find(wrong), std::string::npos) << text;
    }
    checked += text.find("every bird") != std::string::npos;
  }
  EXPECT_GT(checked, 0);
}

}  // namespace
}  // namespace starling
