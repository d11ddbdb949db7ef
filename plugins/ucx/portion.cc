#include "plugins/ucx/portion.h"

#include <uct/api/uct.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>

namespace starling {
namespace {

// The most bytes that UCX sends over TCP in one piece. UCX's receive buffer has 64 KB (TCP_RX_SEG_SIZE). By
// default UCX asks the receiver before it sends more than 20 KB, but still reads in pieces through that
// buffer. It would write to the final memory only if it did not have to detect the death of a peer.
constexpr size_t kPortion = 61'440;
constexpr size_t kReceiveBuffer = 65'536;
// A smaller message fits with its headers into one send buffer (TCP_TX_SEG_SIZE). UCX sends larger ones from
// the caller's memory. Without this setting, UCX from 1.15 on would copy them into several buffers.
constexpr size_t kFromMemory = 8000;
constexpr size_t kSendBuffer = 8192;

using Values = std::map<std::string, std::string, std::less<>>;

// Returns UCX's configuration, which UCX prints as UCX_NAME=value, one per line.
Values values_of(const ucp_config_t* config) {
  char* text = nullptr;
  size_t bytes = 0;
  std::FILE* stream = ::open_memstream(&text, &bytes);
  if (stream == nullptr) return {};
  ucp_config_print(config, stream, nullptr, UCS_CONFIG_PRINT_CONFIG);
  std::fclose(stream);
  const std::unique_ptr<char, decltype(&std::free)> owner(text, std::free);
  std::istringstream lines(std::string(text, bytes));
  Values values;
  for (std::string line; std::getline(lines, line);)
    if (const size_t equals = line.find('='); equals != std::string::npos)
      values[line.substr(0, equals)] = line.substr(equals + 1);
  return values;
}

bool is_one_of(const Values& values, std::string_view name, std::initializer_list<std::string_view> allowed) {
  const auto value = values.find(name);
  return value != values.end() && std::find(allowed.begin(), allowed.end(), value->second) != allowed.end();
}

// Returns whether `holds` accepts every word of a list that has at least one word.
template <typename Holds>
bool all_words(const Values& values, std::string_view name, const Holds& holds) {
  const auto value = values.find(name);
  if (value == values.end() || value->second.empty()) return false;
  std::istringstream words(value->second);
  for (std::string word; std::getline(words, word, ',');)
    if (!holds(word)) return false;
  return true;
}

// Returns whether a network device is an interface of the kernel, which carries TCP. RDMA devices have other
// names (mlx5_0:1).
bool is_interface(const std::string& device) {
  std::error_code error;
  return !device.empty() && std::filesystem::exists("/sys/class/net/" + device, error);
}

// Parses a size such as "64K". Returns 0 if it is no number.
size_t bytes_of(const char* text) {
  char* end = nullptr;
  const size_t number = std::strtoull(text, &end, 10);
  const char* units = "KMG";
  const char* unit = *end == '\0' ? nullptr : std::strchr(units, *end);
  return unit == nullptr ? (*end == '\0' ? number : 0) : number << (10 * (unit - units + 1));
}

// Returns whether the TCP interfaces, which have a configuration of their own, have buffers of at least the
// expected sizes.
bool has_buffers(uct_md_h domain) {
  uct_iface_config_t* config = nullptr;
  if (uct_md_iface_config_read(domain, "tcp", nullptr, nullptr, &config) != UCS_OK) return false;
  const auto at_least = [&](const char* name, size_t bytes) {
    char value[64];
    return uct_config_get(config, name, value, sizeof(value)) == UCS_OK && bytes_of(value) >= bytes;
  };
  const bool has = at_least("RX_SEG_SIZE", kReceiveBuffer) && at_least("TX_SEG_SIZE", kSendBuffer);
  uct_config_release(config);
  return has;
}

bool has_buffers(uct_component_h component) {
  uct_component_attr_t attributes{};
  attributes.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME;
  if (uct_component_query(component, &attributes) != UCS_OK || std::strcmp(attributes.name, "tcp") != 0)
    return false;
  uct_md_config_t* config = nullptr;
  if (uct_md_config_read(component, nullptr, nullptr, &config) != UCS_OK) return false;
  uct_md_h domain = nullptr;
  const bool open = uct_md_open(component, "tcp", config, &domain) == UCS_OK;
  uct_config_release(config);
  if (!open) return false;
  const bool has = has_buffers(domain);
  uct_md_close(domain);
  return has;
}

bool tcp_has_buffers() {
  uct_component_h* components = nullptr;
  unsigned count = 0;
  if (uct_query_components(&components, &count) != UCS_OK) return false;
  const bool has =
      std::any_of(components, components + count, [](uct_component_h one) { return has_buffers(one); });
  uct_release_component_list(components);
  return has;
}

}  // namespace

size_t set_portion(ucp_config_t* config) {
  const Values values = values_of(config);
  // Endpoints that detect dead peers use no shared memory except cma, and cma carries no messages that the
  // receiver did not ask for.
  const auto sends_by_tcp = [](const std::string& way) {
    return way == "all" || way == "tcp" || way == "cma";
  };
  // A variable that is set counts as a setting, also if its value is "auto".
  const bool certain = std::getenv("UCX_RNDV_THRESH") == nullptr &&
                       is_one_of(values, "UCX_RNDV_THRESH", {"auto", "intra:auto,inter:auto"}) &&
                       is_one_of(values, "UCX_ZCOPY_THRESH", {"auto"}) &&
                       is_one_of(values, "UCX_MAX_EAGER_RAILS", {"1"}) &&
                       all_words(values, "UCX_TLS", sends_by_tcp) &&
                       all_words(values, "UCX_NET_DEVICES", is_interface) && tcp_has_buffers();
  if (!certain) return 0;
  const bool set = ucp_config_modify(config, "ZCOPY_THRESH", std::to_string(kFromMemory).c_str()) == UCS_OK &&
                   ucp_config_modify(config, "RNDV_THRESH", std::to_string(kPortion + 1).c_str()) == UCS_OK;
  return set ? kPortion : 0;
}

}  // namespace starling
