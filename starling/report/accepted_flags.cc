#include "starling/report/accepted_flags.h"

#include <sstream>
#include <string_view>

#include "starling/base/error.h"
#include "starling/spec/config.h"
#include "starling/spec/validate.h"

namespace starling {

bool accepts_flags(const RunSpec& spec, const std::string& flags) {
  Config config{spec, {}};
  std::istringstream words(flags);
  try {
    for (std::string flag, value; words >> flag;) {
      if (!(words >> value)) return false;
      if (flag == "--set") {
        apply_set(config, value);
        continue;
      }
      const SchemaEntry* entry = find_flag(flag);
      if (entry == nullptr) return false;
      apply_flag(config, *entry, flag, value);
    }
    validate(config.spec, config.origins);
  } catch (const Error&) {
    return false;
  }
  return true;
}

std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./_-";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

}  // namespace starling
