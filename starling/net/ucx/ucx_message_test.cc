#include "starling/net/ucx/ucx_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "starling/base/error.h"
#include "starling/testing/error_of.h"

namespace starling {
namespace {

using testing::HasSubstr;

struct Keys {
  ConnectionKeys sender, receiver;
  explicit Keys(DataSecurity security) {
    fill_random(sender.sending);
    fill_random(sender.receiving);
    receiver.sending = sender.receiving;
    receiver.receiving = sender.sending;
    sender.security = receiver.security = security;
  }
};

std::vector<std::byte> some_bytes(size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

// Copies `from` to `to` as UCX does, however each is cut.
void copy_pieces(const UcxPieces& from, const UcxPieces& to) {
  std::vector<std::byte> bytes;
  for (const iovec& part : from.parts()) {
    const auto* at = static_cast<const std::byte*>(part.iov_base);
    bytes.insert(bytes.end(), at, at + part.iov_len);
  }
  size_t at = 0;
  for (const iovec& part : to.parts()) {
    const size_t count = std::min(part.iov_len, bytes.size() - at);
    if (count > 0) std::memcpy(part.iov_base, bytes.data() + at, count);
    at += count;
  }
}

// Carries a message over the wire and puts it back together. `damage` may change the received bytes before
// they are opened.
template <typename Damage>
std::vector<std::byte> carry(UcxOutgoing& out, UcxIncoming& in, const std::vector<std::byte>& message,
                             size_t out_head, size_t in_head, MessageKind kind, const Damage& damage) {
  const ConstBytes all(message);
  out.prepare({.tag = 5, .head = all.first(out_head), .body = all.subspan(out_head), .kind = kind});
  copy_pieces(out.first(), in.room());
  const MessageInfo info = in.open_first(out.first().bytes(), "rank 1");
  EXPECT_EQ(info.bytes, message.size());
  EXPECT_EQ(info.tag, 5u);
  EXPECT_EQ(info.kind, kind);
  std::vector<std::byte> got(message.size());
  const Bytes room(got);
  in.begin({.tag = 5, .head = room.first(in_head), .body = room.subspan(in_head), .kind = kind});
  EXPECT_EQ(in.rest().bytes(), out.rest().bytes());
  EXPECT_EQ(in.seals().bytes(), out.seals().bytes());
  copy_pieces(out.rest(), in.rest());
  copy_pieces(out.seals(), in.seals());
  damage(got);
  in.finish("rank 1");
  return got;
}

void undamaged(std::vector<std::byte>& /*got*/) {}

TEST(UcxMessage, ArrivesHoweverItIsCutAndSecured) {
  for (const DataSecurity security : {DataSecurity::kNone, DataSecurity::kAuth, DataSecurity::kEncrypt}) {
    const Keys keys(security);
    UcxOutgoing out(keys.sender);
    UcxIncoming in(keys.receiver);
    for (const size_t bytes : {0u, 1u, 24u, 8192u, 8193u, 65'536u, 200'000u}) {
      const auto message = some_bytes(bytes);
      for (const size_t head : {size_t{0}, std::min<size_t>(24, bytes), bytes}) {
        for (const size_t other : {size_t{0}, std::min<size_t>(24, bytes), bytes / 2})
          EXPECT_EQ(carry(out, in, message, head, other, MessageKind::kData, undamaged), message)
              << bytes << " " << head << " " << other;
      }
      if (bytes <= kMaxControlBytes) {
        EXPECT_EQ(carry(out, in, message, 0, 0, MessageKind::kControl, undamaged), message);
      }
    }
  }
}

TEST(UcxMessage, OfOneBodyGoesFromAndToItsOwnMemory) {
  const Keys keys(DataSecurity::kNone);
  UcxOutgoing out(keys.sender);
  const auto message = some_bytes(100'000);
  out.prepare({.tag = 1, .head = std::span(message).first(24), .body = std::span(message).subspan(24)});
  ASSERT_EQ(out.rest().parts().size(), 1u);
  EXPECT_EQ(out.rest().parts()[0].iov_base, message.data() + 24);
}

TEST(UcxMessage, ThatWasChangedIsRefused) {
  for (const DataSecurity security : {DataSecurity::kAuth, DataSecurity::kEncrypt}) {
    const Keys keys(security);
    UcxOutgoing out(keys.sender);
    UcxIncoming in(keys.receiver);
    const auto change = [](std::vector<std::byte>& got) { got[70'000] ^= std::byte{1}; };
    const auto refused = [&] { carry(out, in, some_bytes(100'000), 24, 24, MessageKind::kData, change); };
    EXPECT_THAT(error_of<CommError>(refused), HasSubstr("rank 1: a message is not authentic"));
  }
}

TEST(UcxMessage, ThatIsRepeatedCutOrLongerIsRefused) {
  const Keys keys(DataSecurity::kNone);
  UcxOutgoing out(keys.sender);
  UcxIncoming in(keys.receiver);
  const auto message = some_bytes(100);
  out.prepare({.tag = 1, .head = {}, .body = message});
  const auto take = [&](size_t bytes) {
    copy_pieces(out.first(), in.room());
    in.open_first(bytes, "rank 1");
  };
  EXPECT_NO_THROW(take(out.first().bytes()));
  EXPECT_THROW(take(out.first().bytes()), CommError);  // a repeated message
  EXPECT_THROW(take(kFrameHeaderBytes - 1), CommError);
  for (const size_t wrong : {size_t{kFrameHeaderBytes}, kFrameHeaderBytes + 99, kFrameHeaderBytes + 101}) {
    UcxOutgoing fresh(keys.sender);
    UcxIncoming reader(keys.receiver);
    fresh.prepare({.tag = 1, .head = {}, .body = message});
    copy_pieces(fresh.first(), reader.room());
    EXPECT_THROW(reader.open_first(wrong, "rank 1"), CommError) << wrong;
  }
}

}  // namespace
}  // namespace starling
