#include "starling/data/served_protocol.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "starling/base/error.h"
#include "starling/net/wire.h"

namespace starling {
namespace {

constexpr int kMaxSide = 65'536;
constexpr int64_t kMaxClasses = 1 << 20;

// Appends to a body.
class Writer {
 public:
  template <std::unsigned_integral T>
  void put(T value) {
    bytes_.resize(bytes_.size() + sizeof(T));
    store_le(bytes_.data() + bytes_.size() - sizeof(T), value);
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Reads a body; what is too short is refused.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& peer) : bytes_(bytes), peer_(peer) {}

  template <std::unsigned_integral T>
  T get() {
    if (bytes_.size() < sizeof(T)) refuse("its request is too short");
    const T value = load_le<T>(bytes_.data());
    bytes_ = bytes_.subspan(sizeof(T));
    return value;
  }
  // A number that must fit into int64_t.
  int64_t index() {
    const uint64_t value = get<uint64_t>();
    if (value > uint64_t{1} << 62) refuse(fmt::format("it names the number {}", value));
    return static_cast<int64_t>(value);
  }
  size_t left() const { return bytes_.size(); }
  void expect_end() {
    if (!bytes_.empty()) refuse(fmt::format("its request has {} bytes too many", bytes_.size()));
  }
  [[noreturn]] void refuse(const std::string& why) const {
    throw CommError(fmt::format("{}: {}; it is no reader of this version", peer_, why));
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& peer_;
};

void read_indices(Reader& reader, ServedRequest& request) {
  const uint32_t count = reader.get<uint32_t>();
  if (count == 0 || count > kMaxReadSamples || reader.left() != count * sizeof(uint64_t)) {
    reader.refuse(fmt::format("it asks for {} samples in {} bytes; 1 to {} of 8 bytes each are read", count,
                              reader.left(), kMaxReadSamples));
  }
  request.indices.resize(count);
  for (int64_t& index : request.indices) index = reader.index();
}

nlohmann::json to_json(const ServedPart& part) {
  return {{"channels", part.shape.channels}, {"height", part.shape.height},
          {"width", part.shape.width},       {"samples", part.size},
          {"classes", part.classes},         {"class_names", part.class_names}};
}

ServedPart part_of(const nlohmann::json& json) {
  ServedPart part;
  part.shape = {json.at("channels").get<int>(), json.at("height").get<int>(), json.at("width").get<int>()};
  part.size = json.at("samples").get<int64_t>();
  part.classes = json.at("classes").get<int64_t>();
  part.class_names = json.at("class_names").get<std::vector<std::string>>();
  return part;
}

bool is_possible(const ServedPart& part) {
  const ImageShape& s = part.shape;
  const bool sides = s.height >= 1 && s.width >= 1 && s.height <= kMaxSide && s.width <= kMaxSide;
  return sides && (s.channels == 1 || s.channels == 3) && s.bytes() <= kMaxReadBytes && part.size >= 1 &&
         part.size <= kMaxServedSamples && part.classes >= 1 && part.classes <= kMaxClasses;
}

}  // namespace

std::vector<std::byte> encode_served(const ServedRequest& request) {
  Writer writer;
  if (request.tag == ServedTag::kLabels || request.tag == ServedTag::kRead) writer.put(request.part);
  if (request.tag == ServedTag::kRead) {
    writer.put(static_cast<uint32_t>(request.indices.size()));
    for (const int64_t index : request.indices) writer.put(static_cast<uint64_t>(index));
  }
  if (request.tag == ServedTag::kJoin) writer.put(request.job);
  if (request.tag == ServedTag::kJoin || request.tag == ServedTag::kSettle)
    writer.put(static_cast<uint64_t>(request.ticket));
  return writer.take();
}

ServedRequest decode_served(uint32_t tag, std::span<const std::byte> body, const std::string& peer) {
  Reader reader(body, peer);
  ServedRequest request;
  request.tag = static_cast<ServedTag>(tag);
  switch (request.tag) {
    case ServedTag::kDescribe:
    case ServedTag::kLease:
      break;
    case ServedTag::kLabels:
      request.part = reader.get<uint32_t>();
      break;
    case ServedTag::kRead:
      request.part = reader.get<uint32_t>();
      read_indices(reader, request);
      break;
    case ServedTag::kJoin:
      request.job = reader.get<uint64_t>();
      request.ticket = reader.index();
      break;
    case ServedTag::kSettle:
      request.ticket = reader.index();
      break;
    default:
      reader.refuse(fmt::format("a data server takes no request {:#x}", tag));
  }
  reader.expect_end();
  return request;
}

std::string encode_served(const ServedDescription& description) {
  nlohmann::json parts = nlohmann::json::array();
  for (const ServedPart& part : description.parts) parts.push_back(to_json(part));
  return nlohmann::json{{"source", description.source}, {"parts", parts}}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
}

ServedDescription decode_description(std::string_view text, const std::string& peer) {
  ServedDescription description;
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    description.source = json.at("source").get<std::string>();
    for (const nlohmann::json& part : json.at("parts")) description.parts.push_back(part_of(part));
  } catch (const nlohmann::json::exception& error) {
    throw CommError(fmt::format("{}: what it says of its data cannot be read: {}", peer, error.what()));
  }
  const auto& parts = description.parts;
  if (parts.empty() || parts.size() > 2 || !std::all_of(parts.begin(), parts.end(), is_possible))
    throw CommError(fmt::format("{}: what it says of its data cannot be", peer));
  return description;
}

int64_t samples_a_request(const ImageShape& shape) {
  return std::clamp<int64_t>(static_cast<int64_t>(kMaxReadBytes / shape.bytes()), 1, kMaxReadSamples);
}

}  // namespace starling
