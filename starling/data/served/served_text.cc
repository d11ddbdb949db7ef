#include "starling/data/served/served_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "starling/base/error.h"
#include "starling/net/wire.h"

namespace starling {
namespace {

constexpr int64_t kBlocksARead = 256;  // 4 MB

std::shared_ptr<const TextStore> text_of(const ServedClient& client, uint32_t part) {
  const ServedPart& described = client.description().parts.at(part);
  const Vocabulary vocabulary(decode_utf8(described.vocabulary, client.address()));
  std::vector<int32_t> ids;
  // The memory grows with what arrives, not with what the server announces.
  ids.reserve(static_cast<size_t>(std::min(described.characters, kBlocksARead * kServedBlock)));
  std::vector<int64_t> blocks;
  std::vector<uint8_t> bytes;
  for (int64_t first = 0; first < described.size; first += kBlocksARead) {
    blocks.resize(static_cast<size_t>(std::min(kBlocksARead, described.size - first)));
    std::iota(blocks.begin(), blocks.end(), first);
    bytes.resize(blocks.size() * described.record_bytes());
    client.read(part, blocks, bytes.data());
    const auto* at = reinterpret_cast<const std::byte*>(bytes.data());
    const int64_t count =
        std::min<int64_t>(std::ssize(blocks) * kServedBlock, described.characters - std::ssize(ids));
    for (int64_t i = 0; i < count; ++i, at += sizeof(uint32_t)) {
      const auto id = load_le<uint32_t>(at);
      if (id >= static_cast<uint64_t>(vocabulary.size()))
        throw CommError(
            fmt::format("the data server at {}: character {} has the id {}, and the vocabulary has {}",
                        client.address(), ids.size(), id, vocabulary.size()));
      ids.push_back(static_cast<int32_t>(id));
    }
  }
  return make_text(vocabulary, std::move(ids));
}

}  // namespace

TextParts open_served_text(const ServedClient& client) {
  TextParts parts{text_of(client, 0), nullptr};
  if (client.description().parts.size() > 1) parts.test = text_of(client, 1);
  return parts;
}

}  // namespace starling
