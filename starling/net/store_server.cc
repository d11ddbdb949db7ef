#include "starling/net/store_server.h"

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
#include "starling/net/socket.h"
#include "starling/net/store_connection.h"
#include "starling/net/store_contents.h"

namespace starling {

std::string lost_key(int rank) {
  return fmt::format("lost/{}", rank);
}

class StoreServer::Loop {
 public:
  Loop(const std::vector<std::string>& addresses, const JobIdentity& identity, StoreServerOptions options)
      : options_(options),
        contents_(options.max_keys),
        pending_(identity, options.limits),
        wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    (void)Handshake(HandshakeRole::kServer, identity);  // a bad job id is refused here, not in the thread
    if (!wake_.valid()) throw CommError("eventfd: " + explain_errno(errno));
    for (const std::string& text : addresses) {
      listeners_.push_back(listen_at(parse_address(text)));
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

 private:
  struct Client {
    explicit Client(StoreConnection c) : connection(std::move(c)) {}

    StoreConnection connection;
    std::optional<StoreRequest> waiting;  // a get whose key is absent
    Deadline deadline{};
    std::optional<int> rank;  // announced
    bool ready = false;       // poll said so
    bool gone = false;
    std::string why;
  };

  void run() {
    while (!stopping_) {
      wait();
      admit();
      // A change may satisfy clients that wait, and the loss of one is a change.
      for (Client& client : clients_)
        if (client.ready) serve(client);
      while (drop_gone() + wake_waiting() > 0) {
      }
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
    // EINTR, or out of memory: the sweep that follows is all that is needed.
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
      paused_ = true;  // out of descriptors: serve those that are here, try again soon
    }
    for (AuthenticatedSocket& socket : pending_.advance()) {
      try {
        clients_.push_back(Client{StoreConnection(std::move(socket.socket), socket.keys)});
      } catch (const CommError&) {
        continue;  // it left before it asked for anything
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
    client.connection.queue(static_cast<uint32_t>(answer.status), answer.body, answer.fd);
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
    const auto answer = contents_.answer(request, std::move(passed));
    if (answer) {
      if (answer->fd >= 0 && !client.connection.is_unix())
        return reply(client, {StoreStatus::kRefused, "store: descriptors pass over Unix sockets only"});
      changed_ = changed_ || op == StoreOp::kPut || op == StoreOp::kAdd || op == StoreOp::kPutFd;
      return reply(client, *answer);
    }
    client.deadline = deadline_in(std::chrono::milliseconds(request.timeout_ms));
    client.waiting = std::move(request);
  }

  // Answers waiting clients whose key has come or whose time is over; the number of those answered.
  size_t wake_waiting() {
    size_t answered = 0;
    const bool look = std::exchange(changed_, false);
    for (Client& client : clients_) {
      if (!client.waiting || client.gone) continue;
      const auto answer = look ? contents_.answer(*client.waiting, UniqueFd()) : std::nullopt;
      if (!answer && !has_passed(client.deadline)) continue;
      ++answered;
      client.waiting.reset();
      try {
        if (answer && answer->fd >= 0 && !client.connection.is_unix())
          reply(client, {StoreStatus::kRefused, "store: descriptors pass over Unix sockets only"});
        else
          reply(client, answer ? *answer : StoreAnswer{StoreStatus::kTimeout, ""});
      } catch (const CommError& e) {
        leave(client, e.what());
      }
      serve(client);
    }
    return answered;
  }

  // Forgets clients that left, records the ranks among them; their number.
  size_t drop_gone() {
    const size_t before = clients_.size();
    clients_.remove_if([&](const Client& client) {
      if (!client.gone) return false;
      if (client.rank) {
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
  std::thread thread_;

  // Of the thread alone.
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

}  // namespace starling
