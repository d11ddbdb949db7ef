#include "starling/net/ucx/ucx_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "starling/base/error.h"

namespace starling {
namespace {

size_t segments_of(BodyForm form, uint64_t bytes) {
  return form == BodyForm::kPlain ? 0 : (bytes + kSegmentBytes - 1) / kSegmentBytes;
}

void append(std::vector<std::byte>& to, ConstBytes bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

}  // namespace

UcxPieces::UcxPieces(std::array<ConstBytes, 2> pieces) {
  for (const ConstBytes piece : pieces)
    if (!piece.empty()) parts_[count_++] = {const_cast<std::byte*>(piece.data()), piece.size()};
}

size_t UcxPieces::bytes() const {
  size_t sum = 0;
  for (const iovec& part : parts()) sum += part.iov_len;
  return sum;
}

UcxPieces UcxPieces::cut(size_t at, size_t count) const {
  const auto bytes_of = [](const iovec& part) {
    return ConstBytes(static_cast<const std::byte*>(part.iov_base), part.iov_len);
  };
  return UcxPieces(cut_message(bytes_of(parts_[0]), bytes_of(parts_[1]), at, count));
}

UcxOutgoing::UcxOutgoing(const ConnectionKeys& keys)
    : security_(keys.security), sealing_(keys.sending, Gcm::Use::kSeal) {
  first_.reserve(kUcxFirstRoom);
}

void UcxOutgoing::prepare(const Outgoing& message) {
  const BodyForm form = body_form(security_, message.kind);
  const size_t all = message.bytes();
  const FrameHeader header = seal_frame_header(sealing_, {message.tag, all, message.kind});
  const bool encrypts = form == BodyForm::kEncrypted;
  if (encrypts && encrypted_.size() < all) encrypted_.resize(all);
  seals_.resize(segments_of(form, all));
  for (size_t i = 0; i < seals_.size(); ++i) {
    const size_t at = i * kSegmentBytes;
    const auto pieces = cut_message(message.head, message.body, at, std::min(kSegmentBytes, all - at));
    seals_[i] = seal_segment(sealing_, form, pieces, encrypts ? encrypted_.data() + at : nullptr);
  }
  const size_t head = message.head.size() <= kUcxFirstBytes ? message.head.size() : 0;
  const size_t first = all <= kUcxFirstBytes ? all : head;
  const ConstBytes encrypted = std::span(encrypted_).first(encrypts ? all : 0);
  const auto cut = [&](size_t at, size_t count) {
    return encrypts ? cut_message(encrypted, ConstBytes(), at, count)
                    : cut_message(message.head, message.body, at, count);
  };
  first_.clear();
  append(first_, header);
  for (const ConstBytes piece : cut(0, first)) append(first_, piece);
  rest_ = UcxPieces(cut(first, all - first));
  if (first < all || seals_.empty()) return;
  append(first_, seals_[0]);
  seals_.clear();
}

UcxPieces UcxOutgoing::seals() const {
  return UcxPieces({std::as_bytes(std::span(seals_)), {}});
}

UcxIncoming::UcxIncoming(const ConnectionKeys& keys)
    : security_(keys.security), opening_(keys.receiving, Gcm::Use::kOpen) {}

UcxPieces UcxIncoming::room() {
  return UcxPieces({std::span(first_), {}});
}

MessageInfo UcxIncoming::open_first(size_t bytes, const std::string& from) {
  if (bytes < kFrameHeaderBytes) throw CommError(from + ": a message without a header");
  FrameHeader header;
  std::copy_n(first_.begin(), kFrameHeaderBytes, header.begin());
  const MessageInfo info = open_frame_header(opening_, header, from);
  form_ = body_form(security_, info.kind);
  const bool whole = info.bytes <= kUcxFirstBytes;
  const size_t seal = whole && info.bytes > 0 && form_ != BodyForm::kPlain ? kSealBytes : 0;
  in_first_ = bytes - kFrameHeaderBytes - std::min(seal, bytes - kFrameHeaderBytes);
  if (whole ? bytes != kFrameHeaderBytes + info.bytes + seal : in_first_ > kUcxFirstBytes)
    throw CommError(fmt::format("{}: a first part of {} bytes does not fit a message of {} bytes", from,
                                bytes, info.bytes));
  return info;
}

void UcxIncoming::begin(const Incoming& message) {
  message_ = message;
  const size_t all = message.bytes();
  const auto [head, body] = cut_message(message.head, message.body, in_first_, all - in_first_);
  rest_ = UcxPieces({head, body});
  seals_.resize(segments_of(form_, all));
}

UcxPieces UcxIncoming::seals() {
  return in_first_ == message_.bytes() ? UcxPieces() : UcxPieces({std::as_bytes(std::span(seals_)), {}});
}

void UcxIncoming::finish(const std::string& from) {
  const std::byte* first = first_.data() + kFrameHeaderBytes;
  for (const Bytes piece : cut_message(message_.head, message_.body, 0, in_first_)) {
    if (piece.empty()) continue;
    std::memcpy(piece.data(), first, piece.size());
    first += piece.size();
  }
  const size_t all = message_.bytes();
  if (in_first_ == all && !seals_.empty()) std::memcpy(seals_[0].data(), first, kSealBytes);
  for (size_t i = 0; i < seals_.size(); ++i) {
    const size_t at = i * kSegmentBytes;
    const auto pieces = cut_message(message_.head, message_.body, at, std::min(kSegmentBytes, all - at));
    open_segment(opening_, form_, pieces, seals_[i], from);
  }
}

}  // namespace starling
