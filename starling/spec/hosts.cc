#include "starling/spec/hosts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <optional>
#include <sstream>

#include "starling/base/error.h"
#include "starling/base/read_file.h"
#include "starling/spec/on_failure.h"
#include "starling/spec/recipes.h"

namespace starling {
namespace {

constexpr int kMostSlots = 65'536;

std::optional<int> slots_in(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > kMostSlots) return {};
  return value;
}

// A name becomes an argument of ssh. It must not look like an option or contain characters with a meaning in
// a shell.
bool is_host_name(std::string_view name) {
  constexpr std::string_view kOthers = "._-@:%";
  return !name.empty() && name.front() != '-' && std::all_of(name.begin(), name.end(), [&](unsigned char c) {
    return std::isalnum(c) != 0 || kOthers.find(static_cast<char>(c)) != std::string_view::npos;
  });
}

// Parses "b", "b:2", "[fe80::1]:2" or "fe80::1". A text with several colons and without brackets is an
// address without slots.
HostSlots parse_host(std::string_view text, const std::string& where) {
  HostSlots host;
  std::string_view name = text, slots;
  if (const size_t close = text.find(']'); text.starts_with('[') && close != std::string_view::npos) {
    name = text.substr(1, close - 1);
    slots = text.substr(close + 1);
  } else if (std::count(text.begin(), text.end(), ':') == 1) {
    name = text.substr(0, text.find(':'));
    slots = text.substr(text.find(':'));
  }
  host.name = name;
  if (!slots.empty()) {
    const std::optional<int> number = slots.starts_with(':') ? slots_in(slots.substr(1)) : std::nullopt;
    if (!number) {
      throw ConfigError(where,
                        fmt::format("\"{}\" is not a host with a number of ranks. Write host:2", text));
    }
    host.slots = *number;
  }
  if (!is_host_name(name)) {
    throw ConfigError(where,
                      fmt::format("\"{}\" is not a host. Write names or addresses, for example a,b:2", text));
  }
  return host;
}

void add_host(std::vector<HostSlots>& hosts, HostSlots host, const std::string& where) {
  for (const HostSlots& known : hosts) {
    if (known.name != host.name) continue;
    throw ConfigError(where, fmt::format("host {0} is named twice. Name it once with all its ranks, {0}:{1}",
                                         host.name, known.slots + host.slots));
  }
  hosts.push_back(std::move(host));
}

}  // namespace

std::vector<HostSlots> parse_hosts(std::string_view text) {
  std::vector<HostSlots> hosts;
  for (;;) {
    const size_t comma = text.find(',');
    add_host(hosts, parse_host(text.substr(0, comma), "launch.hosts"), "launch.hosts");
    if (comma == std::string_view::npos) return hosts;
    text.remove_prefix(comma + 1);
  }
}

std::vector<HostSlots> parse_hostfile(std::string_view text, const std::string& path) {
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos)
    throw ConfigError(path, fmt::format("has a zero byte at offset {}; give a text file", zero));
  std::vector<HostSlots> hosts;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::string where = fmt::format("{}:{}", path, number);
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name, word;
    if (!(words >> name)) continue;
    HostSlots host = parse_host(name, where);
    while (words >> word) {
      const std::optional<int> slots =
          word.starts_with("slots=") ? slots_in(std::string_view(word).substr(6)) : std::nullopt;
      if (!slots)
        throw ConfigError(where, fmt::format("\"{}\" is not understood. Write {} slots=2", word, name));
      host.slots = *slots;
    }
    add_host(hosts, std::move(host), where);
  }
  if (hosts.empty())
    throw ConfigError(path, "names no host. Write one line per host, for example: node-a slots=2");
  return hosts;
}

std::vector<HostSlots> hosts_of(const LaunchSpec& spec) {
  if (spec.start == "fork" && !(spec.hosts.empty() && spec.hostfile.empty()))
    throw ConfigError("launch.start",
                      "fork starts ranks on this host only. Use auto or exec with --hosts or --hostfile");
  if (spec.hostfile.empty()) return spec.hosts.empty() ? std::vector<HostSlots>{} : parse_hosts(spec.hosts);
  if (!spec.hosts.empty())
    throw ConfigError("launch.hosts", "both --hosts and --hostfile name hosts. Leave out one of them");
  const FileText file = read_file_or_pipe(spec.hostfile);
  if (file.error != 0)
    throw ConfigError("launch.hostfile", fmt::format("cannot read {}: {}", spec.hostfile, file.reason()));
  return parse_hostfile(file.text, spec.hostfile);
}

void count_ranks(Config& config) {
  const std::vector<HostSlots> hosts = hosts_of(config.spec.launch);
  if (hosts.empty() || is_given(config.origins, "train.ranks")) return;
  int64_t slots = has_servers(config.spec) ? -config.spec.exchange.servers : 0;
  for (const HostSlots& host : hosts) slots += host.slots;
  config.spec.train.ranks = std::max<int64_t>(1, slots);
  apply_recipes(config);
}

std::vector<HostSlots> share_out(const std::vector<HostSlots>& hosts, int processes) {
  std::vector<HostSlots> shares;
  int left = processes, slots = 0;
  for (const HostSlots& host : hosts) {
    slots += host.slots;
    const int count = std::min(left, host.slots);
    if (count > 0) shares.push_back({host.name, count});
    left -= count;
  }
  if (left > 0) {
    throw ConfigError(
        "launch.hosts",
        fmt::format(
            "{} slot{} on {} host{} are too few for {} processes. Give hosts more slots, for example {}:{}, "
            "or start fewer processes with -n",
            slots, slots == 1 ? "" : "s", hosts.size(), hosts.size() == 1 ? "" : "s", processes,
            hosts.front().name, hosts.front().slots + left));
  }
  return shares;
}

}  // namespace starling
