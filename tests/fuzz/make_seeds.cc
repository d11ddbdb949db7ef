// make_seeds FOLDER writes the fuzzers' first inputs to FOLDER/<target>/<name>. They are well-formed, and the
// code under test makes them.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "starling/codec/make_codec.h"
#include "starling/data/served/served_protocol.h"
#include "starling/net/security/handshake.h"
#include "starling/net/store/store_protocol.h"
#include "starling/testing/test_identity.h"
#include "tests/fuzz/codec_words.h"
#include "tests/fuzz/corpus.h"

namespace starling {
namespace {

// Inputs of frame_fuzz.cc: security, chunk, then operations.
void frame_seeds(Corpus corpus) {
  for (const int security : {0, 1, 2}) {
    const std::string frames =
        bytes_of({0, 1}) + "12345678" + bytes_of({0, 0}) + bytes_of({0, 2}) + "abcdefghijklmnop";
    corpus.add(bytes_of({security, 9}) + frames);
    corpus.add(bytes_of({security, 200}) + frames + bytes_of({3}));                     // repeats bytes
    corpus.add(bytes_of({security, 255}) + bytes_of({5, 0, 120, 5, 0, 255}) + frames);  // two segments
    corpus.add(bytes_of({security, 50}) + frames + bytes_of({1, 40, 0, 1}));            // flips a bit
    corpus.add(bytes_of({security, 50}) + frames + bytes_of({2, 5, 4, 4}) +
               "SCTL");  // cuts, and inserts bytes
  }
}

// Inputs of handshake_fuzz.cc: kind, chunk, then bytes or changes.
void handshake_seeds(Corpus corpus) {
  const JobIdentity identity = test_identity("fuzz");
  const Parties parties{.service = "fuzz", .target = "rank 0", .caller = "rank 2"};
  Handshake client(HandshakeRole::kClient, identity, parties),
      server(HandshakeRole::kServer, identity, parties);
  const std::string greeting = client.output();
  for (size_t fed = 0; server.wanted() > 0 && fed < greeting.size();) {
    const size_t count = std::min(server.wanted(), greeting.size() - fed);
    server.feed(std::as_bytes(std::span(greeting)).subspan(fed, count));
    fed += count;
  }
  corpus.add(bytes_of({1, 40}) + greeting + std::string(58, 'p'));
  corpus.add(bytes_of({0, 255}) + server.output());
  corpus.add(bytes_of({2, 7, 0, 0, 0, 0}));
  corpus.add(bytes_of({2, 7, 2, 2, 1, 0, 0, 0, 0, 0, 0, 0}));
  corpus.add(bytes_of({2, 90, 0, 0, 0, 0, 1, 12, 0, 2, 0}));
  corpus.add(bytes_of({2, 116, 0, 1, 1, 0, 1, 15, 0, 2, 0}));  // the version in a record's header
  corpus.add(bytes_of({2, 90, 0, 0, 0, 0, 0, 0, 1, 15, 0, 2, 0}));
  corpus.add(bytes_of({2, 90, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 1, 4, 0}));
  corpus.add(bytes_of({3}) + encode_claim({"fuzz", DataSecurity::kAuth, parties}));
}

// Inputs of store_fuzz.cc: tag, length and body of each request. If the tag has 140 added, a byte follows
// that says how much longer the body is.
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
  std::string lists;
  for (const std::string key : {"k0", "k1", "k2"}) {
    std::string put = entry({StoreOp::kPut, 0, key, "v"});
    put[0] = static_cast<char>(put[0] + 140);
    lists += put + bytes_of({200});
  }
  for (const StoreRequest& request :
       {StoreRequest{StoreOp::kList, 0, "k", ""}, StoreRequest{StoreOp::kList, 0, "k", "k0"},
        StoreRequest{StoreOp::kGather, 0, "k", "0 3"}, StoreRequest{StoreOp::kErase, 0, "k1", ""},
        StoreRequest{StoreOp::kList, 0, "", ""}})
    lists += entry(request);
  corpus.add(lists);
}

// Inputs of codec_fuzz.cc: the codec's index, the shape's sizes minus one, then the message.
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

// Inputs of served_fuzz.cc: 0, tag minus kDescribe, body; or 1, JSON.
void served_seeds(Corpus corpus) {
  for (const ServedRequest& request :
       {ServedRequest{.tag = ServedTag::kDescribe}, ServedRequest{.tag = ServedTag::kLabels, .part = 1},
        ServedRequest{.tag = ServedTag::kRead, .indices = {0, 5, 7}},
        ServedRequest{.tag = ServedTag::kJoin, .job = 77, .ticket = 3},
        ServedRequest{.tag = ServedTag::kLease}, ServedRequest{.tag = ServedTag::kSettle, .ticket = 12}}) {
    const int tag = static_cast<int>(request.tag) - static_cast<int>(ServedTag::kDescribe);
    corpus.add(bytes_of({0, tag}) + text_of(encode_served(request)));
  }
  corpus.add(bytes_of({1}) +
             R"({"source":"x","parts":[{"channels":1,"height":3e42,"width":28,"samples":1}]})");  // found
  const ServedPart part{{1, 28, 28}, 60'000, 10, {"zero", "one"}};
  corpus.add(bytes_of({1}) + encode_served(ServedDescription{"digits", {part}}));
  corpus.add(bytes_of({1}) + encode_served(ServedDescription{"digits", {part, part}}));
  ServedPart text;
  text.kind = ServedKind::kText;
  text.size = 2;
  text.characters = kServedBlock + 7;
  text.vocabulary = " abc";
  corpus.add(bytes_of({1}) + encode_served(ServedDescription{"text", {text}}));
  ServedPart tensors;
  tensors.kind = ServedKind::kTensors;
  tensors.size = 12;
  tensors.classes = 3;
  tensors.input = {"F32", {3, 5}};
  tensors.target = {"I64", {}};
  corpus.add(bytes_of({1}) + encode_served(ServedDescription{"tensors", {tensors, tensors}}));
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
    file_seeds(root);
    text_seeds(root);
    checkpoint_seeds(root);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "make_seeds: {}\n", error.what());
    return 1;
  }
}
