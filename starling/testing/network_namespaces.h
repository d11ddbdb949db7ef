// Hosts for a test: network namespaces joined by a bridge that lies in a namespace of its own, so that the machine's network
// is not touched. Needs root; where it is not permitted the test is skipped with unavailable()'s reason:
//
//   if (const auto reason = NetworkNamespaces::unavailable(); !reason.empty()) GTEST_SKIP() << reason;
//   NetworkNamespaces hosts(2);
//   … hosts.command(1, {program, "train"}) … hosts.address(0) …
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace starling {

class NetworkNamespaces {
 public:
  // Empty where namespaces can be made, else "network namespaces are not permitted here: …" (.ci/allowed-skips).
  static std::string unavailable();

  // Makes `hosts` namespaces (at most 200) and the bridge. Throws Error with ip's message.
  explicit NetworkNamespaces(int hosts);
  // Removes them and kills what still runs inside. A process of its own does so, when this one has ended, too: by whatever signal.
  ~NetworkNamespaces();
  NetworkNamespaces(const NetworkNamespaces&) = delete;
  NetworkNamespaces& operator=(const NetworkNamespaces&) = delete;

  // The IPv4 address of a host; its interface is called eth0.
  std::string address(int host) const;
  // The command line that runs `arguments` on a host.
  std::vector<std::string> command(int host, const std::vector<std::string>& arguments) const;
  // Limits what each host sends, and what it receives, to `mbit` Mbit/s (token buckets).
  void limit_rate(int mbit);
  // Takes the link of a host down, as a pulled cable does.
  void unplug(int host);

 private:
  std::string name_of(int host) const;
  std::string bridge_name() const;

  using Keeper = std::unique_ptr<std::FILE, void (*)(std::FILE*)>;

  std::string prefix_;
  int hosts_ = 0;
  Keeper keeper_;
};

}  // namespace starling
