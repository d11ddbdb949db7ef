// The Python module makes c10d backends from the store that torch.distributed passes to the registered
// function, and binds the training loops of starling.DistributedOptimizer. No call holds Python's global lock
// while it waits.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "starling/c10d/backend.h"
#include "training_loop.h"

namespace starling {
namespace {

c10::intrusive_ptr<c10d::Backend> create(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                         double timeout_s, const std::string& name,
                                         const std::vector<int64_t>& world_ranks, const std::string& key_file,
                                         const std::string& net_security, const std::string& interface,
                                         const std::string& master_host, bool reconfigurable) {
  RendezvousOptions rendezvous;
  rendezvous.name = name;
  rendezvous.world_ranks = world_ranks;
  rendezvous.group.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000));
  rendezvous.group.warn = [rank](const std::string& text) {
    std::fprintf(stderr, "starling: rank %d: warning: %s\n", rank, text.c_str());
  };
  rendezvous.key_file = key_file;
  if (!net_security.empty()) rendezvous.security = security_named(net_security, "STARLING_NET_SECURITY");
  rendezvous.interface = interface;
  rendezvous.master_host = master_host;
  if (reconfigurable) return StarlingBackend::make_reconfigurable(rank, size, rendezvous);
  return StarlingBackend::make(store, rank, size, rendezvous);
}

}  // namespace
}  // namespace starling

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.doc() = "Starling's collectives as a backend of torch.distributed, and its training loops.";
  module.def("create", &starling::create, pybind11::call_guard<pybind11::gil_scoped_release>(),
             "Makes the backend of this rank. Every rank that shares the store must call it.",
             pybind11::arg("store"), pybind11::arg("rank"), pybind11::arg("size"), pybind11::arg("timeout_s"),
             pybind11::arg("name"), pybind11::arg("world_ranks"), pybind11::arg("key_file"),
             pybind11::arg("net_security"), pybind11::arg("interface"), pybind11::arg("master_host"),
             pybind11::arg("reconfigurable"));
  starling::bind_training_loop(module);
}
