#include "plugins/ucx/worker.h"

#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

namespace starling {

class UcxPeer {
 public:
  ucp_ep_h endpoint = nullptr;  // null: disconnected
  const char* fault = nullptr;
};

namespace {

static_assert(sizeof(iovec) == sizeof(ucp_dt_iov_t) &&
              offsetof(iovec, iov_len) == offsetof(ucp_dt_iov_t, length) &&
              offsetof(iovec, iov_base) == offsetof(ucp_dt_iov_t, buffer));

const char* fault_text(ucs_status_t status) {
  return status == UCS_OK ? nullptr : ucs_status_string(status);
}

void end_send(void* request, ucs_status_t status, void* transfer) {
  ucp_request_free(request);
  static_cast<UcxTransfer*>(transfer)->end(fault_text(status), 0);
}

void end_receive(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info, void* transfer) {
  ucp_request_free(request);
  static_cast<UcxTransfer*>(transfer)->end(fault_text(status), status == UCS_OK ? info->length : 0);
}

void note_fault(void* peer, ucp_ep_h /*endpoint*/, ucs_status_t status) {
  static_cast<UcxPeer*>(peer)->fault = fault_text(status);
}

// Fills in the transfer after a call that may have ended at once, with or without a callback.
void settle(UcxTransfer& transfer, ucs_status_ptr_t request) {
  if (!transfer.pending()) return;
  if (request == nullptr) return transfer.end(nullptr, 0);
  if (UCS_PTR_IS_ERR(request)) return transfer.end(fault_text(UCS_PTR_STATUS(request)), 0);
  transfer.request_ = request;
}

// The parts of a message in UCX's form. A single part is passed as it is. Two parts are passed as a list,
// which must stay in place.
struct Layout {
  void* buffer;
  size_t count;
};

Layout lay_out(std::span<const iovec> parts, UcxTransfer& transfer, ucp_request_param_t& param) {
  if (parts.size() == 1) {
    param.datatype = ucp_dt_make_contig(1);
    return {parts[0].iov_base, parts[0].iov_len};
  }
  transfer.parts_ = {parts[0], parts[1]};
  param.datatype = ucp_dt_make_iov();
  return {transfer.parts_.data(), 2};
}

class Worker final : public UcxWorker {
 public:
  Worker(ucp_worker_h worker, size_t portion) : worker_(worker), portion_(portion) {}
  ~Worker() override;

  // Returns null, or why the worker cannot be used.
  const char* open();
  std::string address() const override { return address_; }
  size_t portion() const override { return portion_; }
  UcxPeer* connect(const std::string& address, std::string& error) override;
  const char* fault_of(const UcxPeer* peer) const override { return peer->fault; }
  void disconnect(UcxPeer* peer) override;
  void send(UcxPeer* peer, uint64_t tag, std::span<const iovec> parts, UcxTransfer& transfer) override;
  void receive(uint64_t tag, std::span<const iovec> parts, UcxTransfer& transfer) override;
  void flush(UcxPeer* peer, UcxTransfer& transfer) override;
  void cancel(UcxTransfer& transfer) override;
  bool progress() override { return ucp_worker_progress(worker_) != 0; }
  int event_fd() const override { return event_fd_; }
  bool arm() override { return ucp_worker_arm(worker_) != UCS_ERR_BUSY; }

 private:
  void forget_closed();

  ucp_worker_h worker_;
  const size_t portion_;
  std::string address_;
  int event_fd_ = -1;
  std::vector<std::unique_ptr<UcxPeer>> peers_;
  std::vector<void*> closing_;  // requests that close endpoints
};

const char* Worker::open() {
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  if (const ucs_status_t got = ucp_worker_get_address(worker_, &address, &bytes); got != UCS_OK)
    return fault_text(got);
  address_.assign(reinterpret_cast<const char*>(address), bytes);
  ucp_worker_release_address(worker_, address);
  return fault_text(ucp_worker_get_efd(worker_, &event_fd_));
}

Worker::~Worker() {
  for (const auto& peer : peers_) disconnect(peer.get());
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (!closing_.empty() && std::chrono::steady_clock::now() < end) {
    ucp_worker_progress(worker_);
    forget_closed();
  }
  ucp_worker_destroy(worker_);
}

UcxPeer* Worker::connect(const std::string& address, std::string& error) {
  auto peer = std::make_unique<UcxPeer>();
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {note_fault, peer.get()};
  if (const ucs_status_t made = ucp_ep_create(worker_, &params, &peer->endpoint); made != UCS_OK) {
    error = fault_text(made);
    return nullptr;
  }
  peers_.push_back(std::move(peer));
  return peers_.back().get();
}

void Worker::disconnect(UcxPeer* peer) {
  if (peer->endpoint == nullptr) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  ucs_status_ptr_t closing = ucp_ep_close_nbx(std::exchange(peer->endpoint, nullptr), &param);
  if (UCS_PTR_IS_PTR(closing)) closing_.push_back(closing);
  if (peer->fault == nullptr) peer->fault = "disconnected";
}

void Worker::forget_closed() {
  std::erase_if(closing_, [](void* request) {
    if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
    ucp_request_free(request);
    return true;
  });
}

void Worker::send(UcxPeer* peer, uint64_t tag, std::span<const iovec> parts, UcxTransfer& transfer) {
  transfer.begin();
  if (peer->fault != nullptr) return transfer.end(peer->fault, 0);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = end_send;
  param.user_data = &transfer;
  const Layout layout = lay_out(parts, transfer, param);
  settle(transfer, ucp_tag_send_nbx(peer->endpoint, layout.buffer, layout.count, tag, &param));
}

void Worker::receive(uint64_t tag, std::span<const iovec> parts, UcxTransfer& transfer) {
  transfer.begin();
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FLAG_NO_IMM_CMPL;  // an immediate completion tells no length
  param.cb.recv = end_receive;
  param.user_data = &transfer;
  const Layout layout = lay_out(parts, transfer, param);
  const ucs_status_ptr_t request =
      ucp_tag_recv_nbx(worker_, layout.buffer, layout.count, tag, ~uint64_t{0}, &param);
  settle(transfer, request);
}

void Worker::flush(UcxPeer* peer, UcxTransfer& transfer) {
  transfer.begin();
  if (peer->fault != nullptr) return transfer.end(peer->fault, 0);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = end_send;
  param.user_data = &transfer;
  settle(transfer, ucp_ep_flush_nbx(peer->endpoint, &param));
}

void Worker::cancel(UcxTransfer& transfer) {
  if (transfer.pending() && transfer.request_ != nullptr) ucp_request_cancel(worker_, transfer.request_);
}

}  // namespace

std::unique_ptr<UcxWorker> make_ucx_worker(ucp_context_h ucp, size_t portion, std::string& error) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucp_worker_h made = nullptr;
  if (const ucs_status_t status = ucp_worker_create(ucp, &params, &made); status != UCS_OK) {
    error = fault_text(status);
    return nullptr;
  }
  auto worker = std::make_unique<Worker>(made, portion);
  if (const char* fault = worker->open()) {
    error = fault;
    return nullptr;
  }
  return worker;
}

}  // namespace starling
