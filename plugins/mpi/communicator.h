// An MpiCommunicator that uses MPI's non-blocking operations. comm/mpi/mpi_plugin.h has the contracts of its
// functions.
#pragma once

#include <mpi.h>

#include <atomic>

#include "plugins/mpi/operations.h"
#include "starling/comm/mpi/mpi_plugin.h"

namespace starling {

// The communicator of one group.
class Communicator final : public MpiCommunicator {
 public:
  // Owns `comm`, which returns errors instead of ending the program. `operations` and `abandoned` must
  // outlive this object.
  Communicator(MPI_Comm comm, const MpiOperations& operations, const std::atomic<bool>& abandoned);
  ~Communicator() override;
  Communicator(const Communicator&) = delete;

  // Returns MPI's handle.
  MPI_Comm handle() const { return comm_; }
  MpiStarted broadcast(void* data, size_t count, DataType type, int root) override;
  MpiStarted all_reduce(void* data, size_t count, DataType type, ReduceOp op) override;
  MpiStarted reduce_scatter(const void* in, void* out, size_t count, DataType type, ReduceOp op) override;
  MpiStarted all_gather(const void* in, void* out, size_t count, DataType type) override;
  MpiStarted all_to_all(const void* in, std::span<const int> in_counts, std::span<const int> in_offsets,
                        void* out, std::span<const int> out_counts, std::span<const int> out_offsets,
                        DataType type) override;
  MpiStarted send(const void* data, size_t bytes, int peer, int tag) override;
  MpiStarted receive(void* data, size_t bytes, int peer, int tag) override;
  int probe(int peer, int tag) override;

 private:
  MPI_Comm comm_;
  const MpiOperations& operations_;
  const std::atomic<bool>& abandoned_;
};

}  // namespace starling
