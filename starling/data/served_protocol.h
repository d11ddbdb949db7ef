// What a data server and those who read from it say to each other. Every connection begins with the handshake of
// net/handshake.h. After it the reader asks and the server answers, one request at a time. Requests are control messages
// (authenticated, at most 64 KiB), integers little-endian:
//
//   request                                      answer
//   describe                                     description: JSON of what is served, data
//   labels   part u32                            labels: the class of every sample, u32 each, data
//   read     part u32 | count u32 | u64 × count  pixels: the images, planar, one after the other, data
//   join     job u64 | first u64                 done: this connection now takes tickets of the job, the first being `first`
//   lease                                        ticket: u64, control
//   settle   ticket u64                          done, or late: another reader has the ticket
//
// Anything may be answered by refused: the reason as text, control; the connection stays usable. Both sides compare every
// length with what it must be before they take memory for it. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "starling/data/image_store.h"
#include "starling/net/endpoint.h"

namespace starling {

enum class ServedTag : uint32_t {
  kDescribe = 0x5d01,
  kLabels,
  kRead,
  kJoin,
  kLease,
  kSettle,
  kDescription = 0x5d41,
  kLabelValues,
  kPixels,
  kTicket,
  kDone,
  kLate,
  kRefused
};

inline constexpr uint32_t kMaxReadSamples = 4096;               // of one request
inline constexpr size_t kMaxReadBytes = 64u << 20;              // of one answer
inline constexpr int64_t kMaxServedSamples = int64_t{1} << 28;  // of a part
inline constexpr size_t kMaxDescriptionBytes = 16u << 20;

struct ServedRequest {
  ServedTag tag = ServedTag::kDescribe;
  uint32_t part = 0;                  // labels, read
  std::vector<int64_t> indices = {};  // read
  uint64_t job = 0;                   // join
  int64_t ticket = 0;                 // join: the first; settle
};

std::vector<std::byte> encode_served(const ServedRequest& request);
// CommError beginning with `peer` where the bytes are no request.
ServedRequest decode_served(uint32_t tag, std::span<const std::byte> body, const std::string& peer);

// One part of what is served: 0 the training part, 1 the test part.
struct ServedPart {
  ImageShape shape;
  int64_t size = 0;
  int64_t classes = 0;
  std::vector<std::string> class_names;
};

struct ServedDescription {
  std::string source;  // what the server was told to serve: "idx:/data/mnist"
  std::vector<ServedPart> parts;
};

std::string encode_served(const ServedDescription& description);
// CommError beginning with `peer` where it is not well formed, or a number is out of range.
ServedDescription decode_description(std::string_view json, const std::string& peer);

// The most samples of this shape that one request may ask for.
int64_t samples_a_request(const ImageShape& shape);

}  // namespace starling
