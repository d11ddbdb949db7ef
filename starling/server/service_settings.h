// ServiceSettings is what the workers tell the servers before they meet. A server process starts before the
// program has made its model and its optimizer, which may differ from those of the configuration.
//
// A program may train several models, for example the two models of a GAN. The servers then keep one set of
// parameters, a service, for each model. Each service has a ServerRendezvous with a name of its own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "starling/comm/types.h"
#include "starling/server/server_rendezvous.h"
#include "starling/server/torch_settings.h"
#include "starling/spec/run_spec.h"

namespace starling {

// The settings of one service. They are equal on all workers.
struct ServiceSettings {
  DataType type = DataType::kFp32;  // of parameters, gradients and states: kFp32 or kFp64
  OptimizerSpec optimizer;          // the update rule; only what make_update_rule() reads is told
  bool more = false;                // the program may open further services
  TorchSettings torch{};            // of the program's optimizer, if it is no update rule
  std::vector<std::vector<int>> groups_of_shard{};  // TorchSettings::group_of of each shard
};

// Returns the settings as one line of text. The line does not have the fields state_names and group_of of
// TorchSettings.
std::string to_text(const ServiceSettings& settings);
// Returns the settings in a line of to_text(). Errors: CommError for another text.
ServiceSettings service_settings_of(const std::string& text);

// Returns the rendezvous of service `number`. `job` is the rendezvous of the job, which is that of service 0.
ServerRendezvous rendezvous_of_service(const ServerRendezvous& job, int number);

// Tells the servers the settings of a service. Every worker calls this before it meets a server.
void announce_service(Store& store, const ServerRendezvous& rendezvous, const ServiceSettings& settings);
// Returns the settings, or nothing if no worker has announced them yet.
std::optional<ServiceSettings> announced_service(Store& store, const ServerRendezvous& rendezvous);
// Waits until a worker has announced the settings. Returns nothing if all workers are lost. Errors:
// TimeoutError after rendezvous.idle_timeout.
std::optional<ServiceSettings> await_service(Store& store, const ServerRendezvous& rendezvous);

}  // namespace starling
