// The images of a data server as an ImageStore: `--data served:HOST:PORT`. The reader augments and normalizes
// them itself. A rank therefore trains on the same numbers, bit for bit, as from the files. Torch-free.
#pragma once

#include <memory>

#include "starling/data/formats/image_store.h"
#include "starling/data/served/served_client.h"

namespace starling {

// Opens the server's images. The stores hold the classes of all samples in memory (4 bytes each) and read
// images on demand. Errors: those of ServedClient.
ImageParts open_served(std::shared_ptr<const ServedClient> client);

}  // namespace starling
