#include "starling/server/service_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <sstream>

#include "starling/base/error.h"
#include "starling/net/deadline.h"
#include "starling/net/store/store_server.h"

namespace starling {
namespace {

constexpr std::chrono::milliseconds kLookAtLost{200};

std::string settings_key(const ServerRendezvous& m) {
  return fmt::format("server/{}/{}/settings", m.name, m.generation);
}

bool all_lost(Store& store, int workers) {
  for (int w = 0; w < workers; ++w) {
    if (!store.try_get(lost_key(w))) return false;
  }
  return true;
}

// Returns the number of lists, and each list after its length, as " 2 1 5 2 6 7".
template <typename Number>
std::string lists_of(const std::vector<std::vector<Number>>& lists) {
  std::string text = fmt::format(" {}", lists.size());
  for (const auto& list : lists) {
    text += fmt::format(" {}", list.size());
    for (const Number number : list) text += fmt::format(" {}", number);
  }
  return text;
}

// Reads what lists_of() wrote.
template <typename Number>
std::vector<std::vector<Number>> read_lists(std::istringstream& words) {
  std::vector<std::vector<Number>> lists;
  size_t count = 0;
  words >> count;
  while (words && lists.size() < count) {
    size_t size = 0;
    words >> size;
    std::vector<Number>& list = lists.emplace_back();
    for (Number number{}; list.size() < size && words >> number;) list.push_back(number);
  }
  return lists;
}

}  // namespace

std::string to_text(const ServiceSettings& s) {
  const OptimizerSpec& o = s.optimizer;
  std::string rule = fmt::format("{} {} {} {} {} {} {} {} {} {}", name_of(s.type), o.name, o.lr, o.momentum,
                                 int{o.nesterov}, o.weight_decay, o.beta1, o.beta2, o.eps, int{s.more});
  if (s.torch.name.empty()) return rule;
  return fmt::format("{} {}{}{}", rule, s.torch.name, lists_of(s.torch.groups), lists_of(s.groups_of_shard));
}

ServiceSettings service_settings_of(const std::string& text) {
  ServiceSettings s;
  OptimizerSpec& o = s.optimizer;
  std::string type;
  std::istringstream words(text);
  words >> type >> o.name >> o.lr >> o.momentum >> o.nesterov >> o.weight_decay >> o.beta1 >> o.beta2 >>
      o.eps >> s.more;
  const bool whole = static_cast<bool>(words);
  if (words >> s.torch.name) {
    s.torch.groups = read_lists<double>(words);
    s.groups_of_shard = read_lists<int>(words);
  }
  const bool read = whole && (s.torch.name.empty() || words);
  const bool fp64 = type == name_of(DataType::kFp64);
  if (!read || (!fp64 && type != name_of(DataType::kFp32)))
    throw CommError(fmt::format("a worker announced '{}', which are no settings of a server", text));
  s.type = fp64 ? DataType::kFp64 : DataType::kFp32;
  return s;
}

ServerRendezvous rendezvous_of_service(const ServerRendezvous& job, int number) {
  ServerRendezvous result = job;
  if (number > 0) result.name = fmt::format("{}.{}", job.name, number);
  return result;
}

void announce_service(Store& store, const ServerRendezvous& rendezvous, const ServiceSettings& settings) {
  store.put(settings_key(rendezvous), to_text(settings));
}

std::optional<ServiceSettings> announced_service(Store& store, const ServerRendezvous& rendezvous) {
  const std::optional<std::string> text = store.try_get(settings_key(rendezvous));
  return text ? std::optional(service_settings_of(*text)) : std::nullopt;
}

std::optional<ServiceSettings> await_service(Store& store, const ServerRendezvous& rendezvous) {
  const Deadline deadline = deadline_in(rendezvous.idle_timeout);
  while (!has_passed(deadline)) {
    try {
      return service_settings_of(store.get(settings_key(rendezvous), kLookAtLost));
    } catch (const TimeoutError&) {
      if (all_lost(store, rendezvous.workers)) return std::nullopt;
    }
  }
  throw TimeoutError(fmt::format(
      "no worker has met the servers within {} s. A program that is started with servers calls Run::fit() or "
      "makes a DistributedOptimizer; look at the log of rank 0",
      std::chrono::duration_cast<std::chrono::seconds>(rendezvous.idle_timeout).count()));
}

}  // namespace starling
