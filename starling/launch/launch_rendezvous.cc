#include "starling/launch/launch_rendezvous.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

#include "starling/base/descriptor_limit.h"
#include "starling/base/error.h"
#include "starling/net/security/job_key.h"
#include "starling/net/store/store_server.h"

namespace starling {
namespace {

// The objects that must live as long as the job.
struct Served {
  Served(const JobIdentity& id, const std::string& name) : identity(id), server({"@" + name}, id) {}
  JobIdentity identity;
  StoreServer server;
};

}  // namespace

JobIdentity make_job_identity() {
  return {make_job_key(), fresh_name()};
}

Rendezvous start_local_rendezvous() {
  return start_host_rendezvous(make_job_identity());
}

Rendezvous start_host_rendezvous(const JobIdentity& identity) {
  raise_descriptor_limit();
  const auto served = std::make_shared<Served>(identity, fresh_name());
  Rendezvous out;
  out.address = served->server.addresses().front();
  out.job_id = identity.job_id;
  out.key_fd = [served] { return make_job_key_fd(served->identity.key); };
  out.server = served;
  return out;
}

}  // namespace starling
