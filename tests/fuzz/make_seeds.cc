// make_seeds FOLDER: writes what the fuzzers begin with, FOLDER/<target>/<name>: well-formed inputs, made by the code that they test.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "starling/codec/make_codec.h"
#include "starling/data/served_protocol.h"
#include "starling/net/handshake.h"
#include "starling/net/store_protocol.h"
#include "starling/testing/test_identity.h"
#include "tests/fuzz/codec_words.h"

namespace starling {
namespace {

class Corpus {
 public:
  Corpus(const std::filesystem::path& root, const std::string& target) : folder_(root / target) {
    std::filesystem::create_directories(folder_);
  }
  void add(const std::string& bytes) {
    std::ofstream file(folder_ / fmt::format("seed-{}", count_++), std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

 private:
  std::filesystem::path folder_;
  int count_ = 0;
};

std::string bytes_of(std::initializer_list<int> values) {
  std::string text;
  for (const int v : values) text += static_cast<char>(v);
  return text;
}

template <typename Byte>
std::string text_of(const std::vector<Byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// frame_fuzz.cc: security, chunk, then its operations.
void frame_seeds(Corpus corpus) {
  for (const int security : {0, 1, 2}) {
    const std::string frames =
        bytes_of({0, 1}) + "12345678" + bytes_of({0, 0}) + bytes_of({0, 2}) + "abcdefghijklmnop";
    corpus.add(bytes_of({security, 9}) + frames);
    corpus.add(bytes_of({security, 200}) + frames + bytes_of({3}));           // repeated
    corpus.add(bytes_of({security, 50}) + frames + bytes_of({1, 40, 0, 1}));  // a bit flipped
    corpus.add(bytes_of({security, 50}) + frames + bytes_of({2, 5, 4, 4}) +
               "SCTL");  // cut, and bytes of its own
  }
}

// handshake_fuzz.cc: what, chunk, then bytes or changes.
void handshake_seeds(Corpus corpus) {
  const JobIdentity identity = test_identity("fuzz");
  const std::string greeting = Handshake(HandshakeRole::kClient, identity).output();
  std::string answer = greeting;
  answer[10] = 'S';
  corpus.add(bytes_of({1, 40}) + greeting + std::string(sizeof(Digest), 'p'));
  corpus.add(bytes_of({0, 255}) + answer + std::string(sizeof(Digest), 'p'));
  corpus.add(bytes_of({2, 7, 0, 0}));
  corpus.add(bytes_of({2, 7, 2, 2, 0, 0, 0, 0, 0, 0}));
  corpus.add(bytes_of({2, 90, 0, 0, 1, 12, 2, 0}));
  corpus.add(bytes_of({2, 90, 0, 0, 0, 0, 0, 0, 1, 0, 4, 0}));
}

// store_fuzz.cc: tag, length, body, again and again.
void store_seeds(Corpus corpus) {
  const auto entry = [](const StoreRequest& request) {
    const std::string body = encode_request_body(request);
    return bytes_of({static_cast<int>(request.op), static_cast<int>(body.size() & 0xff),
                     static_cast<int>(body.size() >> 8)}) +
           body;
  };
  std::string all;
  for (const StoreRequest& request :
       {StoreRequest{StoreOp::kPut, 0, "key", "value"}, StoreRequest{StoreOp::kGet, 100, "key", ""},
        StoreRequest{StoreOp::kAdd, 0, "n", "9223372036854775807"}, StoreRequest{StoreOp::kAdd, 0, "n", "-1"},
        StoreRequest{StoreOp::kTryGet, 0, "none", ""}, StoreRequest{StoreOp::kPutFd, 0, "fd", ""},
        StoreRequest{StoreOp::kGetFd, 5, "fd", ""}, StoreRequest{StoreOp::kAnnounce, 0, "rank", "3"}}) {
    corpus.add(entry(request));
    all += entry(request);
  }
  corpus.add(all);
}

// codec_fuzz.cc: which codec, the shapes less one, the message.
void codec_seeds(Corpus corpus) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (size_t w = 0; w < std::size(kCodecWords); ++w) {
    const std::vector<TensorShape> shapes = {{8, 16, 0}, {1, 20, 0}};
    std::vector<float> values(shapes[0].size() + shapes[1].size());
    for (float& v : values) v = normal(random);
    const auto codec = make_codec(kCodecWords[w], shapes);
    std::vector<std::byte> message(codec->encoded_bytes(values.size()));
    message.resize(codec->encode(values, message));
    corpus.add(bytes_of({static_cast<int>(w), 7, 15, 19}) + text_of(message));
  }
}

// served_fuzz.cc: 0, tag less kDescribe, body; or 1, JSON.
void served_seeds(Corpus corpus) {
  for (const ServedRequest& request :
       {ServedRequest{.tag = ServedTag::kDescribe}, ServedRequest{.tag = ServedTag::kLabels, .part = 1},
        ServedRequest{.tag = ServedTag::kRead, .indices = {0, 5, 7}},
        ServedRequest{.tag = ServedTag::kJoin, .job = 77, .ticket = 3},
        ServedRequest{.tag = ServedTag::kLease}, ServedRequest{.tag = ServedTag::kSettle, .ticket = 12}}) {
    const int tag = static_cast<int>(request.tag) - static_cast<int>(ServedTag::kDescribe);
    corpus.add(bytes_of({0, tag}) + text_of(encode_served(request)));
  }
  const ServedPart part{{1, 28, 28}, 60'000, 10, {"zero", "one"}};
  corpus.add(bytes_of({1}) + encode_served(ServedDescription{"digits", {part}}));
  corpus.add(bytes_of({1}) + encode_served(ServedDescription{"digits", {part, part}}));
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  using namespace starling;
  if (argc != 2) {
    fmt::print(stderr, "usage: make_seeds FOLDER\n");
    return 2;
  }
  try {
    const std::filesystem::path root = argv[1];
    frame_seeds({root, "frame"});
    handshake_seeds({root, "handshake"});
    store_seeds({root, "store"});
    codec_seeds({root, "codec"});
    served_seeds({root, "served"});
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "make_seeds: {}\n", error.what());
    return 1;
  }
}
