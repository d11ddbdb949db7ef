#include "starling/net/security/parties.h"

#include <fmt/format.h>

#include <array>
#include <span>

#include "starling/net/security/crypto.h"

namespace starling {
namespace {

constexpr size_t kMaxFieldBytes = 200;
constexpr std::string_view kClaimStart = "starling-3";
constexpr std::array<std::string_view, 6> kFieldNames = {"job", "security", "service", "group", "from", "to"};

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("-_./:@").find(c) != std::string_view::npos;
}

// Returns the text, or the hash of a text that is too long.
std::string field_text(const std::string& text) {
  if (text.size() <= kMaxFieldBytes) return text;
  constexpr std::array<std::byte, 1> kNoKey{};
  std::string hash = "hash:";
  for (const std::byte b : hmac_sha256(kNoKey, {std::as_bytes(std::span(text))}))
    hash += fmt::format("{:02x}", static_cast<int>(b));
  return hash;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (is_plain(c))
      out += c;
    else
      out += fmt::format("%{:02X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
  }
  return out;
}

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// Returns nothing for a text that escaped() does not make.
std::optional<std::string> unescaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (is_plain(text[i])) {
      out += text[i];
      continue;
    }
    if (text[i] != '%' || text.size() - i < 3) return std::nullopt;
    const int high = digit_of(text[i + 1]), low = digit_of(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    const char c = static_cast<char>(high << 4 | low);
    if (is_plain(c)) return std::nullopt;
    out += c;
    i += 2;
  }
  return out;
}

// Takes " name=value" off the front of `text` and returns the value.
std::optional<std::string> take_field(std::string_view& text, std::string_view name) {
  const std::string start = fmt::format(" {}=", name);
  if (!text.starts_with(start)) return std::nullopt;
  text.remove_prefix(start.size());
  const std::string_view value = text.substr(0, text.find(' '));
  text.remove_prefix(value.size());
  return unescaped(value);
}

std::optional<DataSecurity> setting_of(const std::string& name) {
  for (const DataSecurity security : {DataSecurity::kNone, DataSecurity::kAuth, DataSecurity::kEncrypt})
    if (name == security_name(security)) return security;
  return std::nullopt;
}

}  // namespace

Parties store_parties() {
  return {.service = "store", .target = "store", .caller = "client"};
}

std::string describe_target(const Parties& parties) {
  const std::string group = parties.group.empty() ? "" : " of " + field_text(parties.group);
  return fmt::format("{}{} (service {})", field_text(parties.target), group, field_text(parties.service));
}

bool is_called(const Parties& called, const Parties& reached) {
  return field_text(called.service) == field_text(reached.service) &&
         field_text(called.group) == field_text(reached.group) &&
         field_text(called.target) == field_text(reached.target);
}

std::string encode_claim(const Claim& claim) {
  const Parties& c = claim.parties;
  const std::array<std::string, 6> values = {claim.job_id,          security_name(claim.security),
                                             field_text(c.service), field_text(c.group),
                                             field_text(c.caller),  field_text(c.target)};
  std::string text(kClaimStart);
  for (size_t i = 0; i < values.size(); ++i)
    text += fmt::format(" {}={}", kFieldNames[i], escaped(values[i]));
  return text;
}

std::optional<Claim> decode_claim(std::string_view text) {
  if (text.size() > kMaxClaimBytes || !text.starts_with(kClaimStart)) return std::nullopt;
  text.remove_prefix(kClaimStart.size());
  std::array<std::string, kFieldNames.size()> values;
  for (size_t i = 0; i < values.size(); ++i) {
    auto value = take_field(text, kFieldNames[i]);
    if (!value) return std::nullopt;
    values[i] = std::move(*value);
  }
  const auto security = setting_of(values[1]);
  if (!text.empty() || !security) return std::nullopt;
  return Claim{values[0],
               *security,
               {.service = values[2], .group = values[3], .target = values[5], .caller = values[4]}};
}

}  // namespace starling
