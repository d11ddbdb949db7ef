// The protocol between a data server and its readers. Every connection begins with the handshake of
// net/security/handshake.h. Then the reader sends requests and the server answers them, one at a time.
// Requests are control messages (authenticated, at most 65 KiB) with little-endian integers:
//
//   request                                      answer
//   describe                                     description: JSON of what is served, data
//   labels   part u32 (images only)              labels: the class of every sample, u32 each, data
//   read     part u32 | count u32 | u64 × count  records: one after another, data. A record is an image,
//                                                planar; a block of a text, kServedBlock ids of u32; or the
//                                                bytes of input[i] and target[i] of two tensors
//   join     job u64 | first u64                 done: this connection takes tickets of the job, whose first
//                                                ticket is `first`
//   lease                                        ticket: u64, control
//   settle   ticket u64                          done, or late: another reader has the ticket
//
// The server may answer any request by "refused": the reason as text, control. The connection stays usable.
// Both sides check every length before they allocate memory for it. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "starling/data/formats/image_store.h"
#include "starling/net/endpoint.h"

namespace starling {

// The tags of requests (0x5d01 …) and answers (0x5d41 …).
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

inline constexpr uint32_t kMaxReadSamples = 4096;               // in one request
inline constexpr size_t kMaxReadBytes = 64u << 20;              // in one answer
inline constexpr int64_t kMaxServedSamples = int64_t{1} << 28;  // in one part
inline constexpr int64_t kMaxServedText = int64_t{1} << 33;     // characters in one part
inline constexpr size_t kMaxDescriptionBytes = 16u << 20;

// One request. Each kind uses only some of the fields.
struct ServedRequest {
  ServedTag tag = ServedTag::kDescribe;
  uint32_t part = 0;                  // labels, read
  std::vector<int64_t> indices = {};  // read
  uint64_t job = 0;                   // join
  int64_t ticket = 0;                 // join: the first ticket; settle: the ticket
};

// Encodes the body of a request.
std::vector<std::byte> encode_served(const ServedRequest& request);
// Decodes a request. Errors: CommError that begins with `peer` if the bytes are not a request.
ServedRequest decode_served(uint32_t tag, std::span<const std::byte> body, const std::string& peer);

// What the records of a part are.
enum class ServedKind { kImages, kText, kTensors };

// Characters in a block of a text.
inline constexpr int64_t kServedBlock = 4096;

// One sample of a tensor.
struct ServedTensor {
  std::string type = "";            // as in safetensors: "F32"
  std::vector<int64_t> shape = {};  // without the dimension of the samples
  // Returns the bytes of one sample, or 0 if the type is unknown or the sample has more than kMaxReadBytes.
  size_t bytes() const;
  bool operator==(const ServedTensor&) const = default;
};

// One part of what is served. Part 0 is the training part, and part 1 is the test part.
struct ServedPart {
  ImageShape shape = {};  // images
  int64_t size = 0;       // records
  int64_t classes = 0;    // images; tensors whose targets are int64: the largest target + 1
  std::vector<std::string> class_names = {};  // images
  ServedKind kind = ServedKind::kImages;
  int64_t characters = 0;                // text
  std::string vocabulary = "";           // text, in UTF-8
  ServedTensor input = {}, target = {};  // tensors
  // Returns the bytes of one record.
  size_t record_bytes() const;
};

// What a server serves.
struct ServedDescription {
  std::string source;  // the server's data source: "idx:/data/mnist"
  std::vector<ServedPart> parts;
};

// Encodes a description as JSON.
std::string encode_served(const ServedDescription& description);
// Decodes a description. Errors: CommError that begins with `peer` if the JSON is malformed or a number is
// out of range.
ServedDescription decode_description(std::string_view json, const std::string& peer);

// Returns how many records of this part one request may ask for.
int64_t samples_a_request(const ServedPart& part);

}  // namespace starling
