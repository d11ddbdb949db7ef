// ReadPlace is the file and the offset that a thread reads, for a message about a read that does not end.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace starling {

// The place that one thread reads. Thread-safe: another thread may ask for it at any time.
class ReadPlace {
 public:
  // Takes over the place of a read that begins.
  void set(std::string_view file, uint64_t offset);
  // Forgets the place.
  void clear();
  // Returns "FILE at offset N". Returns an empty text if no read has named its place.
  std::string text() const;

 private:
  mutable std::mutex mutex_;  // protects both fields
  std::string file_;
  uint64_t offset_ = 0;  // in bytes; of a packed file: in its unpacked bytes
};

// Connects a ReadPlace with the reads of the calling thread until this object is destroyed.
class ReadPlaceScope {
 public:
  // `place` must outlive this object.
  explicit ReadPlaceScope(ReadPlace& place);
  ~ReadPlaceScope();
  ReadPlaceScope(const ReadPlaceScope&) = delete;
  ReadPlaceScope& operator=(const ReadPlaceScope&) = delete;

 private:
  ReadPlace* before_;
};

// Says that the calling thread is about to read `file` from `offset` on. Readers of files call it before each
// system call that may take long. It does nothing if the thread has no ReadPlace.
void about_to_read(std::string_view file, uint64_t offset);

}  // namespace starling
