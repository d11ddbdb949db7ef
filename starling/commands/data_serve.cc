#include "starling/commands/data_serve.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "starling/base/error.h"
#include "starling/data/served/served_key.h"
#include "starling/data/served/served_server.h"
#include "starling/data/source_factory.h"
#include "starling/net/address.h"
#include "starling/net/stream/stream_listener.h"
#include "starling/run/message/dry_run.h"
#include "starling/run/stop_signal.h"
#include "starling/telemetry/output.h"

namespace starling {
namespace {

// Returns the address of a named interface, or an address unchanged.
std::string interface_address(const std::string& interface) {
  if (interface.empty()) return "127.0.0.1";
  for (const Interface& candidate : list_interfaces()) {
    if (candidate.name == interface) return candidate.address.host();
  }
  return interface;
}

std::string host_port_text(const std::string& host, int64_t port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

// Returns the key in a named file, which is created if missing. Without a name, returns a new key.
JobKey key_of(const std::string& file) {
  if (file.empty()) return make_job_key();
  if (::access(file.c_str(), F_OK) != 0) write_job_key_file(file, make_job_key());
  return read_job_key_file(file);
}

// LocalKeyFile is the file in which readers of this user on this host find the key of a running server that
// has no named key file.
class LocalKeyFile {
 public:
  LocalKeyFile(const JobKey& key, uint16_t port) : path_(local_served_key_file(port)) {
    ::unlink(path_.c_str());  // left by a server that was killed: this server now has its port
    write_job_key_file(path_, key);
  }
  ~LocalKeyFile() { ::unlink(path_.c_str()); }
  LocalKeyFile(const LocalKeyFile&) = delete;
  LocalKeyFile& operator=(const LocalKeyFile&) = delete;

 private:
  std::string path_;
};

// Returns what the server has, for people.
std::string contents(const ServedPart& train, int64_t tests) {
  if (train.kind == ServedKind::kText)
    return fmt::format("{} training and {} test characters", train.characters, tests);
  const ImageShape& shape = train.shape;
  return fmt::format("{} training and {} test pictures of {} x {} x {}", train.size, tests, shape.channels,
                     shape.height, shape.width);
}

std::string greeting(const std::string& source, const ServedStores& parts, const std::string& address,
                     const std::string& key_file, bool json) {
  const auto size_of = [](const ServedPart& part) {
    return part.kind == ServedKind::kText ? part.characters : part.size;
  };
  const ServedPart train = parts.front()->described();
  const int64_t tests = parts.size() > 1 ? size_of(parts[1]->described()) : 0;
  if (json) {
    return nlohmann::ordered_json{{"event", "serving"},    {"address", address},
                                  {"source", source},      {"samples", size_of(train)},
                                  {"test_samples", tests}, {"key_file", key_file}}
        .dump();
  }
  return fmt::format(
      "serving {}: {} at {}\n"
      "train on them by --data served:{}{}",
      source, contents(train, tests), address, address, key_file.empty() ? "" : ",key=" + key_file);
}

std::string farewell(const DataServerCounts& counts, bool json) {
  const LeaseCounts& leases = counts.leases;
  if (json) {
    return nlohmann::ordered_json{{"event", "served"},
                                  {"reads", counts.reads},
                                  {"samples", counts.samples},
                                  {"bytes", counts.bytes},
                                  {"tickets", leases.given},
                                  {"settled", leases.settled},
                                  {"given_again", leases.given_again},
                                  {"late", leases.late}}
        .dump();
  }
  return fmt::format("served {} samples in {} reads, {:.1f} MB; {} tickets, {} used, {} given again, {} late",
                     counts.samples, counts.reads, static_cast<double>(counts.bytes) / 1e6, leases.given,
                     leases.settled, leases.given_again, leases.late);
}

}  // namespace

int serve_data(const RunSpec& spec, const DataServeOptions& serve, const CommandOptions& options) {
  const std::string wanted = host_port_text(interface_address(spec.comm.interface), serve.port);
  if (options.dry_run) {
    print_dry_run(fmt::format("would serve {} at {}", spec.data.source, wanted), options.json);
    return 0;
  }
  if (serve.key_file.empty() && !resolve(parse_host_port(wanted)).is_loopback()) {
    throw ConfigError(
        "--key-file",
        fmt::format("connections over a network need a key: give --key-file F, which is created if "
                    "missing, and copy it to the hosts of the ranks ({} is not the loopback interface)",
                    wanted));
  }
  const StopSignal stop;
  const ServedStores parts = open_for_serving(spec.data, spec.train.seed);
  const SystemClock clock;
  DataServerOptions how;
  how.lease = std::chrono::milliseconds(static_cast<int64_t>(serve.lease_s * 1000));
  if (options.verbosity >= 0)
    how.log = [](const std::string& line) { FdOutput(2).write("starling: data serve: " + line + "\n"); };
  const std::string& key_file = serve.key_file;
  const JobIdentity identity{key_of(key_file), kServedJobId, security_named(spec.comm.security)};
  auto listener = tcp_listen(wanted, identity, served_parties());
  std::optional<LocalKeyFile> local;
  if (key_file.empty()) local.emplace(identity.key, parse_host_port(listener->address()).port);
  const DataServer server({spec.data.source, parts}, std::move(listener), how, clock);
  if (options.verbosity >= 0)
    print_line(greeting(spec.data.source, parts, server.address(), key_file, options.json));
  while (!stop.flag()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  if (options.verbosity >= 0) print_line(farewell(server.counts(), options.json));
  return 0;
}

}  // namespace starling
