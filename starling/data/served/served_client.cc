#include "starling/data/served/served_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "starling/base/error.h"
#include "starling/data/served/served_key.h"
#include "starling/net/stream/stream_endpoint.h"
#include "starling/net/wire.h"

namespace starling {
namespace {

constexpr std::chrono::milliseconds kTryAgain{100};

// Returns a connection. If the server does not listen, the function tries again until the time is over. It
// does not try again with a wrong key.
std::unique_ptr<Endpoint> connect(const std::string& address, const JobIdentity& identity,
                                  const ServedClientOptions& options) {
  const Deadline deadline = deadline_in(options.connect);
  for (;;) {
    try {
      return tcp_connect(address, identity, served_parties(), deadline);
    } catch (const CommError& error) {
      const std::string why = error.what();
      const bool absent = why.find("refused: nobody listens") != std::string::npos;
      if (!absent || has_passed(deadline + (-kTryAgain))) {
        throw CommError(
            fmt::format("the data server cannot be used: {}{}", why,
                        absent ? "; start it by `starling data serve --data SOURCE --port P`" : ""));
      }
      std::this_thread::sleep_for(kTryAgain);
    }
  }
}

void ask(Endpoint& server, const ServedRequest& request, Deadline deadline) {
  server.send({static_cast<uint32_t>(request.tag), encode_served(request), {}, MessageKind::kControl},
              deadline);
}

// Receives the header of an answer, which must have this tag and length (or at most this length, with
// `at_most`). Returns the length. Errors: DataError with the server's reason if the server refused the
// request.
uint64_t expect_answer(Endpoint& server, ServedTag tag, uint64_t bytes, Deadline deadline,
                       bool at_most = false) {
  const MessageInfo info = server.peek(deadline);
  if (info.tag == static_cast<uint32_t>(ServedTag::kRefused) && info.kind == MessageKind::kControl) {
    std::string why(info.bytes, '\0');  // at most kMaxControlBytes
    server.recv({info.tag, std::as_writable_bytes(std::span(why)), {}, MessageKind::kControl}, deadline);
    throw DataError(fmt::format("the data server at {}: {}", server.name(), why));
  }
  const bool right = at_most ? info.bytes <= bytes : info.bytes == bytes;
  if (info.tag != static_cast<uint32_t>(tag) || !right)
    throw CommError(
        fmt::format("{} answered {} bytes with tag {:#x}, not {} with {:#x}: it is not a data server of this "
                    "version",
                    server.name(), info.bytes, info.tag, bytes, static_cast<uint32_t>(tag)));
  return info.bytes;
}

void receive(Endpoint& server, ServedTag tag, Bytes into, MessageKind kind, Deadline deadline) {
  server.recv({static_cast<uint32_t>(tag), into, {}, kind}, deadline);
}

}  // namespace

ServedClient::ServedClient(std::string address, JobIdentity identity, ServedClientOptions options)
    : address_(std::move(address)), identity_(std::move(identity)), options_(options) {
  converse([this](Endpoint& server) {
    const Deadline deadline = deadline_in(options_.answer);
    ask(server, {ServedTag::kDescribe}, deadline);
    std::string text(expect_answer(server, ServedTag::kDescription, kMaxDescriptionBytes, deadline, true),
                     '\0');
    receive(server, ServedTag::kDescription, std::as_writable_bytes(std::span(text)), MessageKind::kData,
            deadline);
    description_ = decode_description(text, server.name());
  });
}

std::unique_ptr<Endpoint> ServedClient::take(bool fresh, bool& reused) const {
  reused = false;
  {
    const std::lock_guard lock(mutex_);
    if (fresh) idle_.clear();  // the idle connections belong to the same server
    if (!idle_.empty()) {
      auto endpoint = std::move(idle_.back());
      idle_.pop_back();
      reused = true;
      return endpoint;
    }
  }
  return connect(address_, identity_, options_);
}

// Calls `talk`, which sends a request and receives the answer. If a kept connection has broken, `talk` is
// called again with a new one.
void ServedClient::converse(const std::function<void(Endpoint&)>& talk) const {
  const auto keep = [this](std::unique_ptr<Endpoint> endpoint) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(endpoint));
  };
  for (bool again = false;; again = true) {
    bool reused = false;
    auto endpoint = take(again, reused);
    try {
      talk(*endpoint);
      return keep(std::move(endpoint));
    } catch (const DataError&) {
      keep(std::move(endpoint));
      throw;
    } catch (const TimeoutError& error) {
      throw TimeoutError(fmt::format("the data server does not answer: {}", error.what()));
    } catch (const CommError& error) {
      if (again || !reused)
        throw CommError(
            fmt::format("the data server at {} was lost: {}; start it again, and this run with --resume auto",
                        address_, error.what()));
    }
  }
}

