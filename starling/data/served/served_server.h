// DataServer serves mini-batches to the ranks of jobs over the network. It serves decoded 8-bit images and
// their classes by index, blocks of a text, or rows of two tensors (served_store.h, served_tensors.h). If
// ranks do not step together, it also hands out tickets (served_leases.h). The server listens at one address
// of this host and admits only readers that prove its key. Reads are stateless, so a reader may reconnect
// after a broken connection. Torch-free.
//
//   DataServer server({"idx:/data/mnist", served_stores(open_idx("/data/mnist"))},
//                     tcp_listen("127.0.0.1:0", {key, kServedJobId}, served_parties()), {}, clock);
//   … server.address() …
//
// Threads: the server owns one thread that accepts and one thread for each connection, of which there are at
// most max_connections. A reader that sends a malformed request or does not take its answer is dropped. Other
// readers are not affected.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "starling/base/clock.h"
#include "starling/data/served/served_leases.h"
#include "starling/data/served/served_protocol.h"
#include "starling/data/served/served_store.h"
#include "starling/net/endpoint.h"

namespace starling {

// The job id of every data server in the handshake.
inline constexpr const char* kServedJobId = "starling-data";

// The options of a server.
struct DataServerOptions {
  std::chrono::milliseconds lease{300'000};    // a worker that is silent for longer loses its tickets
  std::chrono::milliseconds patience{60'000};  // a reader that does not take its answer for longer is dropped
  size_t max_connections = 256;
  // Reports arrivals and departures, from any thread. May be empty.
  std::function<void(const std::string&)> log;
};

// What a server has served so far.
struct DataServerCounts {
  uint64_t reads = 0;
  uint64_t samples = 0;
  uint64_t bytes = 0;       // bytes of records
  int64_t connections = 0;  // open at present
  LeaseCounts leases;       // over all jobs
};

// A running data server.
class DataServer {
 public:
  // What is served.
  struct Content {
    std::string source;
    ServedStores parts;
  };

  // Begins to serve before the constructor returns. Errors: DataError for data that cannot be served.
  DataServer(Content content, std::unique_ptr<Listener> listener, const DataServerOptions& options,
             const Clock& clock);
  // Ends all connections.
  ~DataServer();

  // The address at which the server listens: "host:port".
  std::string address() const { return listener_->address(); }
  // Returns the counts so far. Thread-safe.
  DataServerCounts counts() const;

 private:
  struct Reader {
    int64_t number = 0;
    std::unique_ptr<Endpoint> endpoint;
    std::thread thread;
    std::atomic<bool> done{false};
    uint64_t job = 0;
    bool joined = false;
  };
  struct Job {
    LeaseTable table;
    int64_t readers = 0;
  };

  const ServedStore& part(uint32_t index) const;
  void accept();
  void admit(std::unique_ptr<Endpoint> endpoint);
  void attend(Reader& reader);
  ServedRequest next_request(Reader& reader);
  MessageInfo await_message(Endpoint& endpoint) const;
  void answer(Reader& reader, const ServedRequest& request);
  void answer_read(Reader& reader, const ServedRequest& request);
  void answer_labels(Reader& reader, uint32_t part);
  void answer_lease(Reader& reader);
  void answer_settle(Reader& reader, int64_t ticket);
  void join(Reader& reader, uint64_t job, int64_t first);
  void make_room_for_a_job();
  int64_t leave(Reader& reader);
  void send(Reader& reader, ServedTag tag, ConstBytes body, MessageKind kind);
  void log(const std::string& line) const;

  const Content content_;
  const DataServerOptions options_;
  const Clock& clock_;
  std::string description_;
  std::vector<ServedPart> described_;
  std::unique_ptr<Listener> listener_;
  std::atomic<bool> stopping_{false};

  mutable std::mutex mutex_;  // guards all members below except accepting_
  std::list<Reader> readers_;
  std::map<uint64_t, Job> jobs_;
  int64_t next_reader_ = 0;
  LeaseCounts ended_;  // counts of jobs that are forgotten
  DataServerCounts counts_;

  std::thread accepting_;
};

}  // namespace starling
