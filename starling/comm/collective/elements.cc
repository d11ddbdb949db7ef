#include "starling/comm/collective/elements.h"

#include "starling/comm/collective/staging.h"
#include "starling/comm/reduce/reduce_kernels.h"

namespace starling {

std::vector<Bytes> divide(void* data, size_t count, DataType type, int parts) {
  std::vector<Bytes> out;
  for (int i = 0; i < parts; ++i) {
    const Slice slice = slice_of(count, parts, i, 64 / size_of(type));
    out.emplace_back(static_cast<std::byte*>(data) + slice.begin * size_of(type),
                     slice.count() * size_of(type));
  }
  return out;
}

void reduce_parts(std::span<const void* const> sources, void* out, size_t bytes, const Elements& elements,
                  bool last) {
  void* const destinations[1] = {out};
  Reduction job;
  job.sources = sources;
  job.destinations = destinations;
  job.count = bytes / size_of(elements.type);
  job.type = elements.type;
  job.op = summed(elements.op);
  job.divisor = last ? elements.divisor : 1;
  reduce(job);
}

void add_parts(const void* first, const void* second, void* to, size_t bytes, const Elements& elements,
               bool last) {
  const void* const sources[2] = {first, second};
  reduce_parts(sources, to, bytes, elements, last);
}

}  // namespace starling
