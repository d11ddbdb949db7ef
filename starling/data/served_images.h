// The images of a data server as an ImageStore: `--data served:HOST:PORT`. Augmentation and normalisation stay with the reader, so
// that a rank trains on the same numbers, bit for bit, as from the files themselves. Torch-free.
#pragma once

#include <memory>

#include "starling/data/image_store.h"
#include "starling/data/served_client.h"

namespace starling {

// Holds the classes of all samples in memory (4 bytes each); images are read when asked for. Errors: those of ServedClient.
ImageParts open_served(std::shared_ptr<const ServedClient> client);

}  // namespace starling
