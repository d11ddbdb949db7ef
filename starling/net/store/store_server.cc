#include "starling/net/store/store_server.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <list>
#include <optional>
#include <thread>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/net/store/store_connection.h"
#include "starling/net/store/store_contents.h"
#include "starling/net/stream/socket.h"

namespace starling {

std::string lost_key(int rank) {
  return fmt::format("{}{}", kLostKeys, rank);
}

std::string dead_key(int rank) {
  return fmt::format("{}{}", kDeadKeys, rank);
}

class StoreServer::Loop {
 public:
  Loop(const std::vector<std::string>& addresses, const JobIdentity& identity, StoreServerOptions options)
      : options_(options),
        contents_(options.max_keys),
        pending_(identity, store_parties(), options.limits),
        wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (!wake_.valid()) throw CommError("eventfd: " + explain_errno(errno));
    for (const std::string& text : addresses) {
      listeners_.push_back(listen_at_any(parse_addresses(text)));
      addresses_.push_back(local_address(listeners_.back().get()).text());
    }
    thread_ = std::thread([this] { run(); });
  }

  ~Loop() {
    stopping_ = true;
    STARLING_CHECK(::eventfd_write(wake_.get(), 1) == 0);
    thread_.join();
    for (const std::string& address : addresses_)
      if (address[0] == '/') ::unlink(address.c_str());
  }

  const std::vector<std::string>& addresses() const { return addresses_; }
  size_t keys() const { return keys_.load(); }

 private:
  struct Client {
    explicit Client(StoreConnection c) : connection(std::move(c)) {}

    StoreConnection connection;
    std::optional<StoreRequest> waiting;  // a get whose key is absent
    Deadline deadline{};
    std::optional<int> rank;  // the announced rank
    bool ready = false;       // poll() has reported an event
    bool gone = false;
    std::string why;
  };

  void run() {
    while (!stopping_) {
      wait();
      admit();
      // A change, or the loss of a client, may satisfy clients that wait.
      for (Client& client : clients_)
        if (client.ready) serve(client);
      while (drop_gone() + wake_waiting() > 0) {
      }
      keys_ = contents_.size();
    }
  }

