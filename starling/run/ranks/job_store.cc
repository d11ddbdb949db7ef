#include "starling/run/ranks/job_store.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "starling/base/descriptor_limit.h"
#include "starling/base/error.h"
#include "starling/net/address.h"
#include "starling/net/security/crypto.h"
#include "starling/net/store/split_store.h"

namespace starling {
namespace {

bool several_hosts(const Environment& environment) {
  return environment.identity.local_world_size < environment.identity.world_size;
}

std::string job_id_of(const Environment& environment) {
  if (!environment.job_id.empty()) return environment.job_id;
  // MPICH gives its ranks no job name. On one host, they have one parent process.
  if (environment.identity.origin == ProcessOrigin::kMpi && !several_hosts(environment))
    return fmt::format("mpi-{}", ::getppid());
  return fmt::format("{}:{}", environment.master_host, environment.master_port);
}

// Returns the key for one host under torchrun or srun. No secret was passed to this process, and none is
// needed, because the kernel tells the server whose process connects. The handshake's key is derived from
// what all ranks know.
JobKey key_of_this_host(const Environment& environment) {
  const std::string text = fmt::format("starling one host {} {}", ::getuid(), job_id_of(environment));
  std::array<std::byte, JobKey::kBytes> bytes{};
  for (size_t i = 0; i < text.size(); ++i)
    bytes[i % bytes.size()] ^= static_cast<std::byte>(text[i] + 131 * i);
  return JobKey(std::span<const std::byte, JobKey::kBytes>(bytes));
}

JobKey job_key(const CommSpec& spec, const Environment& environment) {
  if (environment.key_fd >= 0) return read_job_key_fd(environment.key_fd);
  const std::string file = !spec.key_file.empty() ? spec.key_file : environment.key_file;
  if (!file.empty()) return read_job_key_file(file);
  if (several_hosts(environment)) {
    throw ConfigError(
        "comm.key_file",
        "the ranks are on several hosts, and connections between hosts need a job key. Make one with "
        "`(umask 077; head -c32 /dev/urandom | xxd -p -c64 > job.key)`, copy it to every host, and give "
        "--set comm.key_file=job.key");
  }
  return key_of_this_host(environment);
}

Milliseconds milliseconds_of(double seconds) {
  return Milliseconds(static_cast<int64_t>(seconds * 1000));
}

std::unique_ptr<StoreServer> serve_job(const std::string& address, const JobIdentity& identity) {
  try {
    return std::make_unique<StoreServer>(std::vector<std::string>{address}, identity);
  } catch (const CommError& error) {
    throw CommError(fmt::format(
        "rank 0 cannot serve the rendezvous of the ranks at {} (MASTER_ADDR, MASTER_PORT + 1): {}", address,
        error.what()));
  }
}

}  // namespace

JobStore::JobStore(const CommSpec& spec, const Environment& environment)
    : identity_{job_key(spec, environment), job_id_of(environment), security_named(spec.security),
                milliseconds_of(spec.dead_after_s)} {
  raise_descriptor_limit();
  StoreClientOptions options;
  options.connect_timeout = milliseconds_of(spec.timeout_s);
  std::string host_address = environment.store;
  if (host_address.empty()) {
    host_address = fmt::format("@starling-{}-{}-{}", ::getuid(), identity_.job_id, environment.master_port);
    if (environment.identity.local_rank == 0) {
      host_server_ = std::make_unique<StoreServer>(std::vector<std::string>{host_address}, identity_);
    }
  }
  host_store_ = std::make_unique<StoreClient>(host_address, identity_, options);
  if (!environment.job_store.empty()) {
    job_store_ = std::make_unique<StoreClient>(environment.job_store, identity_, options);
  } else if (environment.store.empty() && several_hosts(environment)) {
    if (environment.master_host.empty())
      throw ConfigError(
          "MASTER_ADDR",
          "the ranks are on several hosts, and the variable is not set. Set it to the host of rank 0, as in "
          "mpiexec -x MASTER_ADDR=node-a (MPICH: -genv MASTER_ADDR node-a)");
    const std::string address = host_port_text(environment.master_host, environment.master_port + 1);
    if (environment.identity.rank == 0) job_server_ = serve_job(address, identity_);
    job_store_ = std::make_unique<StoreClient>(address, identity_, options);
  }
  if (job_store_) both_ = std::make_unique<SplitStore>(*job_store_, *host_store_);
}

Store& JobStore::store() {
  return both_ ? *both_ : *host_store_;
}

void JobStore::announce(int rank) {
  (job_store_ ? *job_store_ : *host_store_).announce(rank);
  announced_ = true;
}

JobStore::~JobStore() {
  if (!announced_ || !orderly_) return;
  try {
    (job_store_ ? *job_store_ : *host_store_).goodbye();
  } catch (const Error&) {
    // The server has ended already, so no rank needs the message.
  }
}

}  // namespace starling
