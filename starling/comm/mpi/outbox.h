// MpiOutbox: messages under way. MPI may leave a message where it is until its receiver asks for it, and moves it only while somebody calls
// MPI; a rank that sends must be able to go on, and to compute, meanwhile. So the bytes are copied, and a thread tests what is under way.
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

#include "starling/comm/mpi/plugin.h"

namespace starling {

// Thread-safe.
class MpiOutbox {
 public:
  // fail: told of a message that MPI could not deliver. The communicator outlives this.
  MpiOutbox(MpiCommunicator& communicator, std::function<void(const std::string&)> fail);
  // Messages that are still under way are left to MPI.
  ~MpiOutbox();
  MpiOutbox(const MpiOutbox&) = delete;

  // In order by (peer, tag). `bytes` at most kMpiMostElements.
  void send(const std::byte* data, size_t bytes, int peer, int tag);
  // Waits until all have gone; false where the time is over before.
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
  std::thread thread_;  // from the first message on that does not go at once
};

}  // namespace starling
