// Workers over UCX's tag interface (ucp_tag_send_nbx, ucp_tag_recv_nbx), with UCX's error handling for each
// peer.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

#include "starling/net/ucx/ucx_plugin.h"

namespace starling {

// Makes a worker. Returns null and the reason in `error` if that fails. The context must outlive the worker.
// portion: see UcxWorker.
std::unique_ptr<UcxWorker> make_ucx_worker(ucp_context_h ucp, size_t portion, std::string& error);

}  // namespace starling
