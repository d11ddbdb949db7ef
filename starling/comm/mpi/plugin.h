// What Starling asks of MPI, as the plug-in (plugins/mpi) gives it: MPI's own operations, begun and tested. The plug-in knows nothing of
// timeouts, of ranks that disagree or of groups; comm/mpi/mpi_group.h does, and sees no header of MPI.
//
// The ABI is one C function, by this name (base/shared_object.h):
//
//   extern "C" starling::MpiLibrary* starling_open_mpi(const starling::MpiOpening* opening, char* error, size_t error_bytes);
//
// Null where it cannot: `error` then holds the reason as text that ends with a zero byte. The caller deletes what it gets, communicators
// before their library. Nothing here throws.
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
constexpr size_t kMpiMostElements = 0x7fff'ffff;  // of one operation: MPI counts in int

struct MpiOpening {
  uint32_t abi = kMpiPluginAbi;  // refused where it is another
};

// One operation under way. Its memory belongs to MPI until it has ended; one that is given up is left to MPI.
class MpiTransfer {
 public:
  virtual ~MpiTransfer() = default;
  // Lets MPI work; true once the operation has ended, well or not.
  virtual bool test() = 0;
  // Once ended: why it failed, in MPI's words; empty where it did not.
  const std::string& fault() const { return fault_; }
  // Of a receive that has ended well: what came.
  size_t bytes() const { return bytes_; }

 protected:
  std::string fault_;
  size_t bytes_ = 0;
};

using MpiStarted = std::unique_ptr<MpiTransfer>;

// All calls begin an operation and return at once. Collectives are begun in the same order by all ranks of the communicator, one thread at
// a time; send, receive and probe go on beside them, from any thread. Counts are in elements, kMpiMostElements at most.
class MpiCommunicator {
 public:
  // Frees it, unless the library was abandoned. Nothing is under way.
  virtual ~MpiCommunicator() = default;
  virtual MpiStarted broadcast(void* data, size_t count, DataType type, int root) = 0;
  // In place. kAvg is carried out as kSum. bf16 and fp16 are added in fp32 and rounded at every rank on the way.
  virtual MpiStarted all_reduce(void* data, size_t count, DataType type, ReduceOp op) = 0;
  // in: size() * count elements, out: count.
  virtual MpiStarted reduce_scatter(const void* in, void* out, size_t count, DataType type, ReduceOp op) = 0;
  virtual MpiStarted all_gather(const void* in, void* out, size_t count, DataType type) = 0;
  // One count and one offset a rank; these arrays stay until the end, too.
  virtual MpiStarted all_to_all(const void* in, std::span<const int> in_counts,
                                std::span<const int> in_offsets, void* out, std::span<const int> out_counts,
                                std::span<const int> out_offsets, DataType type) = 0;
  virtual MpiStarted send(const void* data, size_t bytes, int peer, int tag) = 0;
  virtual MpiStarted receive(void* data, size_t bytes, int peer, int tag) = 0;
  // The rank whose message with this tag could be received now; -1: none. peer -1: anybody's.
  virtual int probe(int peer, int tag) = 0;
};

// Thread-safe.
class MpiLibrary {
 public:
  // Ends MPI where it was begun here: waits for all ranks. Not after abandon().
  virtual ~MpiLibrary() = default;
  virtual int rank() const = 0;  // among all that mpiexec started
  virtual int size() const = 0;
  virtual int greatest_tag() const = 0;
  virtual std::string host_name() const = 0;
  virtual std::string version() const = 0;  // of MPI, at run time
  // Of all ranks, for send and receive; owned by the library.
  virtual MpiCommunicator& world() = 0;
  // A communicator of `members`, ascending ranks among all; collective over them, and without a timeout. Ranks in it are positions in
  // `members`. `tag` tells apart groups that are made at the same time by threads of one process. Null with the reason.
  virtual std::unique_ptr<MpiCommunicator> make(std::span<const int> members, int tag,
                                                std::string& error) = 0;
  // Something is under way that will not end: MPI is not ended in order, and mpiexec ends the other ranks when this process exits.
  virtual void abandon() = 0;
};

using OpenMpiFunction = MpiLibrary* (*)(const MpiOpening* opening, char* error, size_t error_bytes);

}  // namespace starling
