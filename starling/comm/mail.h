// Mail: messages that have arrived before somebody asked for them. One box a peer; matched by tag, in order.
//
// Whoever waits for a message of a peer reads for all who wait: one thread at a time moves bytes (reading), the others
// are told when a message is complete. Used by both transports of send and recv.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

namespace starling {

struct Letter {
  uint32_t tag = 0;
  std::vector<std::byte> bytes;
};

struct MailBox {
  std::mutex mutex;
  std::condition_variable changed;
  bool reading = false;         // guarded by mutex; the reader alone touches the transport
  std::deque<Letter> complete;  // guarded by mutex

  // Takes the oldest letter with this tag. Call with the mutex held.
  std::optional<Letter> take(uint32_t tag) {
    for (auto it = complete.begin(); it != complete.end(); ++it) {
      if (it->tag != tag) continue;
      Letter letter = std::move(*it);
      complete.erase(it);
      return letter;
    }
    return std::nullopt;
  }
};

// The reader's role, given back at the end of the scope.
class ReadingTurn {
 public:
  // Call with the mutex of `lock` held and !box.reading.
  ReadingTurn(MailBox& box, std::unique_lock<std::mutex>& lock) : box_(box), lock_(lock) {
    box_.reading = true;
    lock_.unlock();
  }
  ~ReadingTurn() {
    lock_.lock();
    box_.reading = false;
    box_.changed.notify_all();
  }
  ReadingTurn(const ReadingTurn&) = delete;

 private:
  MailBox& box_;
  std::unique_lock<std::mutex>& lock_;
};

}  // namespace starling
