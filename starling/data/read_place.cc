#include "starling/data/read_place.h"

#include <fmt/format.h>

namespace starling {
namespace {

thread_local ReadPlace* place_of_thread = nullptr;  // on the stack of a worker of a loader, or null

}  // namespace

void ReadPlace::set(std::string_view file, uint64_t offset) {
  const std::lock_guard lock(mutex_);
  file_ = file;
  offset_ = offset;
}

void ReadPlace::clear() {
  set("", 0);
}

std::string ReadPlace::text() const {
  const std::lock_guard lock(mutex_);
  return file_.empty() ? "" : fmt::format("{} at offset {}", file_, offset_);
}

ReadPlaceScope::ReadPlaceScope(ReadPlace& place) : before_(place_of_thread) {
  place_of_thread = &place;
}

ReadPlaceScope::~ReadPlaceScope() {
  place_of_thread = before_;
}

void about_to_read(std::string_view file, uint64_t offset) {
  if (place_of_thread != nullptr) place_of_thread->set(file, offset);
}

}  // namespace starling
