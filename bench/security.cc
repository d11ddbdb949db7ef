// security_bench [rounds [Mbit/s …]] measures the cost of --net-security.
//
// The program first measures how fast one core authenticates or encrypts segments of 64 KiB in memory, and
// how long a handshake takes (both sides in one thread, without a network). Two processes on this host then
// exchange messages over TCP on loopback. Each round (default 7) alternates none, auth and encrypt. The
// program measures the goodput of 64 MiB messages one way, the goodput both ways at the same time as in a
// ring, and the round-trip time of a 1 KiB message. It prints the least, median and greatest of the rounds.
// For each given rate, the same follows between two network namespaces whose links have this rate in both
// directions (token buckets).
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <future>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "starling/base/error.h"
#include "starling/net/stream/frame.h"
#include "starling/net/stream/stream_endpoint.h"
#include "starling/net/stream/stream_listener.h"
#include "starling/testing/network_namespaces.h"

namespace starling {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr DataSecurity kSettings[] = {DataSecurity::kNone, DataSecurity::kAuth, DataSecurity::kEncrypt};
constexpr size_t kLarge = size_t{64} << 20;
constexpr size_t kSmall = 1024;
constexpr int kLargeTimes = 4;
constexpr int kSmallTimes = 2000;

Parties bench_parties() {
  return {.service = "bench", .target = "listener", .caller = "child"};
}

Deadline soon() {
  return deadline_in(std::chrono::seconds(60));
}

double seconds_of(const std::function<void()>& work) {
  const auto start = SteadyClock::now();
  work();
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

void print_row(const std::string& what, const std::string& how, std::vector<double> values,
               const char* unit) {
  std::sort(values.begin(), values.end());
  fmt::print("{:<22} {:<12} {:>9.2f} {:>9.2f} {:>9.2f}  {}\n", what, how, values.front(),
             values[values.size() / 2], values.back(), unit);
  std::fflush(stdout);
}

// Prints the GB/s of one core over segments that stay in the cache.
void measure_primitives(int rounds) {
  constexpr int kTimes = 2000;
  std::vector<std::byte> segment(kSegmentBytes, std::byte{1});
  const Digest key{};
  std::array<std::vector<double>, 3> found;
  for (int r = 0; r < rounds; ++r) {
    Gcm gcm(key, Gcm::Use::kSeal);
    const std::array<std::function<void()>, 3> ways = {
        [&] { gcm.begin(), gcm.authenticate(segment), gcm.seal(); },
        [&] { gcm.begin(), gcm.transform(segment, segment.data()), gcm.seal(); },
        [&] { (void)hmac_sha256(key, {segment}); }};
    for (size_t w = 0; w < ways.size(); ++w) {
      const double s = seconds_of([&] {
        for (int i = 0; i < kTimes; ++i) ways[w]();
      });
      found[w].push_back(static_cast<double>(kSegmentBytes) * kTimes / s / 1e9);
    }
  }
  const char* names[] = {"GMAC", "AES-256-GCM", "HMAC-SHA256"};
  for (size_t w = 0; w < found.size(); ++w) print_row("one core, 64 KiB", names[w], found[w], "GB/s");
}

// Runs one side of the three measurements. The result is valid on side 0: goodput one way in GB/s, goodput of
// each direction both ways in GB/s, and the round-trip time in microseconds.
std::array<double, 3> measure(Endpoint& peer, int side, std::vector<std::byte>& out,
                              std::vector<std::byte>& in) {
  const Outgoing large_out{1, {}, out}, small_out{2, {}, ConstBytes(out).first(kSmall)};
  const Incoming large_in{1, {}, in}, small_in{2, {}, Bytes(in).first(kSmall)};
  const auto bounce = [&] {
    if (side == 0) peer.send(small_out, soon());
    peer.recv(small_in, soon());
    if (side == 1) peer.send(small_out, soon());
  };
  bounce();
  const double one_way = seconds_of([&] {
    for (int i = 0; i < kLargeTimes; ++i)
      side == 0 ? peer.send(large_out, soon()) : peer.recv(large_in, soon());
    bounce();  // the answer shows that every message has arrived
  });
  const double both_ways = seconds_of([&] {
    for (int i = 0; i < kLargeTimes; ++i) peer.exchange(large_out, large_in, soon());
    bounce();
  });
  const double small = seconds_of([&] {
    for (int i = 0; i < kSmallTimes; ++i) bounce();
  });
  const double bytes = static_cast<double>(kLarge) * kLargeTimes / 1e9;
  return {bytes / one_way, bytes / both_ways, small / kSmallTimes * 1e6};
}

void run_child(const std::vector<std::string>& addresses, const JobIdentity& identity, int rounds) {
  std::vector<std::unique_ptr<Endpoint>> peers;
  for (size_t s = 0; s < addresses.size(); ++s) {
    JobIdentity mine = identity;
    mine.security = kSettings[s];
    peers.push_back(tcp_connect(addresses[s], mine, bench_parties(), soon()));
  }
  std::vector<std::byte> out(kLarge, std::byte{2}), in(kLarge);
  for (int r = -1; r < rounds; ++r)
    for (const auto& peer : peers) measure(*peer, 1, out, in);
}

std::string take_output(Handshake& from) {
  std::string bytes = from.output();
  from.clear_output();
  return bytes;
}

void feed_all(Handshake& to, const std::string& bytes) {
  for (size_t fed = 0; fed < bytes.size() && to.wanted() > 0;) {
    const size_t count = std::min(to.wanted(), bytes.size() - fed);
    to.feed(std::as_bytes(std::span(bytes)).subspan(fed, count));
    fed += count;
  }
}

void measure_handshake(int rounds) {
  constexpr int kTimes = 200;
  const JobIdentity identity{make_job_key(), "security-bench"};
  const auto settings_of_client = make_tls_settings(HandshakeRole::kClient);
  const auto settings_of_server = make_tls_settings(HandshakeRole::kServer);
  size_t bytes = 0;
  std::vector<double> found;
  for (int r = 0; r < rounds; ++r) {
    const double s = seconds_of([&] {
      for (int i = 0; i < kTimes; ++i) {
        Handshake client(HandshakeRole::kClient, identity, bench_parties(), settings_of_client);
        Handshake server(HandshakeRole::kServer, identity, bench_parties(), settings_of_server);
        bytes = 0;
        for (const auto& [from, to] : {std::pair(&client, &server), {&server, &client}, {&client, &server}}) {
          const std::string flight = take_output(*from);
          feed_all(*to, flight);
          bytes += flight.size();
        }
        (void)client.keys(), (void)server.keys();
      }
    });
    found.push_back(s / kTimes * 1e6);
  }
  print_row("handshake, both sides", fmt::format("{} bytes", bytes), found, "us");
}

// Measures the connections of two processes, and prints the results. Returns 0, or 1 if the second process
// failed. `hosts`: the namespaces of the two processes; null: loopback.
int measure_connections(int rounds, const NetworkNamespaces* hosts) {
  const JobIdentity identity{make_job_key(), "security-bench"};
  if (hosts != nullptr) hosts->enter(0);
  const std::string own = hosts != nullptr ? hosts->address(0) : "127.0.0.1";
  std::vector<std::unique_ptr<Listener>> listeners;
  std::vector<std::string> addresses;
  for (const DataSecurity security : kSettings) {
    JobIdentity mine = identity;
    mine.security = security;
    listeners.push_back(tcp_listen(own + ":0", mine, bench_parties()));
    addresses.push_back(listeners.back()->address());
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      if (hosts != nullptr) hosts->enter(1);
      run_child(addresses, identity, rounds);
      ::_exit(0);
    } catch (const std::exception& error) {
      fmt::print(stderr, "security_bench: child: {}\n", error.what());
      ::_exit(1);
    }
  }
  std::vector<std::unique_ptr<Endpoint>> peers;
  peers.reserve(listeners.size());
  for (const auto& listener : listeners) peers.push_back(listener->accept(soon()));
  std::vector<std::byte> out(kLarge, std::byte{1}), in(kLarge);
  std::array<std::array<std::vector<double>, 3>, 3> found;  // indexed by measurement, then by setting
  for (int r = -1; r < rounds; ++r) {                       // the first round does not count
    for (size_t s = 0; s < peers.size(); ++s) {
      const auto numbers = measure(*peers[s], 0, out, in);
      for (size_t what = 0; r >= 0 && what < numbers.size(); ++what) found[what][s].push_back(numbers[what]);
    }
  }
  const char* names[] = {"64 MiB one way", "64 MiB both ways, each", "1 KiB there and back"};
  for (size_t what = 0; what < found.size(); ++what)
    for (size_t s = 0; s < peers.size(); ++s)
      print_row(names[what], security_name(kSettings[s]), found[what][s], what < 2 ? "GB/s" : "us");
  const auto median = [](std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  fmt::print("both ways, auth over none: {:.3f}\n", median(found[1][1]) / median(found[1][0]));
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}

int run(int rounds, const std::vector<int>& rates) {
  fmt::print("{:<22} {:<12} {:>9} {:>9} {:>9}\n", "", "", "min", "median", "max");
  measure_primitives(rounds);
  measure_handshake(rounds);
  int status = measure_connections(rounds, nullptr);
  for (const int rate : rates) {
    if (const auto reason = NetworkNamespaces::unavailable(); !reason.empty()) throw CommError(reason);
    NetworkNamespaces hosts(2);
    hosts.limit_rate(rate);
    fmt::print("links of {} Mbit/s\n", rate);
    // The thread enters a namespace.
    status += std::async(std::launch::async, [&] { return measure_connections(rounds, &hosts); }).get();
  }
  return status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 7;
  std::vector<int> rates;
  for (int i = 2; i < argc; ++i) rates.push_back(std::atoi(argv[i]));
  if (rounds < 1 || rounds > 1000 || std::any_of(rates.begin(), rates.end(), [](int r) { return r < 1; })) {
    fmt::print(stderr, "usage: security_bench [rounds [Mbit/s ...]], 1 to 1000 rounds\n");
    return 2;
  }
  try {
    return starling::run(rounds, rates);
  } catch (const std::exception& error) {
    fmt::print(stderr, "security_bench: {}\n", error.what());
    return 1;
  }
}
