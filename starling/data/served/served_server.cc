#include "starling/data/served/served_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "starling/base/error.h"
#include "starling/net/wire.h"

namespace starling {
namespace {

constexpr std::chrono::seconds kLook{1};  // how often a waiting thread checks whether it should end
constexpr size_t kMaxJobs = 64;           // the number of jobs whose tickets are remembered

// A request that the server cannot serve. The reader is told the reason and stays connected.
struct Refusal {
  std::string why;
};

std::string description_of(const DataServer::Content& content) {
  ServedDescription description{content.source, {}};
  description.parts.reserve(content.parts.size());
  for (const auto& store : content.parts) description.parts.push_back(store->described());
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
      described_(decode_description(description_, content_.source).parts),
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
  for (Reader& reader : readers_) reader.thread.join();  // no thread adds to the list any more
}

DataServerCounts DataServer::counts() const {
  const std::lock_guard lock(mutex_);
  DataServerCounts counts = counts_;
  counts.leases = ended_;
  for (const auto& [name, job] : jobs_) counts.leases = sum(counts.leases, job.table.counts());
  return counts;
}

const ServedStore& DataServer::part(uint32_t index) const {
  if (index >= content_.parts.size()) throw Refusal{fmt::format("{} has no part {}", content_.source, index)};
  return *content_.parts[index];
}

// Accepts connections. Runs in a thread of its own.
void DataServer::accept() {
  std::string told;
  while (!stopping_) {
    try {
      admit(listener_->accept(deadline_in(kLook)));
    } catch (const TimeoutError& error) {
      // No reader connected. Check whether to end, and log each distinct refusal once.
      const std::string why = error.what();
      if (why.find("refused, the last") != std::string::npos && why != told) log(told = why);
    } catch (const CommError& error) {
      if (stopping_) return;
      log(fmt::format("cannot accept connections: {}", error.what()));
      std::this_thread::sleep_for(kLook);  // most likely out of descriptors: other readers must leave first
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
    log(fmt::format("{}: connection refused: {} connections are already open", endpoint->name(),
                    readers_.size()));
    return;
  }
  Reader& reader = readers_.emplace_back();
  reader.number = next_reader_++;
  reader.endpoint = std::move(endpoint);
  ++counts_.connections;
  reader.thread = std::thread([this, &reader] { attend(reader); });
}

// Serves one connection in its own thread. It logs all exceptions.
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
  if (lost > 0 && !stopping_) log(fmt::format("{}; its {} tickets go to other workers", why, lost));
  reader.done = true;
}

ServedRequest DataServer::next_request(Reader& reader) {
  Endpoint& endpoint = *reader.endpoint;
  const MessageInfo info = await_message(endpoint);
  if (info.kind != MessageKind::kControl)
    throw CommError(fmt::format("{} sent {} bytes of data, which a data server does not take",
                                endpoint.name(), info.bytes));
  std::vector<std::byte> body(info.bytes);  // at most kMaxControlBytes: net/stream/frame.h
  endpoint.recv({info.tag, body, {}, MessageKind::kControl}, deadline_in(options_.patience));
  return decode_served(info.tag, body, endpoint.name());
}

// Waits for a request without a time limit: a reader may be idle as long as it likes.
MessageInfo DataServer::await_message(Endpoint& endpoint) const {
  for (;;) {
    if (stopping_) throw CommError("the data server is ending");
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
  const ServedStore& store = part(request.part);
  const ServedPart& described = described_[request.part];
  const size_t bytes = request.indices.size() * described.record_bytes();
  if (static_cast<int64_t>(request.indices.size()) > samples_a_request(described))
    throw Refusal{fmt::format("{} samples are {} bytes; one request may ask for {} samples",
                              request.indices.size(), bytes, samples_a_request(described))};
  for (const int64_t index : request.indices) {
    if (index >= described.size)
      throw Refusal{fmt::format("sample {} does not exist: the part has {}", index, described.size)};
  }
  std::vector<std::byte> records(bytes);
  try {
    store.read(request.indices, records.data());
  } catch (const DataError& error) {
    throw Refusal{error.what()};
  }
  {
    const std::lock_guard lock(mutex_);
    ++counts_.reads;
    counts_.samples += request.indices.size();
    counts_.bytes += bytes;
  }
  send(reader, ServedTag::kPixels, records, MessageKind::kData);
}

void DataServer::answer_labels(Reader& reader, uint32_t index) {
  const ImageStore* images = part(index).images();
  if (images == nullptr) throw Refusal{fmt::format("{} has no classes: it holds no images", content_.source)};
  const ImageStore& store = *images;
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
    if (!reader.joined) throw Refusal{"this connection has joined no job; send \"join\" first"};
    store_le(body.data(),
             static_cast<uint64_t>(jobs_.at(reader.job).table.lease(reader.number, clock_.now())));
  }
  send(reader, ServedTag::kTicket, body, MessageKind::kControl);
}

void DataServer::answer_settle(Reader& reader, int64_t ticket) {
  bool held = false;
  {
    const std::lock_guard lock(mutex_);
    if (!reader.joined) throw Refusal{"this connection has joined no job; send \"join\" first"};
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

// Forgets a job without readers if there are too many jobs. A job may be without readers for a while, if its
// first worker leaves before the second arrives.
void DataServer::make_room_for_a_job() {
  if (jobs_.size() < kMaxJobs) return;
  const auto idle =
      std::find_if(jobs_.begin(), jobs_.end(), [](const auto& job) { return job.second.readers == 0; });
  if (idle == jobs_.end()) throw Refusal{fmt::format("{} jobs already take tickets", jobs_.size())};
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
