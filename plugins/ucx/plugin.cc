// The C function of the engine (starling/net/ucx/plugin.h).
#include <ucp/api/ucp.h>
extern "C" {
#include <ucs/debug/log_def.h>
}

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <sstream>
#include <string>

#include "plugins/ucx/worker.h"

namespace starling {
namespace {

// UCX would write to standard output, which belongs to the run's own lines. What comes here is what UCX_LOG_LEVEL lets through.
ucs_log_func_rc_t write_log(const char* /*file*/, unsigned /*line*/, const char* /*function*/,
                            ucs_log_level_t /*level*/, const ucs_log_component_config_t* /*component*/,
                            const char* message, va_list arguments) {
  // What had come and nobody took when a worker ends: farewells; after a fault, the rest of a collective.
  for (const char* usual : {"unexpected tag-receive descriptor", "was not returned to mpool"})
    if (std::strstr(message, usual) != nullptr) return UCS_LOG_FUNC_RC_STOP;
  char text[512];
  std::vsnprintf(text, sizeof(text), message, arguments);
  std::fprintf(stderr, "starling: ucx: %s\n", text);
  return UCS_LOG_FUNC_RC_STOP;
}

class Library final : public UcxLibrary {
 public:
  Library(ucp_context_h ucp, size_t portion) : ucp_(ucp), portion_(portion) {}
  ~Library() override { ucp_cleanup(ucp_); }
  std::unique_ptr<UcxWorker> make_worker(std::string& error) override {
    return make_ucx_worker(ucp_, portion_, error);
  }
  std::string version() const override { return ucp_get_version_string(); }

 private:
  ucp_context_h ucp_;
  const size_t portion_;
};

UcxLibrary* refuse(const std::string& why, char* error, size_t error_bytes) {
  const size_t length = std::min(why.size(), error_bytes - 1);
  std::memcpy(error, why.data(), length);
  error[length] = '\0';
  return nullptr;
}

// What UCX sends over TCP in one piece, for its receive buffer is of 64 KB (UCX_TCP_RX_SEG_SIZE). By itself it asks the receiver from 20 KB
// on, and reads in pieces through that buffer all the same: it writes to where the bytes belong only if a peer's death need not be noticed.
constexpr size_t kTcpPortion = 61'440;

// Network devices that are interfaces of the kernel carry TCP; RDMA devices have other names (mlx5_0:1).
bool only_interfaces(const std::string& devices) {
  std::istringstream names(devices);
  std::error_code error;
  for (std::string name; std::getline(names, name, ',');)
    if (name.empty() || !std::filesystem::exists("/sys/class/net/" + name, error)) return false;
  return !devices.empty();
}

// See UcxWorker. Who has told UCX how to send knows better.
size_t portion_of(const UcxRequest& request) {
  for (const char* told : {"UCX_RNDV_THRESH", "UCX_TCP_RX_SEG_SIZE"})
    if (std::getenv(told) != nullptr) return 0;
  const char* named = std::getenv("UCX_NET_DEVICES");
  const bool read_by_ucx = *request.net_devices == '\0' && named != nullptr;
  return only_interfaces(read_by_ucx ? named : request.net_devices) ? kTcpPortion : 0;
}

// UCX's configuration: its environment and files, then what the request and the portion say.
ucs_status_t configure(const UcxRequest& request, size_t portion, ucp_config_t** config) {
  if (const ucs_status_t read = ucp_config_read(nullptr, nullptr, config); read != UCS_OK) return read;
  if (portion > 0) ucp_config_modify(*config, "RNDV_THRESH", std::to_string(portion + 1).c_str());
  ucp_config_modify(*config, "KEEPALIVE_INTERVAL", "2s");  // where this UCX has it
  return *request.net_devices == '\0' ? UCS_OK
                                      : ucp_config_modify(*config, "NET_DEVICES", request.net_devices);
}

}  // namespace
}  // namespace starling

extern "C" starling::UcxLibrary* starling_open_ucx(const starling::UcxRequest* request, char* error,
                                                   size_t error_bytes) {
  using namespace starling;
  if (request->abi != kUcxPluginAbi)
    return refuse("the engine is of another build than the program: build and install both together", error,
                  error_bytes);
  ucs_log_push_handler(write_log);
  ucp_config_t* config = nullptr;
  const size_t portion = portion_of(*request);
  ucs_status_t status = configure(*request, portion, &config);
  ucp_context_h ucp = nullptr;
  if (status == UCS_OK) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
    params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
    params.mt_workers_shared = 1;
    status = ucp_init(&params, config, &ucp);
  }
  if (config != nullptr) ucp_config_release(config);
  if (status != UCS_OK)
    return refuse(std::string(ucs_status_string(status)) +
                      "; see UCX_TLS and UCX_NET_DEVICES, or use comm.engine=starling",
                  error, error_bytes);
  return new Library(ucp, portion);
}
