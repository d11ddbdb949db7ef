#include "starling/report/run_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <string_view>

#include "starling/spec/strategy_table.h"

namespace starling {
namespace {

// Part is one piece of a run's flags. The key is empty for a word such as "gossip".
struct Part {
  std::string key, value;
  bool operator==(const Part&) const = default;
};

// Name is the name of a run while it is being made.
struct Name {
  std::vector<Part> parts;
  std::string head, details, suffix;
  int64_t ranks = 0;

  std::string text() const { return head + details + suffix; }
};

// Parses a flag: "optimizer.momentum=0.5" gives {"momentum", "0.5"}.
Part part_of(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) return {"", std::string(text)};
  std::string key(text.substr(0, equals));
  key.erase(0, key.rfind('.') + 1);  // npos + 1 == 0
  return {key == "ranks" ? "n" : key, std::string(text.substr(equals + 1))};
}

std::vector<Part> parts_of(std::string_view flags) {
  std::vector<Part> parts;
  for (size_t begin = 0; begin <= flags.size();) {
    const size_t end = std::min(flags.find(':', begin), flags.size());
    parts.push_back(part_of(flags.substr(begin, end - begin)));
    begin = end + 1;
  }
  return parts;
}

// Returns the label of a mesh: "replica=2,stage=2" gives "replica ×2 stage ×2".
std::string mesh_label(std::string_view mesh) {
  std::string out;
  for (const char c : mesh) out += c == '=' ? " ×" : c == ',' ? " " : std::string(1, c);
  return out;
}

std::string label_of(const Part& part) {
  static const std::map<std::string_view, std::string_view> kZero = {
      {"optimizer", "ZeRO-1"}, {"gradients", "ZeRO-2"}, {"parameters", "ZeRO-3"}};
  constexpr std::array<std::string_view, 7> kValueSaysAll = {"",         "exchange", "name", "codec",
                                                             "schedule", "graph",    "model"};
  if (part.key == "mesh") return mesh_label(part.value);
  if (part.key == "shard" && kZero.contains(part.value)) return std::string(kZero.at(part.value));
  if (std::find(kValueSaysAll.begin(), kValueSaysAll.end(), part.key) != kValueSaysAll.end())
    return part.value;
  return part.key + " " + part.value;
}

// Returns how well a part names the run. A smaller number is better.
int precedence(const Part& part) {
  constexpr std::array<std::string_view, 4> kKeys = {"codec", "schedule", "shard", "mesh"};
  if (part.key.empty() || part.key == "exchange") return part.value == exchange_table().front().name ? 5 : 0;
  const auto at = std::find(kKeys.begin(), kKeys.end(), part.key);
  return at == kKeys.end() ? 6 : static_cast<int>(at - kKeys.begin()) + 1;
}

Name name_of(const NamedRun& run) {
  Name name;
  name.parts = parts_of(run.flags);
  name.ranks = run.ranks;
  const auto count =
      std::find_if(name.parts.begin(), name.parts.end(), [](const Part& p) { return p.key == "n"; });
  if (count != name.parts.end() && name.parts.size() > 1) {
    const std::string& text = count->value;
    if (name.ranks == 0) std::from_chars(text.data(), text.data() + text.size(), name.ranks);
    name.parts.erase(count);  // the suffix contains this part
  }
  const auto head = std::min_element(name.parts.begin(), name.parts.end(), [](const Part& a, const Part& b) {
    return precedence(a) < precedence(b);
  });
  name.head = label_of(*head);
  name.parts.erase(head);
  return name;
}

// Returns the number of ranks that most runs have, or 0 if two numbers are equally frequent.
int64_t usual_ranks(const std::vector<Name>& names) {
  std::map<int64_t, int> count;
  for (size_t i = 1; i < names.size(); ++i) {
    if (names[i].ranks > 0) ++count[names[i].ranks];
  }
  int64_t usual = 0;
  int most = 0;
  for (const auto& [ranks, runs] : count) {
    if (runs >= most) usual = runs == most ? 0 : ranks;
    most = std::max(most, runs);
  }
  return usual;
}

// Returns whether another run has an equal head and a different number of ranks.
bool differs_in_ranks(const std::vector<Name>& names, size_t i) {
  return std::any_of(names.begin() + 1, names.end(), [&](const Name& other) {
    return other.head == names[i].head && other.ranks != names[i].ranks;
  });
}

void add_ranks(Name& name) {
  if (name.ranks > 0 && name.head.find("×") == std::string::npos)
    name.suffix = fmt::format(" ×{}", name.ranks);
}

// Returns groups of equal names, as indices. Groups of one name are left out.
std::vector<std::vector<size_t>> equal_names(const std::vector<Name>& names) {
  std::map<std::string, std::vector<size_t>> by_text;
  for (size_t i = 0; i < names.size(); ++i) by_text[names[i].text()].push_back(i);
  std::vector<std::vector<size_t>> groups;
  for (auto& [text, group] : by_text) {
    if (group.size() > 1) groups.push_back(std::move(group));
  }
  return groups;
}

// Returns whether every run of the group has this part.
bool is_common(const std::vector<Name>& names, const std::vector<size_t>& group, const Part& part) {
  return std::all_of(group.begin(), group.end(), [&](size_t i) {
    return std::find(names[i].parts.begin(), names[i].parts.end(), part) != names[i].parts.end();
  });
}

// Adds to each run of the group the flags that not all of them have, one flag at a time, until the names
// differ.
void distinguish(std::vector<Name>& names, const std::vector<size_t>& group) {
  std::map<size_t, std::vector<Part>> own;
  for (const size_t i : group) {
    for (const Part& part : names[i].parts) {
      if (!is_common(names, group, part)) own[i].push_back(part);
    }
  }
  for (size_t place = 0;; ++place) {
    std::map<std::string, int> seen;
    for (const size_t i : group) ++seen[names[i].text()];
    bool added = false;
    for (const size_t i : group) {
      if (seen[names[i].text()] == 1 || place >= own[i].size()) continue;
      names[i].details += " " + label_of(own[i][place]);
      added = true;
    }
    if (!added) return;
  }
}

}  // namespace

std::vector<std::string> short_names(const std::vector<NamedRun>& runs) {
  std::vector<Name> names;
  for (const NamedRun& run : runs) names.push_back(name_of(run));
  const int64_t usual = usual_ranks(names);
  for (size_t i = 1; i < names.size(); ++i) {
    if (names[i].ranks != usual || differs_in_ranks(names, i)) add_ranks(names[i]);
  }
  for (const std::vector<size_t>& group : equal_names(names)) distinguish(names, group);
  for (auto groups = equal_names(names); !groups.empty(); groups = equal_names(names)) {
    for (size_t i = 1; i < groups.front().size(); ++i)  // flags that differ only in what a name leaves out
      names[groups.front()[i]].details += fmt::format(" ({})", i + 1);
  }
  std::vector<std::string> out;
  for (const Name& name : names) out.push_back(name.text());
  return out;
}

}  // namespace starling
