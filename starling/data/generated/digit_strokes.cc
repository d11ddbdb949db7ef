#include "starling/data/generated/digit_strokes.h"

#include <sstream>
#include <string>

#include "starling/base/check.h"

namespace starling {
namespace {

// Parses strokes in hundredths: "x,y x,y … | x,y …".
Glyph glyph(const char* text) {
  Glyph strokes(1);
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (word == "|") {
      strokes.emplace_back();
      continue;
    }
    const size_t comma = word.find(',');
    strokes.back().push_back({std::stoi(word) / 100.0, std::stoi(word.substr(comma + 1)) / 100.0});
  }
  return strokes;
}

}  // namespace

std::vector<Glyph> glyphs_of(int digit) {
  switch (digit) {
    case 0:
      return {glyph("50,8 25,20 18,50 27,82 50,93 74,80 82,50 74,20 50,8"),
              glyph("62,10 36,12 22,42 26,78 46,93 70,82 78,50 70,18 50,9 38,16")};
    case 1:
      return {glyph("50,8 50,50 50,92"), glyph("32,28 45,18 54,8 | 54,8 53,50 52,93"),
              glyph("34,26 46,17 53,8 | 53,8 52,50 52,92 | 32,93 52,92 72,93")};
    case 2:
      return {glyph("22,28 30,12 52,7 74,18 74,38 56,60 36,78 20,92 | 20,92 50,90 82,92"),
              glyph("22,28 32,10 56,7 76,24 66,50 42,80 24,90 20,78 36,76 56,88 84,90")};
    case 3:
      return {glyph("22,18 42,7 68,13 72,30 58,44 42,48 62,52 78,68 70,87 45,94 20,84"),
              glyph("22,10 50,10 76,10 | 76,10 60,28 46,42 | 46,42 70,50 78,68 66,88 42,93 20,82")};
    case 4:
      return {glyph("30,8 24,34 20,56 | 20,56 50,55 84,53 | 66,10 64,50 62,93"),
              glyph("62,7 38,34 16,64 | 16,64 50,64 86,62 | 62,7 62,50 62,94")};
    case 5:
      return {glyph("76,9 52,9 30,10 | 30,10 27,26 25,42 | 25,42 46,36 68,44 77,64 68,86 44,94 20,86"),
              glyph("72,8 48,10 34,14 27,30 30,42 52,42 72,54 74,76 56,92 34,92 22,82")};
    case 6:
      return {glyph("68,8 44,22 27,48 24,72 36,92 58,93 74,78 70,58 50,52 32,62 26,76"),
              glyph("52,7 36,34 28,62 32,86 52,93 70,80 66,62 46,60 30,74")};
    case 7:
      return {glyph("20,11 50,10 80,10 | 80,10 60,45 42,93"),
              glyph("20,11 50,10 80,10 | 80,10 60,45 42,93 | 34,50 54,48 74,47"),
              glyph("20,22 24,11 50,12 78,9 | 78,9 66,30 54,60 50,93")};
    case 8:
      return {glyph("66,20 50,8 32,16 32,32 50,46 70,60 74,80 52,94 28,82 30,62 50,47 68,34 66,20"),
              glyph("50,7 31,16 33,38 50,45 68,37 69,17 50,7 | 50,45 26,58 27,84 50,94 74,83 73,58 50,45")};
    case 9:
      return {glyph("72,24 56,8 34,14 26,34 40,50 60,46 72,26 | 72,26 70,60 64,93"),
              glyph("72,22 54,8 32,16 28,36 44,48 64,42 72,24 | 72,24 73,60 60,86 32,93")};
    default:
      STARLING_CHECK(false, "there is no digit {}", digit);
      return {};
  }
}

}  // namespace starling
