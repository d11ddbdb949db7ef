#include "apps/starling/completion_words.h"

#include <algorithm>

namespace starling {

std::vector<const OptionPage*> options_with_argument(const CommandPage& root) {
  std::vector<const OptionPage*> options;
  for (const CommandPage* page : all_pages(root)) {
    for (const OptionPage& option : page->options) {
      const bool known = std::any_of(options.begin(), options.end(),
                                     [&](const OptionPage* other) { return other->names == option.names; });
      if (!known && option.argument != ArgumentKind::kNone) options.push_back(&option);
    }
  }
  return options;
}

std::string first_sentence(const std::string& text) {
  const size_t end = std::min({text.find(". "), text.rfind(" ["), text.find(": "), text.size()});
  return text.substr(0, end);
}

std::string command_words(const CommandPage& page) {
  const size_t space = page.name.find(' ');
  return space == std::string::npos ? "" : page.name.substr(space + 1);
}

}  // namespace starling
