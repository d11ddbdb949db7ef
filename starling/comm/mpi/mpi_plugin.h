// The interface between Starling and its MPI plug-in (plugins/mpi): MPI's own operations, begun and tested.
//
// The plug-in knows nothing of timeouts, of ranks that disagree, or of groups. comm/mpi/mpi_group.h handles
// these and sees no header of MPI. The ABI is one C function with this name (base/shared_object.h):
//
//   extern "C" starling::MpiLibrary* starling_open_mpi(const starling::MpiOpening* opening, char* error,
//                                                      size_t error_bytes);
//
// It returns null if it fails. `error` then holds the reason as text that ends with a zero byte. The caller
// deletes what it gets, and deletes communicators before their library. Nothing here throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "starling/comm/types.h"

namespace starling {

constexpr uint32_t kMpiPluginAbi = 1;
constexpr const char* kOpenMpiName = "starling_open_mpi";
constexpr size_t kMpiMostElements = 0x7fff'ffff;  // of one operation, because MPI counts in int

// MpiOpening is what the caller tells the plug-in.
struct MpiOpening {
  uint32_t abi = kMpiPluginAbi;  // the plug-in refuses any other number
};

// MpiTransfer is one operation under way. MPI uses its memory until the operation has ended. The destructor
// of a receive that has not ended cancels the receive. All other operations are left to MPI.
class MpiTransfer {
 public:
  virtual ~MpiTransfer() = default;
  // Lets MPI work. Returns true once the operation has ended, with or without a fault.
  virtual bool test() = 0;
  // Once the operation has ended: why it failed, in MPI's words. It is empty if the operation succeeded.
  const std::string& fault() const { return fault_; }
  // The size of the received message, once a receive has succeeded.
  size_t bytes() const { return bytes_; }

 protected:
  std::string fault_;
  size_t bytes_ = 0;
};

// A begun operation.
using MpiStarted = std::unique_ptr<MpiTransfer>;

// MpiCommunicator begins operations among some ranks. All calls return at once. Counts are in elements, at
// most kMpiMostElements. All ranks of the communicator begin collectives in the same order, one thread at a
// time. Any thread may call send, receive and probe at the same time.
class MpiCommunicator {
 public:
  // Frees the communicator, unless the library was abandoned. No operation may be under way.
  virtual ~MpiCommunicator() = default;
  // Copies `data` of rank `root` to all ranks.
  virtual MpiStarted broadcast(void* data, size_t count, DataType type, int root) = 0;
  // Reduces `data` in place. kAvg is carried out as kSum. bf16 and fp16 are added in fp32 and rounded at
  // every rank.
  virtual MpiStarted all_reduce(void* data, size_t count, DataType type, ReduceOp op) = 0;
  // Reduces size() * count elements at `in`. Each rank gets its `count` elements in `out`.
  virtual MpiStarted reduce_scatter(const void* in, void* out, size_t count, DataType type, ReduceOp op) = 0;
  // Gathers `count` elements of each rank.
  virtual MpiStarted all_gather(const void* in, void* out, size_t count, DataType type) = 0;
  // Sends a part to each rank and receives one from each. There is one count and one offset per rank. The
  // arrays must stay valid until the operation ends.
  virtual MpiStarted all_to_all(const void* in, std::span<const int> in_counts,
                                std::span<const int> in_offsets, void* out, std::span<const int> out_counts,
                                std::span<const int> out_offsets, DataType type) = 0;
  // Sends a message to `peer`.
  virtual MpiStarted send(const void* data, size_t bytes, int peer, int tag) = 0;
  // Receives a message of at most `bytes` from `peer`.
  virtual MpiStarted receive(void* data, size_t bytes, int peer, int tag) = 0;
  // Returns the rank whose message with this tag could be received now, or -1. A `peer` of -1 stands for any
  // rank.
  virtual int probe(int peer, int tag) = 0;
};

// MpiLibrary is MPI in this process. It is thread-safe.
class MpiLibrary {
 public:
  // Finalizes MPI if the plug-in has initialized it, which waits for all ranks. It does not after abandon().
  virtual ~MpiLibrary() = default;
  // This rank among all that mpiexec has started.
  virtual int rank() const = 0;
  // The number of ranks that mpiexec has started.
  virtual int size() const = 0;
  // The greatest tag that this MPI accepts.
  virtual int greatest_tag() const = 0;
  // The name of this host.
  virtual std::string host_name() const = 0;
  // The version of the MPI that runs.
  virtual std::string version() const = 0;
  // The communicator of all ranks, for send and receive. The library owns it.
  virtual MpiCommunicator& world() = 0;
  // Makes a communicator of `ranks`, which are ascending ranks of the world. It is a collective over them and
  // has no timeout. A rank in the communicator is a position in `ranks`. `tag` tells apart groups that
  // threads of one process make at the same time. It returns null and sets `error` if it fails.
  virtual std::unique_ptr<MpiCommunicator> make(std::span<const int> ranks, int tag, std::string& error) = 0;
  // Gives MPI up because an operation that will not end is under way. MPI is then not finalized, and mpiexec
  // ends the other ranks when this process exits.
  virtual void abandon() = 0;
};

// The type of starling_open_mpi.
using OpenMpiFunction = MpiLibrary* (*)(const MpiOpening* opening, char* error, size_t error_bytes);

}  // namespace starling
