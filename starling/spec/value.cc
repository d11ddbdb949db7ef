#include "starling/spec/value.h"

#include <fmt/format.h>

namespace starling {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          out += fmt::format("\\u{:04x}", static_cast<int>(c));
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

std::string number(double value) {
  std::string text = fmt::format("{}", value);  // the shortest text from which reading gives the same value
  if (text.find_first_of(".einf") == std::string::npos) text += ".0";
  return text;
}

struct Printer {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return fmt::format("{}", value); }
  std::string operator()(double value) const { return number(value); }
  std::string operator()(const std::string& value) const { return quoted(value); }
  template <class T>
  std::string operator()(const std::vector<T>& values) const {
    std::string out = "[";
    for (const T& value : values) out += (out.size() > 1 ? ", " : "") + (*this)(value);
    return out + "]";
  }
};

}  // namespace

std::string describe(ValueType type) {
  switch (type) {
    case ValueType::kBool:
      return "true or false";
    case ValueType::kInteger:
      return "an integer";
    case ValueType::kNumber:
      return "a number";
    case ValueType::kText:
      return "a text";
    case ValueType::kWord:
      return "a word";
    case ValueType::kIntegers:
      return "a list of integers";
    case ValueType::kNumbers:
      return "a list of numbers";
  }
  return "a value";
}

std::string to_toml(const Value& value) {
  return std::visit(Printer{}, value);
}

}  // namespace starling
