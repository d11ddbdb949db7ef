// Workers over UCX's tag interface (ucp_tag_send_nbx, ucp_tag_recv_nbx), with its error handling by peer.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

#include "starling/net/ucx/plugin.h"

namespace starling {

// Null with the reason. The context outlives the worker. portion: see UcxWorker.
std::unique_ptr<UcxWorker> make_ucx_worker(ucp_context_h ucp, size_t portion, std::string& error);

}  // namespace starling
