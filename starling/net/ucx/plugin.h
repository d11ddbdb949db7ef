// What Starling asks of UCX, as the plug-in (plugins/ucx) gives it: transfers by tag between workers. The plug-in knows nothing of
// messages, keys or ranks; net/ucx/endpoint.h does, and sees no header of UCX.
//
// The ABI is one C function, by this name (base/shared_object.h):
//
//   extern "C" starling::UcxLibrary* starling_open_ucx(const starling::UcxRequest* request, char* error, size_t error_bytes);
//
// Null where it cannot: `error` then holds the reason as text that ends with a zero byte. The caller deletes what it gets, workers before
// their library. Nothing here throws.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace starling {

// Raised with every change of what follows, and of what it means.
constexpr uint32_t kUcxPluginAbi = 3;
constexpr const char* kOpenUcxName = "starling_open_ucx";

struct UcxRequest {
  uint32_t abi = kUcxPluginAbi;  // refused where it is another
  // As UCX_NET_DEVICES, e.g. "eth0" or "mlx5_0:1"; empty: as UCX's own configuration says, by default every device.
  const char* net_devices = "";
};

// One message under way, owned by the caller, who keeps it and the memory of its parts until it is no longer pending.
class UcxTransfer {
 public:
  UcxTransfer() = default;
  UcxTransfer(const UcxTransfer&) = delete;
  virtual ~UcxTransfer() = default;

  bool pending() const { return pending_; }
  // Once ended: why it failed, in UCX's words; null where it did not.
  const char* fault() const { return fault_; }
  // Of a receive that did not fail: what came.
  size_t bytes() const { return bytes_; }

  // For the plug-in.
  void begin() {
    pending_ = true;
    fault_ = nullptr;
    bytes_ = 0;
  }
  void end(const char* fault, size_t bytes) {
    pending_ = false;
    request_ = nullptr;
    fault_ = fault;
    bytes_ = bytes;
    ended();
  }
  void* request_ = nullptr;       // UCX's
  std::array<iovec, 2> parts_{};  // of a message in two parts, where UCX keeps looking

 protected:
  // Told within the call of the worker that ended it.
  virtual void ended() {}

 private:
  bool pending_ = false;
  const char* fault_ = nullptr;
  size_t bytes_ = 0;
};

// A remote worker, as a handle.
class UcxPeer;

// One thread at a time.
class UcxWorker {
 public:
  virtual ~UcxWorker() = default;
  // What a peer connects to: bytes, not text.
  virtual std::string address() const = 0;
  // Messages of at most so many bytes leave in one piece without asking the receiver first, and longer ones do not; 0: as UCX chooses.
  virtual size_t portion() const = 0;
  // Null with the reason where no way leads there; else until disconnect().
  virtual UcxPeer* connect(const std::string& address, std::string& error) = 0;
  // Why the peer cannot be reached any more; null while it can, as far as UCX knows.
  virtual const char* fault_of(const UcxPeer* peer) const = 0;
  // Ends its transfers, which tell so at later calls of progress().
  virtual void disconnect(UcxPeer* peer) = 0;

  // Begin; one or two parts. Messages with one tag between two workers arrive in order.
  virtual void send(UcxPeer* peer, uint64_t tag, std::span<const iovec> parts, UcxTransfer& transfer) = 0;
  virtual void receive(uint64_t tag, std::span<const iovec> parts, UcxTransfer& transfer) = 0;
  // What was given to UCX for this peer has left it when `transfer` ends.
  virtual void flush(UcxPeer* peer, UcxTransfer& transfer) = 0;
  // Ends a transfer, where that is possible, at later calls of progress().
  virtual void cancel(UcxTransfer& transfer) = 0;

  // Moves what can be moved; false if that was nothing.
  virtual bool progress() = 0;
  // Readable when there is something to progress, from the time when arm() has returned true.
  virtual int event_fd() const = 0;
  virtual bool arm() = 0;
};

// Thread-safe.
class UcxLibrary {
 public:
  virtual ~UcxLibrary() = default;
  virtual std::unique_ptr<UcxWorker> make_worker(std::string& error) = 0;
  virtual std::string version() const = 0;  // of UCX, at run time
};

using OpenUcxFunction = UcxLibrary* (*)(const UcxRequest* request, char* error, size_t error_bytes);

}  // namespace starling
