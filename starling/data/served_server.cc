#include "starling/data/served_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "starling/base/error.h"
#include "starling/net/wire.h"

namespace starling {
namespace {

constexpr std::chrono::seconds kLook{1};  // how often a waiting thread looks whether it should end
constexpr size_t kMaxJobs = 64;           // whose tickets are remembered

// What a reader asked for that cannot be: it is told, and stays.
struct Refusal {
  std::string why;
};

ServedPart described(const ImageStore& store) {
  return {store.shape(), store.size(), store.classes(), store.class_names()};
}

std::string description_of(const DataServer::Content& content) {
  ServedDescription description{content.source, {described(*content.parts.train)}};
  if (content.parts.test) description.parts.push_back(described(*content.parts.test));
  std::string text = encode_served(description);
  try {
    decode_description(text, content.source);
  } catch (const CommError&) {
    throw DataError(fmt::format("{}: too large to be served: at most {} samples of {} bytes each",
                                content.source, kMaxServedSamples, kMaxReadBytes));
  }
  if (text.size() > kMaxDescriptionBytes)
    throw DataError(fmt::format("{}: the names of its classes take {} bytes", content.source, text.size()));
  return text;
}

LeaseCounts sum(LeaseCounts a, const LeaseCounts& b) {
  a.given += b.given, a.settled += b.settled, a.given_again += b.given_again, a.late += b.late;
  return a;
}

}  // namespace

DataServer::DataServer(Content content, std::unique_ptr<Listener> listener, const DataServerOptions& options,
                       const Clock& clock)
    : content_(std::move(content)),
      options_(options),
      clock_(clock),
      description_(description_of(content_)),
      listener_(std::move(listener)),
      accepting_([this] { accept(); }) {}

DataServer::~DataServer() {
  stopping_ = true;
  listener_->shutdown();
  accepting_.join();
  {
    const std::lock_guard lock(mutex_);
    for (Reader& reader : readers_) reader.endpoint->shutdown();
  }
  for (Reader& reader : readers_) reader.thread.join();  // nobody adds to the list any more
}

DataServerCounts DataServer::counts() const {
  const std::lock_guard lock(mutex_);
  DataServerCounts counts = counts_;
  counts.leases = ended_;
  for (const auto& [name, job] : jobs_) counts.leases = sum(counts.leases, job.table.counts());
  return counts;
}

const ImageStore& DataServer::part(uint32_t index) const {
  if (index == 0) return *content_.parts.train;
  if (index != 1 || !content_.parts.test)
    throw Refusal{fmt::format("{} has no part {}", content_.source, index)};
  return *content_.parts.test;
}

// The thread that accepts.
void DataServer::accept() {
  std::string told;
  while (!stopping_) {
    try {
      admit(listener_->accept(deadline_in(kLook)));
    } catch (const TimeoutError& error) {
      // Nobody came: look whether to end, and tell once of each who was refused.
      const std::string why = error.what();
      if (why.find("refused, the last") != std::string::npos && why != told) log(told = why);
    } catch (const CommError& error) {
      if (stopping_) return;
      log(fmt::format("cannot let anybody in: {}", error.what()));
      std::this_thread::sleep_for(kLook);  // out of descriptors, most likely: others must leave first
    }
  }
}

void DataServer::admit(std::unique_ptr<Endpoint> endpoint) {
  const std::lock_guard lock(mutex_);
  readers_.remove_if([](Reader& reader) {
    if (!reader.done) return false;
    reader.thread.join();
    return true;
  });
  if (readers_.size() >= options_.max_connections) {
    log(fmt::format("{}: not let in: {} connections are open already", endpoint->name(), readers_.size()));
    return;
  }
  Reader& reader = readers_.emplace_back();
  reader.number = next_reader_++;
  reader.endpoint = std::move(endpoint);
  ++counts_.connections;
  reader.thread = std::thread([this, &reader] { attend(reader); });
}

// The thread of a connection; its edge: what is thrown is logged.
void DataServer::attend(Reader& reader) {
  std::string why;
  try {
    for (;;) {
      const ServedRequest request = next_request(reader);
      try {
        answer(reader, request);
      } catch (const Refusal& refusal) {
        send(reader, ServedTag::kRefused, std::as_bytes(std::span(refusal.why)), MessageKind::kControl);
      }
    }
  } catch (const std::exception& error) {
    why = error.what();
  }
  reader.endpoint->shutdown();
  const int64_t lost = leave(reader);
  if (lost > 0 && !stopping_) log(fmt::format("{}; its {} tickets go to others", why, lost));
  reader.done = true;
}

ServedRequest DataServer::next_request(Reader& reader) {
  Endpoint& endpoint = *reader.endpoint;
  const MessageInfo info = await_message(endpoint);
  if (info.kind != MessageKind::kControl)
    throw CommError(fmt::format("{} sent {} bytes of data, which a data server does not take",
                                endpoint.name(), info.bytes));
  std::vector<std::byte> body(info.bytes);  // at most kMaxControlBytes: net/frame.h
  endpoint.recv({info.tag, body, {}, MessageKind::kControl}, deadline_in(options_.patience));
  return decode_served(info.tag, body, endpoint.name());
}

// A reader may ask for nothing as long as it likes.
MessageInfo DataServer::await_message(Endpoint& endpoint) const {
  for (;;) {
    if (stopping_) throw CommError("the server ends");
    try {
      return endpoint.peek(deadline_in(kLook));
    } catch (const TimeoutError&) {
      endpoint.check_alive();
    }
  }
}

void DataServer::answer(Reader& reader, const ServedRequest& request) {
  switch (request.tag) {
    case ServedTag::kDescribe:
      return send(reader, ServedTag::kDescription, std::as_bytes(std::span(description_)),
                  MessageKind::kData);
    case ServedTag::kLabels:
      return answer_labels(reader, request.part);
    case ServedTag::kRead:
      return answer_read(reader, request);
    case ServedTag::kJoin:
      join(reader, request.job, request.ticket);
      return send(reader, ServedTag::kDone, {}, MessageKind::kControl);
    case ServedTag::kLease:
      return answer_lease(reader);
    default:
      return answer_settle(reader, request.ticket);
  }
}

void DataServer::answer_read(Reader& reader, const ServedRequest& request) {
  const ImageStore& store = part(request.part);
  const size_t bytes = request.indices.size() * store.shape().bytes();
  if (static_cast<int64_t>(request.indices.size()) > samples_a_request(store.shape()))
    throw Refusal{fmt::format("{} samples are {} bytes; one request may ask for {} samples",
                              request.indices.size(), bytes, samples_a_request(store.shape()))};
  for (const int64_t index : request.indices) {
    if (index >= store.size()) throw Refusal{fmt::format("sample {} of {}", index, store.size())};
  }
  std::vector<uint8_t> pixels(bytes);
  try {
    store.decode(request.indices, pixels.data());
  } catch (const DataError& error) {
    throw Refusal{error.what()};
  }
  {
    const std::lock_guard lock(mutex_);
    ++counts_.reads;
    counts_.samples += request.indices.size();
    counts_.bytes += bytes;
  }
  send(reader, ServedTag::kPixels, std::as_bytes(std::span(pixels)), MessageKind::kData);
}

void DataServer::answer_labels(Reader& reader, uint32_t index) {
  const ImageStore& store = part(index);
  std::vector<std::byte> labels(static_cast<size_t>(store.size()) * sizeof(uint32_t));
  for (int64_t i = 0; i < store.size(); ++i)
    store_le(labels.data() + static_cast<size_t>(i) * sizeof(uint32_t),
             static_cast<uint32_t>(store.label(i)));
  send(reader, ServedTag::kLabelValues, labels, MessageKind::kData);
}

void DataServer::answer_lease(Reader& reader) {
  std::array<std::byte, 8> body;
  {
    const std::lock_guard lock(mutex_);
    if (!reader.joined) throw Refusal{"a ticket of which job? join comes first"};
    store_le(body.data(),
             static_cast<uint64_t>(jobs_.at(reader.job).table.lease(reader.number, clock_.now())));
  }
  send(reader, ServedTag::kTicket, body, MessageKind::kControl);
}

void DataServer::answer_settle(Reader& reader, int64_t ticket) {
  bool held = false;
  {
    const std::lock_guard lock(mutex_);
    if (!reader.joined) throw Refusal{"a ticket of which job? join comes first"};
    held = jobs_.at(reader.job).table.settle(reader.number, ticket, clock_.now());
  }
  send(reader, held ? ServedTag::kDone : ServedTag::kLate, {}, MessageKind::kControl);
}

void DataServer::join(Reader& reader, uint64_t name, int64_t first) {
  const std::lock_guard lock(mutex_);
  if (reader.joined) throw Refusal{"this connection takes part in a job already"};
  auto found = jobs_.find(name);
  if (found == jobs_.end()) {
    make_room_for_a_job();
    found = jobs_.emplace(name, Job{LeaseTable(first, options_.lease)}).first;
  }
  if (found->second.table.first() != first)
    throw Refusal{fmt::format("the other workers of the job began with ticket {}, not {}",
                              found->second.table.first(), first)};
  ++found->second.readers;
  reader.job = name;
  reader.joined = true;
}

// Forgets a job that nobody takes part in, where there are too many. A job may be without readers for a while: the first
// worker has gone before the second came.
void DataServer::make_room_for_a_job() {
  if (jobs_.size() < kMaxJobs) return;
  const auto idle =
      std::find_if(jobs_.begin(), jobs_.end(), [](const auto& job) { return job.second.readers == 0; });
  if (idle == jobs_.end()) throw Refusal{fmt::format("{} jobs take tickets already", jobs_.size())};
  ended_ = sum(ended_, idle->second.table.counts());
  jobs_.erase(idle);
}

int64_t DataServer::leave(Reader& reader) {
  const std::lock_guard lock(mutex_);
  --counts_.connections;
  if (!reader.joined) return 0;
  Job& job = jobs_.at(reader.job);
  --job.readers;
  return job.table.release(reader.number);
}

void DataServer::send(Reader& reader, ServedTag tag, ConstBytes body, MessageKind kind) {
  reader.endpoint->send({static_cast<uint32_t>(tag), body, {}, kind}, deadline_in(options_.patience));
}

void DataServer::log(const std::string& line) const {
  if (options_.log) options_.log(line);
}

}  // namespace starling
