#include "plugins/mpi/operations.h"

#include <utility>

#include "starling/comm/reduce/reduce_kernels.h"

namespace starling {
namespace {

constexpr ReduceOp kMade[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};

template <size_t kType, size_t kOp>
void reduce_by_kernel(void* in, void* inout, int* count, MPI_Datatype*) {
  const void* sources[] = {in, inout};
  void* destinations[] = {inout};
  Reduction job;
  job.sources = sources;
  job.destinations = destinations;
  job.count = static_cast<size_t>(*count);
  job.type = static_cast<DataType>(kType);
  job.op = kMade[kOp];
  reduce(job);
}

}  // namespace

std::string mpi_fault(int code) {
  if (code == MPI_SUCCESS) return "";
  std::array<char, MPI_MAX_ERROR_STRING + 1> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return std::string(text.data(), static_cast<size_t>(length));
}

MPI_Datatype mpi_type(DataType type) {
  switch (type) {
    case DataType::kFp32:
      return MPI_FLOAT;
    case DataType::kFp64:
      return MPI_DOUBLE;
    case DataType::kBf16:
    case DataType::kFp16:
      return MPI_UINT16_T;
    case DataType::kInt8:
      return MPI_INT8_T;
    case DataType::kUint8:
      return MPI_UINT8_T;
    case DataType::kInt16:
      return MPI_INT16_T;
    case DataType::kInt32:
      return MPI_INT32_T;
    case DataType::kInt64:
      return MPI_INT64_T;
  }
  return MPI_BYTE;
}

std::string MpiOperations::make() {
  static_assert(static_cast<size_t>(DataType::kFp16) == kTypes - 1);
  int code = MPI_SUCCESS;
  [&]<size_t... kAt>(std::index_sequence<kAt...>) {
    ((code = code != MPI_SUCCESS ? code
                                 : MPI_Op_create(reduce_by_kernel<kAt / kOps, kAt % kOps>, 1, &made_[kAt])),
     ...);
  }(std::make_index_sequence<kTypes * kOps>());
  complete_ = code == MPI_SUCCESS;
  return mpi_fault(code);
}

void MpiOperations::free() {
  if (!std::exchange(complete_, false)) return;
  for (MPI_Op& op : made_) MPI_Op_free(&op);
}

MPI_Op MpiOperations::of(ReduceOp op, DataType type) const {
  const auto made = [&](size_t place) { return made_[static_cast<size_t>(type) * kOps + place]; };
  const bool short_float = type == DataType::kBf16 || type == DataType::kFp16;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return short_float ? made(0) : MPI_SUM;
    case ReduceOp::kMin:
      return is_floating(type) ? made(1) : MPI_MIN;
    case ReduceOp::kMax:
      return is_floating(type) ? made(2) : MPI_MAX;
    case ReduceOp::kProduct:
      return short_float ? made(3) : MPI_PROD;
    case ReduceOp::kBitAnd:
      return MPI_BAND;
    case ReduceOp::kBitOr:
      return MPI_BOR;
    case ReduceOp::kBitXor:
      return MPI_BXOR;
  }
  return MPI_OP_NULL;
}

}  // namespace starling
