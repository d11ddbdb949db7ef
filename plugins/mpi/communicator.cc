#include "plugins/mpi/communicator.h"

#include <chrono>

namespace starling {
namespace {

constexpr std::chrono::milliseconds kCancelled{200};  // how long a cancelled receive may take to end

class Transfer : public MpiTransfer {
 public:
  // begin(&request) calls MPI and returns its code. After a fault no code may call MPI.
  template <typename Begin>
  Transfer(const std::atomic<bool>& abandoned, const Begin& begin)
      : abandoned_(abandoned), fault_of_begin_(abandoned ? MPI_SUCCESS : begin(&request_)) {}

  bool test() override {
    if (ended_) return true;
    if (abandoned_) {
      fault_ = "MPI has been given up after a fault";
      return ended_ = true;
    }
    int done = 1;
    MPI_Status status;
    int code = fault_of_begin_;
    if (code == MPI_SUCCESS) code = MPI_Test(&request_, &done, &status);
    if (code == MPI_SUCCESS && done == 0) return false;
    fault_ = mpi_fault(code);
    if (code == MPI_SUCCESS) take(status);
    return ended_ = true;
  }

 protected:
  virtual void take(const MPI_Status& /*status*/) {}
  bool ended() const { return ended_; }
  const std::atomic<bool>& abandoned_;
  MPI_Request request_ = MPI_REQUEST_NULL;

 private:
  const int fault_of_begin_;
  bool ended_ = false;
};

class Receive final : public Transfer {
 public:
  using Transfer::Transfer;
  // A receive that is destroyed before its end must not write into its memory later.
  ~Receive() override {
    if (ended() || abandoned_ || request_ == MPI_REQUEST_NULL) return;
    MPI_Cancel(&request_);
    // MPI does not cancel a receive that has a matching message, but completes it.
    int done = 0;
    for (const auto end = std::chrono::steady_clock::now() + kCancelled;
         done == 0 && std::chrono::steady_clock::now() < end;) {
      if (MPI_Test(&request_, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return;
    }
    if (done == 0) MPI_Request_free(&request_);
  }

 private:
  void take(const MPI_Status& status) override {
    int count = 0;
    if (MPI_Get_count(&status, MPI_BYTE, &count) == MPI_SUCCESS && count > 0)
      bytes_ = static_cast<size_t>(count);
  }
};

}  // namespace

Communicator::Communicator(MPI_Comm comm, const MpiOperations& operations, const std::atomic<bool>& abandoned)
    : comm_(comm), operations_(operations), abandoned_(abandoned) {
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
}

Communicator::~Communicator() {
  if (!abandoned_) MPI_Comm_free(&comm_);
}

MpiStarted Communicator::broadcast(void* data, size_t count, DataType type, int root) {
  return std::make_unique<Transfer>(abandoned_, [&](MPI_Request* request) {
    return MPI_Ibcast(data, static_cast<int>(count), mpi_type(type), root, comm_, request);
  });
}

MpiStarted Communicator::all_reduce(void* data, size_t count, DataType type, ReduceOp op) {
  return std::make_unique<Transfer>(abandoned_, [&](MPI_Request* request) {
    return MPI_Iallreduce(MPI_IN_PLACE, data, static_cast<int>(count), mpi_type(type),
                          operations_.of(op, type), comm_, request);
  });
}

MpiStarted Communicator::reduce_scatter(const void* in, void* out, size_t count, DataType type, ReduceOp op) {
  return std::make_unique<Transfer>(abandoned_, [&](MPI_Request* request) {
    return MPI_Ireduce_scatter_block(in, out, static_cast<int>(count), mpi_type(type),
                                     operations_.of(op, type), comm_, request);
  });
}

MpiStarted Communicator::all_gather(const void* in, void* out, size_t count, DataType type) {
  return std::make_unique<Transfer>(abandoned_, [&](MPI_Request* request) {
    const int each = static_cast<int>(count);
    return MPI_Iallgather(in, each, mpi_type(type), out, each, mpi_type(type), comm_, request);
  });
}

MpiStarted Communicator::all_to_all(const void* in, std::span<const int> in_counts,
                                    std::span<const int> in_offsets, void* out,
                                    std::span<const int> out_counts, std::span<const int> out_offsets,
                                    DataType type) {
  return std::make_unique<Transfer>(abandoned_, [&](MPI_Request* request) {
    return MPI_Ialltoallv(in, in_counts.data(), in_offsets.data(), mpi_type(type), out, out_counts.data(),
                          out_offsets.data(), mpi_type(type), comm_, request);
  });
}

MpiStarted Communicator::send(const void* data, size_t bytes, int peer, int tag) {
  return std::make_unique<Transfer>(abandoned_, [&](MPI_Request* request) {
    return MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_, request);
  });
}

MpiStarted Communicator::receive(void* data, size_t bytes, int peer, int tag) {
  return std::make_unique<Receive>(abandoned_, [&](MPI_Request* request) {
    return MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_, request);
  });
}

int Communicator::probe(int peer, int tag) {
  if (abandoned_) return -1;
  int there = 0;
  MPI_Status status;
  const int from = peer < 0 ? MPI_ANY_SOURCE : peer;
  if (MPI_Iprobe(from, tag, comm_, &there, &status) != MPI_SUCCESS || there == 0) return -1;
  return status.MPI_SOURCE;
}

}  // namespace starling
