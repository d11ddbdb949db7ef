// The text of a data server as a TextStore: `--data served:HOST:PORT`. Torch-free.
#pragma once

#include <memory>

#include "starling/data/formats/text_store.h"
#include "starling/data/served/served_client.h"

namespace starling {

// Reads the server's whole text once and holds it in memory, as a text from a file is held. Errors: those of
// ServedClient; CommError for an id that the vocabulary does not have.
TextParts open_served_text(const ServedClient& client);

}  // namespace starling