std::vector<uint32_t> ServedClient::labels(uint32_t part) const {
  const ServedPart& described = description_.parts.at(part);
  std::vector<std::byte> body(static_cast<size_t>(described.size) * sizeof(uint32_t));
  converse([&](Endpoint& server) {
    const Deadline deadline = deadline_in(options_.answer);
    ask(server, {.tag = ServedTag::kLabels, .part = part}, deadline);
    expect_answer(server, ServedTag::kLabelValues, body.size(), deadline);
    receive(server, ServedTag::kLabelValues, body, MessageKind::kData, deadline);
  });
  std::vector<uint32_t> labels(static_cast<size_t>(described.size));
  for (size_t i = 0; i < labels.size(); ++i) {
    labels[i] = load_le<uint32_t>(body.data() + i * sizeof(uint32_t));
    if (labels[i] >= static_cast<uint64_t>(described.classes))
      throw CommError(fmt::format("the data server at {}: sample {} is of class {}, and there are {}",
                                  address_, i, labels[i], described.classes));
  }
  return labels;
}

void ServedClient::read(uint32_t part, std::span<const int64_t> indices, uint8_t* out) const {
  const ServedPart& described = description_.parts.at(part);
  const size_t record = described.record_bytes();
  const auto most = static_cast<size_t>(samples_a_request(described));
  for (size_t begin = 0; begin < indices.size(); begin += most) {
    const auto some = indices.subspan(begin, std::min(most, indices.size() - begin));
    const Bytes into(reinterpret_cast<std::byte*>(out) + begin * record, some.size() * record);
    converse([&](Endpoint& server) {
      const Deadline deadline = deadline_in(options_.answer);
      ask(server, {.tag = ServedTag::kRead, .part = part, .indices = {some.begin(), some.end()}}, deadline);
      expect_answer(server, ServedTag::kPixels, into.size(), deadline);
      receive(server, ServedTag::kPixels, into, MessageKind::kData, deadline);
    });
  }
}

TicketStream::TicketStream(const std::string& address, const JobIdentity& identity, uint64_t job,
                           int64_t first, ServedClientOptions options)
    : address_(address), options_(options), endpoint_(connect(address, identity, options)) {
  const Deadline deadline = deadline_in(options_.answer);
  ask(*endpoint_, {.tag = ServedTag::kJoin, .job = job, .ticket = first}, deadline);
  expect_answer(*endpoint_, ServedTag::kDone, 0, deadline);
  receive(*endpoint_, ServedTag::kDone, {}, MessageKind::kControl, deadline);
}

int64_t TicketStream::next() {
  const std::lock_guard lock(mutex_);
  const Deadline deadline = deadline_in(options_.answer);
  std::array<std::byte, 8> body;
  ask(*endpoint_, {.tag = ServedTag::kLease}, deadline);
  expect_answer(*endpoint_, ServedTag::kTicket, body.size(), deadline);
  receive(*endpoint_, ServedTag::kTicket, body, MessageKind::kControl, deadline);
  const auto ticket = load_le<uint64_t>(body.data());
  if (ticket > uint64_t{1} << 62)
    throw CommError(fmt::format("{} gave the ticket {}", endpoint_->name(), ticket));
  return static_cast<int64_t>(ticket);
}

bool TicketStream::settle(int64_t ticket) {
  const std::lock_guard lock(mutex_);
  const Deadline deadline = deadline_in(options_.answer);
  ask(*endpoint_, {.tag = ServedTag::kSettle, .ticket = ticket}, deadline);
  const MessageInfo info = endpoint_->peek(deadline);
  const bool late = info.tag == static_cast<uint32_t>(ServedTag::kLate);
  const ServedTag tag = late ? ServedTag::kLate : ServedTag::kDone;
  expect_answer(*endpoint_, tag, 0, deadline);
  receive(*endpoint_, tag, {}, MessageKind::kControl, deadline);
  return !late;
}

}  // namespace starling
