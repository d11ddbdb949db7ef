// Tensors in the memory of a data server, and the source that reads them: `--data served:HOST:PORT`.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "starling/data/served/served_client.h"
#include "starling/data/served/served_store.h"
#include "starling/data/source.h"

namespace starling {

// Returns a part for a server whose sample i is (input[i], target[i]), as tensor_source() has it. A record is
// the bytes of input[i] and then those of target[i]. The types are fp64, fp32, fp16, bf16, int64, int32,
// int16, int8, uint8 and bool, on the CPU. The part shares the tensors' memory if they are contiguous.
// Errors: DataError if the first dimensions differ or are 0, or for another type.
std::shared_ptr<const ServedStore> served_tensors(at::Tensor input, at::Tensor target);

// Returns a source of the server's tensors of a part. It reads samples on demand. `name` appears in messages
// and reports. Errors: those of ServedClient, and DataError for a type that this version does not know.
std::shared_ptr<const Source> open_served_tensors(std::shared_ptr<const ServedClient> client, uint32_t part,
                                                  std::string name);

}  // namespace starling
