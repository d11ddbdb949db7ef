// NetworkNamespaces: hosts for a test. They are network namespaces that a bridge connects. The bridge is in a
// namespace of its own, so the machine's network is not touched. This needs root. If it is not permitted, the
// test is skipped with the reason from unavailable():
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

// NetworkNamespaces makes the hosts and removes them.
class NetworkNamespaces {
 public:
  // Returns "" if namespaces can be made, otherwise "network namespaces are not permitted here: …"
  // (.ci/allowed-skips).
  static std::string unavailable();

  // Makes the bridge and `hosts` namespaces (at most 200). Errors: Error with the message of `ip`.
  explicit NetworkNamespaces(int hosts);
  // Removes the namespaces and kills the processes that still run in them. If a signal ends this process
  // early, a helper process does this.
  ~NetworkNamespaces();
  NetworkNamespaces(const NetworkNamespaces&) = delete;
  NetworkNamespaces& operator=(const NetworkNamespaces&) = delete;

  // Returns the IPv4 address of a host. Its interface is called eth0.
  std::string address(int host) const;
  // Returns the command line that runs `arguments` on a host.
  std::vector<std::string> command(int host, const std::vector<std::string>& arguments) const;
  // Moves the calling thread, and the threads that it starts later, to a host. Errors: Error.
  void enter(int host) const;
  // Limits what each host sends and receives to `mbit` Mbit/s (token buckets).
  void limit_rate(int mbit);
  // Takes the link of a host down, as if its cable were pulled.
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
