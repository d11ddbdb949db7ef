#include "starling/launch/rendezvous.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

#include "starling/base/error.h"
#include "starling/net/fresh_name.h"
#include "starling/net/job_key.h"
#include "starling/net/store_server.h"

namespace starling {
namespace {

// What has to live as long as the job.
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
  const auto served = std::make_shared<Served>(identity, fresh_name());
  Rendezvous out;
  out.address = served->server.addresses().front();
  out.job_id = identity.job_id;
  out.key_fd = [served] { return make_job_key_fd(served->identity.key); };
  out.server = served;
  return out;
}

}  // namespace starling
