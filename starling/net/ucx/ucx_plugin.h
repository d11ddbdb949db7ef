// The interface between Starling and its UCX plug-in (plugins/ucx): transfers by tag between workers.
//
// The plug-in knows nothing of messages, keys or ranks. net/ucx/ucx_endpoint.h handles these and sees no
// header of UCX. The ABI is one C function with this name (base/shared_object.h):
//
//   extern "C" starling::UcxLibrary* starling_open_ucx(const starling::UcxRequest* request, char* error,
//                                                      size_t error_bytes);
//
// It returns null if it fails. `error` then holds the reason as text that ends with a zero byte. The caller
// deletes what it gets, and deletes workers before their library. Nothing here throws.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace starling {

// The version of this interface. Increase it with every change of this file or of its meaning.
constexpr uint32_t kUcxPluginAbi = 3;
constexpr const char* kOpenUcxName = "starling_open_ucx";

// UcxRequest is what the caller asks of the plug-in.
struct UcxRequest {
  uint32_t abi = kUcxPluginAbi;  // the plug-in refuses any other number
  // The value of UCX_NET_DEVICES, for example "eth0" or "mlx5_0:1". Empty: UCX's own configuration decides,
  // by default every device.
  const char* net_devices = "";
};

// UcxTransfer is one message under way. The caller owns it, and keeps it and the memory of its parts until it
// is no longer pending.
class UcxTransfer {
 public:
  UcxTransfer() = default;
  UcxTransfer(const UcxTransfer&) = delete;
  virtual ~UcxTransfer() = default;

  // Whether the transfer has begun and not ended.
  bool pending() const { return pending_; }
  // Once ended: why the transfer failed, in UCX's words. Null if it succeeded.
  const char* fault() const { return fault_; }
  // The size of the received message, once a receive has succeeded.
  size_t bytes() const { return bytes_; }

  // For the plug-in: the transfer begins.
  void begin() {
    pending_ = true;
    fault_ = nullptr;
    bytes_ = 0;
  }
  // For the plug-in: the transfer ends.
  void end(const char* fault, size_t bytes) {
    pending_ = false;
    request_ = nullptr;
    fault_ = fault;
    bytes_ = bytes;
    ended();
  }
  void* request_ = nullptr;  // for the plug-in: UCX's request
  std::array<iovec, 2>
      parts_{};  // for the plug-in: the parts of a message in two parts, which UCX reads until the end

 protected:
  // Called when the transfer ends, within the call of the worker that ended it.
  virtual void ended() {}

 private:
  bool pending_ = false;
  const char* fault_ = nullptr;
  size_t bytes_ = 0;
};

// UcxPeer is a handle of a remote worker.
class UcxPeer;

// UcxWorker moves messages. One thread at a time may use it.
class UcxWorker {
 public:
  virtual ~UcxWorker() = default;
  // Returns the address that a peer connects to: bytes, not text.
  virtual std::string address() const = 0;
  // Messages of at most this many bytes leave in one piece without a request to the receiver. Longer messages
  // do not. 0: UCX decides.
  virtual size_t portion() const = 0;
  // Connects to a peer until disconnect(). Returns null and sets `error` if UCX cannot reach it.
  virtual UcxPeer* connect(const std::string& address, std::string& error) = 0;
  // Returns why the peer can no longer be reached. Null if it can, as far as UCX knows.
  virtual const char* fault_of(const UcxPeer* peer) const = 0;
  // Ends the peer's transfers. They report it during later calls of progress().
  virtual void disconnect(UcxPeer* peer) = 0;

  // Begins to send a message of one or two parts. Messages with one tag between two workers arrive in order.
  virtual void send(UcxPeer* peer, uint64_t tag, std::span<const iovec> parts, UcxTransfer& transfer) = 0;
  // Begins to receive a message with this tag.
  virtual void receive(uint64_t tag, std::span<const iovec> parts, UcxTransfer& transfer) = 0;
  // Begins a transfer that ends when everything that was given to UCX for this peer has left.
  virtual void flush(UcxPeer* peer, UcxTransfer& transfer) = 0;
  // Ends a transfer, if possible, during later calls of progress().
  virtual void cancel(UcxTransfer& transfer) = 0;

  // Moves what can be moved. Returns false if that is nothing.
  virtual bool progress() = 0;
  // A descriptor that is readable when there is something to progress, once arm() has returned true.
  virtual int event_fd() const = 0;
  // Prepares event_fd(). Returns false if there is something to progress first.
  virtual bool arm() = 0;
};

// UcxLibrary is UCX in this process. It is thread-safe.
class UcxLibrary {
 public:
  virtual ~UcxLibrary() = default;
  // Makes a worker. Returns null and sets `error` if it fails.
  virtual std::unique_ptr<UcxWorker> make_worker(std::string& error) = 0;
  // The version of the UCX that runs.
  virtual std::string version() const = 0;
};

// The type of starling_open_ucx.
using OpenUcxFunction = UcxLibrary* (*)(const UcxRequest* request, char* error, size_t error_bytes);

}  // namespace starling
