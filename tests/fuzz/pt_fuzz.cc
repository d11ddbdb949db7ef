// Parses an input that begins as a zip archive as a .pt file, and any other input as the pickle of a file
// that is whole, because checksums would stop the fuzzer. The parser must refuse the bytes with a FileError
// when it opens the file or compares a checksum, or return tensors that it can read and that come back from a
// file that it writes.
#include <cstring>
#include <string>

#include "starling/weights/weights_file.h"
#include "tests/fuzz/input.h"

namespace {

using namespace starling;
using namespace starling::weights;

constexpr uint64_t kRead = 1 << 20;  // bytes of a tensor that are read

File open(const std::string& bytes) {
  return {"f", bytes.size(), [&bytes](uint64_t offset, void* out, size_t size) {
            require_property(offset <= bytes.size() && size <= bytes.size() - offset);
            std::memcpy(out, bytes.data() + offset, size);
          }};
}

Sink into(std::string& bytes) {
  return [&bytes](const void* part, size_t size) { bytes.append(static_cast<const char*>(part), size); };
}

// Writes what was read, and compares what comes back.
void write_again(const std::vector<Source>& sources, const std::vector<std::vector<std::byte>>& contents) {
  std::string bytes;
  write_pt(into(bytes), sources);
  File again = open(bytes);
  require_property(again.tensors().size() == sources.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    const Tensor& tensor = again.tensors()[i];
    require_property(tensor.name == sources[i].name && tensor.dtype == sources[i].dtype);
    require_property(tensor.shape == sources[i].shape && again.read(tensor) == contents[i]);
  }
}

void read(const std::string& bytes) {
  std::vector<Source> sources;
  std::vector<std::vector<std::byte>> contents;
  try {
    File file = open(bytes);
    uint64_t total = 0;
    for (const Tensor& tensor : file.tensors()) {
      require_property(tensor.shape.size() == tensor.strides.size() && tensor.shape.size() <= kMaxDims);
      if (tensor.name == "__metadata__" || tensor.bytes() > kRead - total) continue;
      total += tensor.bytes();
      contents.push_back(file.read(tensor));
      sources.push_back({tensor.name, tensor.dtype, tensor.shape,
                         [&contents, i = sources.size()] { return contents[i].data(); }});
    }
  } catch (const FileError&) {
    return;
  }
  write_again(sources, contents);
}

// Returns a whole file whose data.pkl is `pickle`. Its storages 0 and 1 have 24 and 8 bytes.
std::string around(const std::string& pickle) {
  std::string bytes;
  const Sink sink = into(bytes);
  detail::ZipWriter zip(sink);
  const std::string data(24, '\1');
  zip.add("data.pkl", pickle.data(), pickle.size());
  zip.add("data/0", data.data(), 24);
  zip.add("data/1", data.data(), 8);
  zip.finish();
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  read(bytes.starts_with("PK") ? bytes : around(bytes));
  return 0;
}
