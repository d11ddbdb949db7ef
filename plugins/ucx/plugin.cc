// The C function of the plug-in (starling/net/ucx/ucx_plugin.h).
#include <ucp/api/ucp.h>
extern "C" {
#include <ucs/debug/log_def.h>
}

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>

#include "plugins/ucx/portion.h"
#include "plugins/ucx/worker.h"

namespace starling {
namespace {

// Replaces UCX's log function, which writes to standard output. Standard output belongs to the lines of the
// run. UCX_LOG_LEVEL determines which messages arrive here.
ucs_log_func_rc_t write_log(const char* /*file*/, unsigned /*line*/, const char* /*function*/,
                            ucs_log_level_t /*level*/, const ucs_log_component_config_t* /*component*/,
                            const char* message, va_list arguments) {
  // These warnings appear if a worker ends before it took all arrived messages: farewells or, after a fault,
  // the rest of a collective.
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

// Makes UCX's configuration: its environment and files, then the settings of the request and ours.
ucs_status_t configure(const UcxRequest& request, ucp_config_t** config, size_t& portion) {
  if (const ucs_status_t read = ucp_config_read(nullptr, nullptr, config); read != UCS_OK) return read;
  if (*request.net_devices != '\0')
    if (const ucs_status_t set = ucp_config_modify(*config, "NET_DEVICES", request.net_devices);
        set != UCS_OK)
      return set;
  portion = set_portion(*config);
  ucp_config_modify(*config, "KEEPALIVE_INTERVAL", "2s");  // ignored by a UCX that lacks this setting
  return UCS_OK;
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
  size_t portion = 0;
  ucs_status_t status = configure(*request, &config, portion);
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
