// security_bench [rounds]: what --net-security costs. Two processes on this host over TCP on loopback, none, auth and encrypt
// alternating within each round (7): goodput of 64 MiB messages one way, and both ways at once as in a ring; the time of a 1 KiB message
// there and back. First what one core does with 64 KiB in memory, for the ways to authenticate that OpenSSL offers. Least,
// median and greatest of the rounds.
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
#include <string>
#include <vector>

#include "starling/net/frame.h"
#include "starling/net/tcp/endpoint.h"
#include "starling/net/tcp/listener.h"

namespace starling {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr DataSecurity kSettings[] = {DataSecurity::kNone, DataSecurity::kAuth, DataSecurity::kEncrypt};
constexpr size_t kLarge = size_t{64} << 20;
constexpr size_t kSmall = 1024;
constexpr int kLargeTimes = 4;
constexpr int kSmallTimes = 2000;

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

// GB/s of one core over segments that stay in the cache.
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

// One side of the three measurements; side 0 returns {one way GB/s, both ways GB/s each, microseconds}.
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
    bounce();  // all of it has arrived
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
    peers.push_back(tcp_connect(addresses[s], mine, soon()));
  }
  std::vector<std::byte> out(kLarge, std::byte{2}), in(kLarge);
  for (int r = 0; r < rounds; ++r)
    for (const auto& peer : peers) measure(*peer, 1, out, in);
}

int run(int rounds) {
  fmt::print("{:<22} {:<12} {:>9} {:>9} {:>9}\n", "", "", "min", "median", "max");
  measure_primitives(rounds);
  const JobIdentity identity{make_job_key(), "security-bench"};
  std::vector<std::unique_ptr<Listener>> listeners;
  std::vector<std::string> addresses;
  for (const DataSecurity security : kSettings) {
    JobIdentity mine = identity;
    mine.security = security;
    listeners.push_back(tcp_listen("127.0.0.1:0", mine));
    addresses.push_back(listeners.back()->address());
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      run_child(addresses, identity, rounds);
      ::_exit(0);
    } catch (const std::exception& error) {
      fmt::print(stderr, "security_bench: child: {}\n", error.what());
      ::_exit(1);
    }
  }
  std::vector<std::unique_ptr<Endpoint>> peers;
  for (const auto& listener : listeners) peers.push_back(listener->accept(soon()));
  std::vector<std::byte> out(kLarge, std::byte{1}), in(kLarge);
  std::array<std::array<std::vector<double>, 3>, 3> found;  // what, setting
  for (int r = -1; r < rounds - 1; ++r) {
    for (size_t s = 0; s < peers.size(); ++s) {
      const auto numbers = measure(*peers[s], 0, out, in);
      for (size_t what = 0; r >= 0 && what < numbers.size(); ++what) found[what][s].push_back(numbers[what]);
    }
  }
  const char* names[] = {"64 MiB one way", "64 MiB both ways, each", "1 KiB there and back"};
  for (size_t what = 0; what < found.size(); ++what)
    for (size_t s = 0; s < peers.size(); ++s)
      print_row(names[what], security_name(kSettings[s]), found[what][s], what < 2 ? "GB/s" : "us");
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 7;
  if (rounds < 1 || rounds > 1000) {
    fmt::print(stderr, "usage: security_bench [rounds], 1 to 1000\n");
    return 2;
  }
  try {
    return starling::run(rounds + 1);
  } catch (const std::exception& error) {
    fmt::print(stderr, "security_bench: {}\n", error.what());
    return 1;
  }
}
