// DataServer: the "database" that serves mini-batches to the ranks of jobs over the network: decoded 8-bit images and their
// classes by index, and tickets where ranks do not march in step (served_leases.h). It listens at one address of this host and
// lets in only who proves its key. Reads are without memory: a reader may come again after a broken connection. Torch-free.
//
//   DataServer server({"idx:/data/mnist", open_idx("/data/mnist")}, tcp_listen("127.0.0.1:0", {key, kServedJobId}), {}, clock);
//   … server.address() …
//
// Threads: one accepts, and each connection has one, at most max_connections; all are its own. A reader that says what it must
// not, or does not take its answer, is dropped, and the others go on.
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

#include "starling/base/clock.h"
#include "starling/data/served_leases.h"
#include "starling/data/served_protocol.h"
#include "starling/net/endpoint.h"

namespace starling {

inline constexpr const char* kServedJobId = "starling-data";

struct DataServerOptions {
  std::chrono::milliseconds lease{300'000};    // a worker that is silent for longer loses its tickets
  std::chrono::milliseconds patience{60'000};  // a reader that does not take its answer for longer is dropped
  size_t max_connections = 256;
  std::function<void(const std::string&)> log;  // who came and went, from any thread; may be empty
};

struct DataServerCounts {
  uint64_t reads = 0;
  uint64_t samples = 0;
  uint64_t bytes = 0;       // of images
  int64_t connections = 0;  // now
  LeaseCounts leases;       // over all jobs
};

class DataServer {
 public:
  struct Content {
    std::string source;
    ImageParts parts;
  };

  // Serves when the constructor returns. Errors: DataError for data that cannot be served.
  DataServer(Content content, std::unique_ptr<Listener> listener, const DataServerOptions& options,
             const Clock& clock);
  // Ends all connections.
  ~DataServer();

  std::string address() const { return listener_->address(); }
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

  const ImageStore& part(uint32_t index) const;
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
  std::unique_ptr<Listener> listener_;
  std::atomic<bool> stopping_{false};

  mutable std::mutex mutex_;  // guards all below
  std::list<Reader> readers_;
  std::map<uint64_t, Job> jobs_;
  int64_t next_reader_ = 0;
  LeaseCounts ended_;  // of jobs that are forgotten
  DataServerCounts counts_;

  std::thread accepting_;
};

}  // namespace starling
