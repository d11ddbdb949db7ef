// Listening in memory: a made-up network within one process, passed to those that use it. Thread-safe.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "starling/net/endpoint.h"

namespace starling {

// The listeners and the endpoints may outlive it.
class MemoryNetwork {
 public:
  // CommError if the address is in use. An address is any text.
  std::unique_ptr<Listener> listen(const std::string& address);
  // Connects at once, before the listener accepts; CommError if nobody listens there.
  std::unique_ptr<Endpoint> connect(const std::string& address);

 private:
  class MemoryListener;

  // What waits at one address; shared with its listener.
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
