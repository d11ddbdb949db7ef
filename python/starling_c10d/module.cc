// The Python module: backends of c10d made from the store that torch.distributed hands to register_backend's function.
// No call holds Python's lock while it waits.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "starling/c10d/backend.h"

namespace starling {
namespace {

c10::intrusive_ptr<c10d::Backend> create(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                         double timeout_s, const std::string& name,
                                         const std::vector<int64_t>& world_ranks, const std::string& key_file,
                                         const std::string& interface, const std::string& master_host,
                                         bool reconfigurable) {
  MeetingOptions meeting;
  meeting.name = name;
  meeting.world_ranks = world_ranks;
  meeting.group.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000));
  meeting.group.warn = [rank](const std::string& text) {
    std::fprintf(stderr, "starling: rank %d: warning: %s\n", rank, text.c_str());
  };
  meeting.key_file = key_file;
  meeting.interface = interface;
  meeting.master_host = master_host;
  if (reconfigurable) return StarlingBackend::make_reconfigurable(rank, size, meeting);
  return StarlingBackend::make(store, rank, size, meeting);
}

}  // namespace
}  // namespace starling

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.doc() = "Starling's collectives as a backend of torch.distributed.";
  module.def("create", &starling::create, pybind11::call_guard<pybind11::gil_scoped_release>(),
             "Collective: the backend of the ranks that hold the store.", pybind11::arg("store"),
             pybind11::arg("rank"), pybind11::arg("size"), pybind11::arg("timeout_s"), pybind11::arg("name"),
             pybind11::arg("world_ranks"), pybind11::arg("key_file"), pybind11::arg("interface"),
             pybind11::arg("master_host"), pybind11::arg("reconfigurable"));
}
