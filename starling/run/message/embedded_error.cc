#include "starling/run/message/embedded_error.h"

#include <exception>
#include <new>

#include "starling/base/error.h"
#include "starling/run/message/plain_error.h"

namespace starling {

void rethrow_as_error() {
  try {
    throw;
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    throw plain_error(error);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::kMemory, "out of memory: use a smaller batch or fewer ranks");
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kInternal, error.what());
  } catch (...) {
    throw Error(ErrorCode::kInternal, "an exception of an unknown type");
  }
}

}  // namespace starling
