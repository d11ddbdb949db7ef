// MpiOutbox: the messages that this rank has sent and that are still under way.
//
// MPI may leave a message where it is until its receiver asks for it. It moves a message only while a thread
// calls MPI. A rank that sends must be able to go on and to compute meanwhile. The outbox therefore copies
// the bytes, and a thread tests the messages under way.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "starling/comm/mpi/mpi_plugin.h"

namespace starling {

// MpiOutbox sends messages. It is thread-safe.
class MpiOutbox {
 public:
  // `fail` is called with the reason if MPI could not send a message. Any thread that uses the outbox, or its
  // own thread, calls it. The communicator must outlive this object.
  MpiOutbox(MpiCommunicator& communicator, std::function<void(const std::string&)> fail);
  // Leaves the messages that are still under way to MPI.
  ~MpiOutbox();
  MpiOutbox(const MpiOutbox&) = delete;

  // Sends a copy of the bytes. Messages with one (peer, tag) keep their order. `bytes` is at most
  // kMpiMostElements.
  void send(const std::byte* data, size_t bytes, int peer, int tag);
  // Waits until all messages have been sent. Returns false if the timeout passes first.
  bool drain(std::chrono::milliseconds timeout);

 private:
  struct Message {
    std::vector<std::byte> bytes;
    MpiStarted under_way;
  };

  void run();
  void drop_gone();

  MpiCommunicator& communicator_;
  const std::function<void(const std::string&)> fail_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Message> messages_;
  bool stop_ = false;
  std::thread thread_;  // begun by the first message that is not sent at once
};

}  // namespace starling
