// Inbox: messages of one peer that have arrived before a thread has asked for them. They are matched by tag,
// in order.
//
// One thread at a time, the reader, moves bytes from the peer. A thread that waits for a message becomes the
// reader if there is none. The reader reads for all waiting threads and wakes them at the end of its turn.
// Messages within a host (comm/host/local_messages.h) and between hosts (comm/network/remote_messages.h) both
// use an inbox.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace starling {

// An inbox holds at most `limit` bytes of messages that no thread has asked for, or one longer message. While
// the inbox is full, this rank takes nothing more from the peer. The peer's send() then waits, because the
// socket or the ring in shared memory is full. A message that a thread awaits goes straight into that
// thread's memory and does not count.

// InboxMessage is one complete message.
struct InboxMessage {
  uint32_t tag = 0;
  std::vector<std::byte> bytes;
};

// Returns the size in bytes of the longest message that a rank may hold: half of this machine's memory. The
// kernel grants more memory, but kills a process that uses it.
uint64_t longest_inbox_message();

// Inbox holds the messages of one peer and the lock of its reader.
struct Inbox {
  std::mutex mutex;
  std::condition_variable changed;
  bool reading = false;               // guarded by mutex; only the reader uses the transport
  std::deque<InboxMessage> complete;  // guarded by mutex; the oldest first
  uint64_t limit = 0;                 // GroupOptions::inbox_bytes
  uint64_t held = 0;                  // guarded by mutex; the bytes of `complete`

  // Removes and returns the oldest message with this tag, or nothing. The caller holds the mutex.
  std::optional<InboxMessage> take(uint32_t tag) {
    for (auto it = complete.begin(); it != complete.end(); ++it) {
      if (it->tag != tag) continue;
      InboxMessage message = std::move(*it);
      complete.erase(it);
      held -= message.bytes.size();
      return message;
    }
    return std::nullopt;
  }
  // Adds a complete message. The caller holds the mutex.
  void add(InboxMessage message) {
    held += message.bytes.size();
    complete.push_back(std::move(message));
  }
  // Returns true if a message of `bytes` may be added now. Also returns true if the message can never be
  // held, because make_inbox_message() then reports the error. Locks the mutex.
  bool has_room(uint64_t bytes) {
    const std::lock_guard lock(mutex);
    return held == 0 || bytes > longest_inbox_message() || held + bytes <= limit;
  }
};

// Returns memory for a message of `bytes` bytes that no thread has asked for. `sender` is the sender's name
// in errors, and `rank` is its rank.
// Errors: CommError if this rank does not have so much memory, or if the message exceeds
// longest_inbox_message().
InboxMessage make_inbox_message(uint32_t tag, uint64_t bytes, const std::string& sender, int rank);

// ReadingTurn makes the calling thread the reader until the end of the scope. The mutex is free meanwhile.
class ReadingTurn {
 public:
  // The caller holds the mutex through `lock`, and box.reading is false.
  ReadingTurn(Inbox& box, std::unique_lock<std::mutex>& lock) : box_(box), lock_(lock) {
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
  Inbox& box_;
  std::unique_lock<std::mutex>& lock_;
};

}  // namespace starling