  void wait() {
    std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}};
    if (pending_.has_room() && clients_.size() < options_.max_clients && !paused_)
      for (const UniqueFd& listener : listeners_) polled.push_back({listener.get(), POLLIN, 0});
    pending_.append_to(polled);
    Deadline until =
        pending_.earliest_deadline(deadline_in(std::chrono::milliseconds(paused_ ? 100 : 60'000)));
    for (const Client& client : clients_) {
      const short events = static_cast<short>(client.connection.idle() ? POLLIN : POLLOUT);
      polled.push_back({client.connection.fd(), events, 0});
      if (client.waiting) until = std::min(until, client.deadline);
    }
    // If poll fails (EINTR, out of memory), the following sweep over all clients is sufficient.
    const size_t first = polled.size() - clients_.size();
    const bool known = ::poll(polled.data(), polled.size(), poll_timeout(until)) >= 0;
    size_t i = first;
    for (Client& client : clients_) client.ready = !known || polled[i++].revents != 0;
  }

  void admit() {
    paused_ = false;
    try {
      for (const UniqueFd& listener : listeners_)
        if (clients_.size() < options_.max_clients) pending_.accept_all(listener.get());
    } catch (const CommError&) {
      paused_ = true;  // there are no descriptors left: serve the present clients and try again soon
    }
    for (AuthenticatedSocket& socket : pending_.advance()) {
      try {
        clients_.push_back(Client{StoreConnection(std::move(socket.socket), socket.keys)});
      } catch (const CommError&) {
        continue;  // the client left before it asked for anything
      }
    }
  }

  void serve(Client& client) {
    try {
      if (!client.connection.flush()) return;
      if (!client.connection.fill()) leave(client, "its process ended or was killed");
      while (!client.waiting && client.connection.idle()) {
        const auto frame = client.connection.next();
        if (!frame) return;
        take(client, decode_request(frame->tag, frame->body));
      }
    } catch (const CommError& e) {
      leave(client, e.what());
    }
  }

  void leave(Client& client, const std::string& why) {
    client.gone = true;
    client.why = why;
  }

  void reply(Client& client, const StoreAnswer& answer) {
    client.connection.queue(static_cast<uint32_t>(answer.status), answer.body, answer.fd.get());
    client.connection.flush();
  }

  void take(Client& client, StoreRequest request) {
    if (request.op == StoreOp::kAnnounce || request.op == StoreOp::kGoodbye) {
      client.rank.reset();
      if (request.op == StoreOp::kAnnounce) client.rank = std::atoi(request.value.c_str());
      return reply(client, {});
    }
    UniqueFd passed = client.connection.take_passed();
    const StoreOp op = request.op;
    if (op == StoreOp::kGetFd && !client.connection.is_unix())
      return reply(client, {StoreStatus::kRefused, "store: descriptors pass over Unix sockets only", {}});
    const auto answer = contents_.answer(request, std::move(passed));
    if (answer) {
      changed_ = changed_ || op == StoreOp::kPut || op == StoreOp::kPutIfAbsent || op == StoreOp::kAdd ||
                 op == StoreOp::kPutFd;
      return reply(client, *answer);
    }
    client.deadline = deadline_in(std::chrono::milliseconds(request.timeout_ms));
    client.waiting = std::move(request);
  }

  // Answers waiting clients whose key has come or whose time is over. Returns how many were answered.
  size_t wake_waiting() {
    size_t answered = 0;
    const bool look = std::exchange(changed_, false);
    for (Client& client : clients_) {
      if (!client.waiting || client.gone) continue;
      std::optional<StoreAnswer> answer;
      try {
        if (look) answer = contents_.answer(*client.waiting, UniqueFd());
      } catch (const CommError& e) {  // no descriptor is left for a copy of the stored one
        answer = StoreAnswer{
            StoreStatus::kRefused, fmt::format("{}; raise the limit with ulimit -n", e.what()), {}};
      }
      if (!answer && !has_passed(client.deadline)) continue;
      ++answered;
      const bool gathers = client.waiting->op == StoreOp::kGather;
      const std::string absent = gathers ? std::to_string(client.waiting->found) : "";
      client.waiting.reset();
      try {
        if (answer)
          reply(client, *answer);
        else
          reply(client, {StoreStatus::kTimeout, absent, {}});
      } catch (const CommError& e) {
        leave(client, e.what());
      }
      serve(client);
    }
    return answered;
  }

  // Removes clients that left and records the ranks among them. Returns how many left.
  size_t drop_gone() {
    const size_t before = clients_.size();
    clients_.remove_if([&](const Client& client) {
      if (!client.gone) return false;
      if (client.rank) {
        if (client.connection.peer_ended()) contents_.put(dead_key(*client.rank), client.why);
        contents_.put(lost_key(*client.rank), client.why);
        contents_.put_if_absent(kFirstLostKey, std::to_string(*client.rank));
        changed_ = true;
      }
      return true;
    });
    return before - clients_.size();
  }

  StoreServerOptions options_;
  StoreContents contents_;
  PendingConnections pending_;
  std::vector<UniqueFd> listeners_;
  std::vector<std::string> addresses_;
  UniqueFd wake_;
  std::atomic<bool> stopping_{false};
  std::atomic<size_t> keys_{0};
  std::thread thread_;

  // Only the thread uses these.
  std::list<Client> clients_;
  bool changed_ = false;
  bool paused_ = false;
};

StoreServer::StoreServer(const std::vector<std::string>& addresses, const JobIdentity& identity,
                         StoreServerOptions options)
    : loop_(std::make_unique<Loop>(addresses, identity, options)) {}

StoreServer::~StoreServer() = default;

const std::vector<std::string>& StoreServer::addresses() const {
  return loop_->addresses();
}

size_t StoreServer::keys() const {
  return loop_->keys();
}

}  // namespace starling
