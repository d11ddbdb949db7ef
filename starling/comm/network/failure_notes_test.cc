#include "starling/comm/network/failure_notes.h"

#include <gtest/gtest.h>

#include "starling/net/memory/memory_store.h"

namespace starling {
namespace {

TEST(FailureNotes, TellWhoIsToBlameAndTheFirstStays) {
  MemoryStore store;
  FailureNotes of_one(store, "g/", 1), of_two(store, "g/", 2);
  of_one.leave({"rank 0 is lost:\nits process ended", 0, false});
  of_one.leave({"something that followed from it", 3, false});
  const Failure found = of_two.explain({"rank 1: the connection was closed", 1, false}, {});
  EXPECT_EQ(found.culprit, 0);
  EXPECT_EQ(found.reason, "rank 1 reports: rank 0 is lost:\nits process ended");
  EXPECT_FALSE(found.is_timeout);
}

TEST(FailureNotes, WithoutANoteTheCulpritIsWhoseConnectionBroke) {
  MemoryStore store;
  const FailureNotes notes(store, "g/", 2);
  store.put("g/failure/3", "not a note");
  for (const int culprit : {-1, 1, 2, 3})
    EXPECT_EQ(notes.explain({"closed", culprit, false}, {}).culprit, culprit);
}

TEST(FailureNotes, FailuresAsTextAndBack) {
  for (const bool timeout : {false, true}) {
    const auto back = parse_failure(failure_text({"why\nnot", 7, timeout}));
    ASSERT_TRUE(back);
    EXPECT_EQ(back->reason, "why\nnot");
    EXPECT_EQ(back->culprit, 7);
    EXPECT_EQ(back->is_timeout, timeout);
  }
  for (const char* text :
       {"7\n1", "\n0\nwhy", "seven\n0\nwhy", "7x\n0\nwhy", "99999999999\n0\nwhy", "-2\n0\nwhy"})
    EXPECT_FALSE(parse_failure(text)) << text;
}

}  // namespace
}  // namespace starling
