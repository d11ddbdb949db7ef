// MemoryNetwork: listeners in memory, on an invented network within one process.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "starling/net/endpoint.h"

namespace starling {

// MemoryNetwork connects endpoints to listeners. It is thread-safe. The listeners and the endpoints may
// outlive it.
class MemoryNetwork {
 public:
  // Listens at an address, which is any text. Errors: CommError if the address is in use.
  std::unique_ptr<Listener> listen(const std::string& address);
  // Connects at once, before the listener accepts. Errors: CommError if nobody listens there.
  std::unique_ptr<Endpoint> connect(const std::string& address);

 private:
  class MemoryListener;

  // Backlog holds the connections that wait at one address. The network and the listener share it.
  struct Backlog {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::unique_ptr<Endpoint>> waiting;
    bool stopped = false;
    bool closed = false;
  };

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Backlog>> backlogs_;
};

}  // namespace starling
