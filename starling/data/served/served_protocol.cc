#include "starling/data/served/served_protocol.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "starling/base/error.h"
#include "starling/base/json_number.h"
#include "starling/net/wire.h"

namespace starling {
namespace {

constexpr int kMaxRequestedSide = 65'536;
constexpr int64_t kMaxClasses = 1 << 20;

// Appends numbers to a body.
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

// Reads numbers from a body. It refuses a body that is too short.
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
  // Reads a number that must fit into int64_t.
  int64_t index() {
    const uint64_t value = get<uint64_t>();
    if (value > uint64_t{1} << 62) refuse(fmt::format("it has the index {}, above 2^62", value));
    return static_cast<int64_t>(value);
  }
  size_t left() const { return bytes_.size(); }
  void expect_end() {
    if (!bytes_.empty()) refuse(fmt::format("its request has {} bytes too many", bytes_.size()));
  }
  [[noreturn]] void refuse(const std::string& why) const {
    throw CommError(fmt::format("{}: {}; it is not a reader of this version", peer_, why));
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

constexpr std::string_view kKinds[] = {"images", "text", "tensors"};

nlohmann::json to_json(const ServedTensor& tensor) {
  return {{"type", tensor.type}, {"shape", tensor.shape}};
}

nlohmann::json to_json(const ServedPart& part) {
  const std::string kind(kKinds[static_cast<size_t>(part.kind)]);
  if (part.kind == ServedKind::kText)
    return {{"kind", kind},
            {"samples", part.size},
            {"characters", part.characters},
            {"vocabulary", part.vocabulary}};
  if (part.kind == ServedKind::kTensors)
    return {{"kind", kind},
            {"samples", part.size},
            {"classes", part.classes},
            {"input", to_json(part.input)},
            {"target", to_json(part.target)}};
  return {{"kind", kind},
          {"channels", part.shape.channels},
          {"height", part.shape.height},
          {"width", part.shape.width},
          {"samples", part.size},
          {"classes", part.classes},
          {"class_names", part.class_names}};
}

ServedTensor tensor_of(const nlohmann::json& json) {
  ServedTensor tensor{json.at("type").get<std::string>(), {}};
  for (const nlohmann::json& side : json.at("shape")) tensor.shape.push_back(integer_of<int64_t>(side));
  return tensor;
}

// A kind that this version does not know makes the description invalid.
ServedPart part_of(const nlohmann::json& json) {
  ServedPart part;
  const auto kind = json.value("kind", std::string(kKinds[0]));  // earlier servers serve images only
  const auto* known = std::find(std::begin(kKinds), std::end(kKinds), kind);
  if (known == std::end(kKinds)) return part;
  part.kind = static_cast<ServedKind>(known - std::begin(kKinds));
  if (part.kind != ServedKind::kImages) {
    part.size = integer_of<int64_t>(json.at("samples"));
    if (part.kind == ServedKind::kText) {
      part.characters = integer_of<int64_t>(json.at("characters"));
      part.vocabulary = json.at("vocabulary").get<std::string>();
      return part;
    }
    part.classes = integer_of<int64_t>(json.at("classes"));
    part.input = tensor_of(json.at("input"));
    part.target = tensor_of(json.at("target"));
    return part;
  }
  part.shape = {integer_of<int>(json.at("channels")), integer_of<int>(json.at("height")),
                integer_of<int>(json.at("width"))};
  part.size = integer_of<int64_t>(json.at("samples"));
  part.classes = integer_of<int64_t>(json.at("classes"));
  part.class_names = json.at("class_names").get<std::vector<std::string>>();
  return part;
}

bool is_possible(const ServedPart& part) {
  if (part.size < 1 || part.size > kMaxServedSamples) return false;
  if (part.kind == ServedKind::kText)
    return part.characters >= 2 && part.characters <= kMaxServedText && !part.vocabulary.empty() &&
           part.characters <= part.size * kServedBlock && part.characters > (part.size - 1) * kServedBlock;
  if (part.kind == ServedKind::kTensors)
    return part.input.bytes() > 0 && part.target.bytes() > 0 && part.record_bytes() <= kMaxReadBytes &&
           part.classes >= 0;
  const ImageShape& s = part.shape;
  const bool sides =
      s.height >= 1 && s.width >= 1 && s.height <= kMaxRequestedSide && s.width <= kMaxRequestedSide;
  return sides && (s.channels == 1 || s.channels == 3) && s.bytes() <= kMaxReadBytes && part.classes >= 1 &&
         part.classes <= kMaxClasses;
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
    throw CommError(fmt::format("{}: its description of the data cannot be parsed: {}", peer, error.what()));
  }
  const auto& parts = description.parts;
  if (parts.empty() || parts.size() > 2 || !std::all_of(parts.begin(), parts.end(), is_possible))
    throw CommError(fmt::format("{}: its description of the data is invalid", peer));
  return description;
}

size_t ServedTensor::bytes() const {
  static constexpr std::pair<std::string_view, size_t> kBytes[] = {
      {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8},
      {"I32", 4}, {"I16", 2}, {"I8", 1},  {"U8", 1},   {"BOOL", 1}};
  const auto* found = std::find_if(std::begin(kBytes), std::end(kBytes),
                                   [&](const auto& known) { return known.first == type; });
  if (found == std::end(kBytes)) return 0;
  size_t bytes = found->second;
  for (const int64_t side : shape) {
    if (side < 1 || static_cast<uint64_t>(side) > kMaxReadBytes / bytes) return 0;
    bytes *= static_cast<size_t>(side);
  }
  return bytes;
}

size_t ServedPart::record_bytes() const {
  if (kind == ServedKind::kText) return kServedBlock * sizeof(uint32_t);
  return kind == ServedKind::kTensors ? input.bytes() + target.bytes() : shape.bytes();
}

int64_t samples_a_request(const ServedPart& part) {
  return std::clamp<int64_t>(static_cast<int64_t>(kMaxReadBytes / part.record_bytes()), 1, kMaxReadSamples);
}

}  // namespace starling
