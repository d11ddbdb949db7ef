#include "starling/launch/version.h"

namespace starling {

std::string program_version() {
  return STARLING_VERSION;
}

}  // namespace starling
