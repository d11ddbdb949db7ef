#include "starling/launch/host_lines.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <sstream>

#include "starling/base/error.h"
#include "starling/base/json_number.h"
#include "starling/net/security/crypto.h"

namespace starling {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kHello = "starling-host";

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string hex_of(const JobKey& key) {
  std::string text;
  for (const std::byte b : key.bytes()) text += fmt::format("{:02x}", static_cast<int>(b));
  return text;
}

JobKey key_of(const std::string& text) {
  std::array<std::byte, JobKey::kBytes> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) {
    int value = 0;
    const char* at = text.data() + 2 * i;
    if (text.size() != 2 * bytes.size() || std::from_chars(at, at + 2, value, 16).ptr != at + 2 || value < 0)
      throw Error(ErrorCode::kInternal, "the launcher sent no job key");
    bytes[i] = static_cast<std::byte>(value);
  }
  JobKey key(bytes);
  wipe(bytes);
  return key;
}

}  // namespace

HostLine split_host_line(std::string_view line) {
  const size_t blank = line.find(' ');
  if (blank == std::string_view::npos) return {line, {}};
  return {line.substr(0, blank), line.substr(blank + 1)};
}

std::optional<std::pair<int, std::string_view>> split_number(std::string_view rest) {
  const HostLine parts = split_host_line(rest);
  int number = 0;
  const char *begin = parts.word.data(), *end = begin + parts.word.size();
  const auto [at, error] = std::from_chars(begin, end, number);
  if (error != std::errc() || at != end) return std::nullopt;
  return std::pair(number, parts.rest);
}

ErrorCode error_code_of(int number) {
  const bool known = number >= 0 && number <= static_cast<int>(ErrorCode::kInterrupted);
  return known ? static_cast<ErrorCode>(number) : ErrorCode::kInternal;
}

std::vector<std::string> words_of_line(std::string_view rest) {
  std::istringstream in{std::string(rest)};
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

std::string to_line(const HostHello& hello) {
  return fmt::format("{} {}", kHello,
                     dump(Json{{"protocol", hello.protocol},
                               {"version", hello.version},
                               {"host_id", hello.host_id},
                               {"host_name", hello.host_name}}));
}

std::optional<HostHello> parse_hello(std::string_view line) {
  const HostLine parts = split_host_line(line);
  if (parts.word != kHello) return std::nullopt;
  const Json json = Json::parse(parts.rest, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  try {
    return HostHello{json.contains("protocol") ? integer_of<int>(json["protocol"]) : 0,
                     json.value("version", std::string()), json.value("host_id", std::string()),
                     json.value("host_name", std::string())};
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

std::string to_line(const HostJob& job) {
  return "job " + dump(Json{{"job_id", job.job_id},
                            {"key", hex_of(job.key)},
                            {"folder", job.folder},
                            {"program", job.program},
                            {"argv", job.argv},
                            {"environment", job.environment},
                            {"run_dir", job.run_dir},
                            {"interface", job.interface},
                            {"security", static_cast<int>(job.security)},
                            {"first", job.first},
                            {"ranks", job.ranks},
                            {"world", job.world},
                            {"threads", job.threads},
                            {"reach_ms", job.reach_ms},
                            {"silence_ms", job.silence_ms},
                            {"dead_after_ms", job.dead_after_ms},
                            {"pin", job.pin},
                            {"listens", job.listens}});
}

HostJob parse_job(std::string_view rest) {
  try {
    const Json json = Json::parse(rest);
    using Texts = std::vector<std::string>;
    const auto text = [&json](const char* name) { return json.at(name).get<std::string>(); };
    HostJob job{text("job_id"), key_of(text("key"))};
    job.folder = text("folder");
    job.program = text("program");
    job.argv = json.at("argv").get<Texts>();
    job.environment = json.at("environment").get<Texts>();
    job.run_dir = text("run_dir");
    job.interface = text("interface");
    const int security = integer_of<int>(json.at("security"));
    job.security = static_cast<DataSecurity>(security);
    job.first = integer_of<int>(json.at("first"));
    job.ranks = integer_of<int>(json.at("ranks"));
    job.world = integer_of<int>(json.at("world"));
    job.threads = integer_of<int>(json.at("threads"));
    job.reach_ms = integer_of<int>(json.at("reach_ms"));
    job.dead_after_ms = integer_of<int>(json.at("dead_after_ms"));
    job.silence_ms = integer_of<int>(json.at("silence_ms"));
    job.pin = json.at("pin").get<bool>();
    job.listens = json.at("listens").get<bool>();
    const bool counts =
        job.first >= 0 && job.ranks >= 1 && job.world >= job.ranks && job.first <= job.world - job.ranks;
    if (!counts || job.threads < 0 || job.reach_ms < 0 || job.dead_after_ms < 0 || job.silence_ms < 0 ||
        security < 0 || security > static_cast<int>(DataSecurity::kEncrypt))
      throw Error(ErrorCode::kInternal, "the launcher sent a job with a number that is out of range");
    return job;
  } catch (const Json::exception& error) {
    throw Error(ErrorCode::kInternal, fmt::format("the launcher sent no job: {}", error.what()));
  }
}

}  // namespace starling
