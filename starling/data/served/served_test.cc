// Tests the data server and its readers over loopback. The samples equal those of the files. Each sample is
// read once per epoch even if workers die, and hostile messages are refused.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <thread>

#include "starling/base/error.h"
#include "starling/data/formats/image_source.h"
#include "starling/data/formats/inspect.h"
#include "starling/data/generated/digits.h"
#include "starling/data/served/served_client.h"
#include "starling/data/served/served_images.h"
#include "starling/data/served/served_key.h"
#include "starling/data/served/served_loader.h"
#include "starling/data/served/served_server.h"
#include "starling/data/served/served_tensors.h"
#include "starling/data/source_factory.h"
#include "starling/data/tensor_source.h"
#include "starling/data/testing/files.h"
#include "starling/net/stream/stream_endpoint.h"
#include "starling/net/stream/stream_listener.h"
#include "starling/net/wire.h"

namespace starling {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using testing_files::message_of;

constexpr int64_t kSamples = 96;

class TestClock final : public Clock {
 public:
  Nanoseconds now() const override { return Nanoseconds(now_.load()); }
  void add(Nanoseconds time) { now_ += time.count(); }

 private:
  std::atomic<int64_t> now_{0};
};

// Draws all images once, because generated digits are drawn anew each time that they are read.
std::shared_ptr<const ImageStore> held(const ImageStore& store) {
  std::vector<int64_t> all(static_cast<size_t>(store.size()));
  std::iota(all.begin(), all.end(), 0);
  std::vector<uint8_t> pixels(all.size() * store.shape().bytes()), labels;
  store.decode(all, pixels.data());
  for (const int64_t i : all) labels.push_back(static_cast<uint8_t>(store.label(i)));
  return std::make_shared<MemoryImages>(store.shape(), std::move(pixels), std::move(labels), store.classes(),
                                        store.class_names());
}

class Served : public ::testing::Test {
 protected:
  Served() { start(); }

  void start() {
    server_.reset();
    DataServerOptions options;
    options.max_connections = 8;
    server_ = std::make_unique<DataServer>(
        DataServer::Content{"digits", served_stores(ImageParts{digits_, nullptr})},
        tcp_listen(address_, identity_, served_parties()), options, clock_);
    address_ = server_->address();
  }
  std::shared_ptr<const ServedClient> client() {
    return std::make_shared<ServedClient>(address_, identity_, ServedClientOptions{milliseconds(3'000)});
  }
  std::unique_ptr<TicketStream> tickets(uint64_t job, int64_t first = 0) {
    return std::make_unique<TicketStream>(address_, identity_, job, first);
  }
  std::unique_ptr<Endpoint> connection() {
    return tcp_connect(address_, identity_, served_parties(), deadline_in(milliseconds(10'000)));
  }

  const JobIdentity identity_{make_job_key(), kServedJobId};
  const std::shared_ptr<const ImageStore> digits_ = held(*make_digits(3, kSamples));
  TestClock clock_;
  std::string address_ = "127.0.0.1:0";
  std::unique_ptr<DataServer> server_;
};

TEST_F(Served, GivesTheVerySamples) {
  const ImageParts parts = open_served(client());
  ASSERT_EQ(parts.test, nullptr);
  EXPECT_EQ(parts.train->shape(), digits_->shape());
  EXPECT_EQ(parts.train->classes(), digits_->classes());
  const Augmentation augment{true, 4, 11};
  const auto local = make_image_source("digits", digits_, normalization_for(*digits_), augment);
  const auto served = make_image_source("served", parts.train, normalization_for(*parts.train), augment);
  ASSERT_EQ(served->size(), kSamples);
  const Batch a = local->read({5, 95, 0, 5}, 2), b = served->read({5, 95, 0, 5}, 2);
  EXPECT_TRUE(at::equal(a.input, b.input));
  EXPECT_TRUE(at::equal(a.target, b.target));
  const DataServerCounts counts = server_->counts();
  EXPECT_EQ(counts.samples, 4u);
  EXPECT_EQ(counts.bytes, 4u * 784);
}

// Serves other data than the images of the fixture.
class ServedOthers : public Served {
 protected:
  void serve(ServedStores parts) {
    server_ = std::make_unique<DataServer>(DataServer::Content{"others", std::move(parts)},
                                           tcp_listen("127.0.0.1:0", identity_, served_parties()),
                                           DataServerOptions{}, clock_);
    address_ = server_->address();
  }
  // Opens what the server serves as a run does, with a key file.
  DataSets opened(int64_t tokens) {
    if (!std::filesystem::exists(dir_.path("key"))) write_job_key_file(dir_.path("key"), identity_.key);
    DataSpec spec;
    spec.source = "served:" + address_ + ",key=" + dir_.path("key");
    return open_data(spec, 3, tokens);
  }
  testing_files::Scratch dir_;
};

// A text of several blocks, with characters of more than one byte: the windows equal those of the file, with
// the server's division into training and validation.
TEST_F(ServedOthers, GivesTheVeryText) {
  std::string text;
  for (int i = 0; i < 2'000; ++i) text += "line " + std::to_string(i * i) + " äöü\n";
  dir_.write("text.txt", text);
  DataSpec spec;
  spec.source = "text:" + dir_.path("text.txt");
  const DataSets local = open_data(spec, 3, 20);
  serve(open_for_serving(spec, 3));
  const DataSets served = opened(20);
  for (const bool test : {false, true}) {
    const Source &a = *(test ? local.test : local.train), &b = *(test ? served.test : served.train);
    ASSERT_EQ(a.size(), b.size());
    ASSERT_GT(a.size() * 20, test ? 100 : 2 * kServedBlock);
    EXPECT_EQ(a.info().vocabulary, b.info().vocabulary);
    EXPECT_EQ(a.info().classes, b.info().classes);
    EXPECT_TRUE(b.info().text);
    std::vector<int64_t> all(static_cast<size_t>(a.size()));
    std::iota(all.begin(), all.end(), 0);
    const Batch from_file = a.read(all, 1), from_server = b.read(all, 1);
    EXPECT_TRUE(at::equal(from_file.input, from_server.input));
    EXPECT_TRUE(at::equal(from_file.target, from_server.target));
  }
  EXPECT_THAT(message_of([&] { client()->labels(0); }), HasSubstr("holds no images"));
  EXPECT_THAT(message_of([&] { opened(100'000); }), HasSubstr("shorter than one sample"));
}

// Rows of two tensors of other types than images have.
TEST_F(ServedOthers, GivesTheVeryTensors) {
  const at::Tensor input = at::arange(60, at::kDouble).view({10, 2, 3}) / 7,
                   label = at::arange(10, at::kLong) % 4;
  const at::Tensor test = at::ones({3, 2, 3}, at::kDouble), other = at::zeros({3}, at::kLong);
  serve({served_tensors(input, label), served_tensors(test, other)});
  const DataSets sets = opened(1);
  const auto local = tensor_source(input, label);
  EXPECT_EQ(sets.train->info().input_shape, local->info().input_shape);
  EXPECT_EQ(sets.train->info().classes, 4);
  ASSERT_EQ(sets.train->size(), 10);
  ASSERT_EQ(sets.test->size(), 3);
  const std::vector<int64_t> indices = {9, 0, 4, 4};
  const Batch a = local->read(indices, 0), b = sets.train->read(indices, 0);
  EXPECT_EQ(b.input.scalar_type(), at::kDouble);
  EXPECT_TRUE(at::equal(a.input, b.input));
  EXPECT_TRUE(at::equal(a.target, b.target));
  EXPECT_TRUE(at::equal(sets.test->read({2}, 0).input, test.narrow(0, 0, 1)));
  DataSpec served;
  served.source = "served:" + address_ + ",key=" + dir_.path("key");
  const std::string report = to_text(inspect_data(served, 3, 1));
  EXPECT_THAT(report, HasSubstr("10 training, 3 test"));
  EXPECT_THAT(report, HasSubstr("a tensor of 2 x 3"));
  EXPECT_THAT(message_of([&] { served_tensors(input, label.narrow(0, 0, 5)); }),
              HasSubstr("as many targets"));
  EXPECT_THAT(message_of([&] { served_tensors(at::ones({2, 2}, at::kComplexFloat), at::ones({2})); }),
              HasSubstr("convert them"));
}

TEST_F(Served, ReadersOfSeveralThreads) {
  const auto shared = client();
  const ImageParts parts = open_served(shared);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = t; i < kSamples; i += 4) {
        std::vector<uint8_t> got(784), expected(784);
        parts.train->decode({&i, 1}, got.data());
        digits_->decode({&i, 1}, expected.data());
        wrong += got != expected;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(server_->counts().connections, 4);
}

TEST_F(Served, MoreSamplesThanOneRequestMayAskFor) {
  const ImageParts parts = open_served(client());
  std::vector<int64_t> indices(2 * kMaxReadSamples + 3);
  for (size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<int64_t>(i) % kSamples;
  std::vector<uint8_t> got(indices.size() * 784), expected(got.size());
  parts.train->decode(indices, got.data());
  digits_->decode(indices, expected.data());
  EXPECT_EQ(got, expected);
  EXPECT_EQ(server_->counts().reads, 3u);
}

TEST_F(Served, AServerMayBeStartedAgain) {
  const ImageParts parts = open_served(client());
  std::vector<uint8_t> pixels(784);
  const int64_t index = 7;
  parts.train->decode({&index, 1}, pixels.data());
  start();  // at the port of before
  parts.train->decode({&index, 1}, pixels.data());
  EXPECT_EQ(server_->counts().samples, 1u);
  server_.reset();
  EXPECT_THAT(message_of<CommError>([&] { parts.train->decode({&index, 1}, pixels.data()); }),
              HasSubstr("starling data serve"));
}

TEST_F(Served, WrongKeyIsRefused) {
  const JobIdentity other{make_job_key(), kServedJobId};
  EXPECT_THAT(message_of<CommError>([&] { ServedClient(address_, other); }), HasSubstr("wrong job key"));
  EXPECT_EQ(server_->counts().connections, 0);
}

// Workers use every sample once per epoch although workers come and go. Two workers die with tickets, which
// other workers get.
TEST_F(Served, EachSampleOnceAnEpochAlsoWhenWorkersDie) {
  const auto source = make_image_source("served", open_served(client()).train, no_normalization(1), {});
  LoaderOptions options;
  options.seed = 5;
  options.global_batch = 12;
  options.ranks = 3;
  options.prefetch = 2;
  constexpr int64_t kTickets = kSamples / 4;  // tickets per epoch, with batches of 4
  std::map<int64_t, int> used;                // how often each ticket was used
  {
    const auto dying = tickets(1);
    for (int i = 0; i < 3; ++i) dying->next();
    const int64_t done = dying->next();
    EXPECT_TRUE(dying->settle(done));
    ++used[done];
  }
  std::mutex mutex;
  const auto work = [&] {
    const auto mine = tickets(1);
    for (;;) {
      const int64_t ticket = mine->next();
      if (ticket >= 2 * kTickets) return;
      ASSERT_TRUE(mine->settle(ticket));
      const std::lock_guard lock(mutex);
      ++used[ticket];
    }
  };
  std::vector<std::thread> workers;
  for (int w = 0; w < 3; ++w) workers.emplace_back(work);
  for (std::thread& worker : workers) worker.join();
  ASSERT_EQ(used.size(), static_cast<size_t>(2 * kTickets));
  for (const auto& [ticket, count] : used) EXPECT_EQ(count, 1) << ticket;
  EXPECT_GE(server_->counts().leases.given_again, 3);
  EXPECT_EQ(server_->counts().leases.settled, 2 * kTickets);

  // Loaders turn tickets into batches. What one loader had read ahead when it ended comes to the other.
  auto first = make_leased_loader(source, options, tickets(2));
  auto second = make_leased_loader(source, options, tickets(2));
  std::multiset<std::vector<float>> seen, expected;
  const auto add = [](std::multiset<std::vector<float>>& to, const Batch& batch) {
    const float* p = batch.input.const_data_ptr<float>();
    for (int64_t i = 0; i < batch.size(); ++i) to.insert({p + 784 * i, p + 784 * (i + 1)});
  };
  std::vector<int64_t> all(kSamples);
  std::iota(all.begin(), all.end(), 0);
  add(expected, source->read(all, 0));
  for (int64_t i = 0; i < kTickets - 4; ++i) add(seen, (i % 3 == 0 ? first : second)->next());
  first.reset();  // its last batch counts as used
  const auto whole = [&] {
    return std::includes(seen.begin(), seen.end(), expected.begin(), expected.end());
  };
  EXPECT_FALSE(whole());
  for (int64_t i = 0; i < 2 * kTickets && !whole(); ++i) add(seen, second->next());
  EXPECT_TRUE(whole());
}

// Dropout draws from the keys, so batches of a data server have the keys of a plain loader.
TEST_F(Served, LeasedBatchesHaveTheKeysOfALoader) {
  const auto source = make_image_source("served", open_served(client()).train, no_normalization(1), {});
  LoaderOptions options;
  options.seed = 7;
  options.global_batch = 8;
  const auto plain = make_loader(source, options), leased = make_leased_loader(source, options, tickets(11));
  for (int step = 0; step < 14; ++step) {  // more than an epoch
    const Batch expected = plain->next(), batch = leased->next();
    ASSERT_TRUE(batch.keys.defined());
    EXPECT_TRUE(at::equal(batch.keys, expected.keys)) << step;
    EXPECT_TRUE(at::equal(batch.target, expected.target)) << step;
  }
}

TEST_F(Served, ASilentWorkerLosesItsTickets) {
  const auto silent = tickets(9), other = tickets(9);
  EXPECT_EQ(silent->next(), 0);
  EXPECT_EQ(other->next(), 1);
  clock_.add(std::chrono::seconds(301));
  EXPECT_EQ(other->next(), 0);  // it has waited long enough
  EXPECT_FALSE(silent->settle(0));
  EXPECT_TRUE(other->settle(0));
  EXPECT_TRUE(other->settle(1));
  EXPECT_EQ(server_->counts().leases.late, 1);
  EXPECT_THAT(message_of<DataError>([&] { tickets(9, 5); }), HasSubstr("began with ticket 0"));
}

TEST_F(Served, RequestsThatCannotBeAreRefused) {
  const auto shared = client();
  std::vector<uint8_t> pixels(784);
  const int64_t beyond = kSamples;
  EXPECT_THAT(message_of<DataError>([&] { shared->read(0, {&beyond, 1}, pixels.data()); }),
              HasSubstr("sample 96 does not exist: the part has 96"));
  const int64_t first = 0;
  shared->read(0, {&first, 1}, pixels.data());  // the connection is still good
  // A length that the request does not have, a number of samples that is too large, and a request that does
  // not exist.
  for (const auto& [tag, words] : std::vector<std::pair<ServedTag, std::vector<uint32_t>>>{
           {ServedTag::kRead, {0, 0x40000000, 1, 0}},
           {ServedTag::kRead, {0, 0}},
           {ServedTag::kRead, {0, 1, 0xffffffff, 0xffffffff}},
           {ServedTag::kLabels, {}},
           {ServedTag::kLease, {1}},
           {ServedTag::kPixels, {}}}) {
    const auto hostile = connection();
    std::vector<std::byte> body(words.size() * 4);
    for (size_t i = 0; i < words.size(); ++i) store_le(body.data() + 4 * i, words[i]);
    const Deadline deadline = deadline_in(milliseconds(10'000));
    hostile->send({static_cast<uint32_t>(tag), body, {}, MessageKind::kControl}, deadline);
    EXPECT_THROW(hostile->peek(deadline), CommError) << static_cast<uint32_t>(tag);
  }
  const auto data = connection();
  std::vector<std::byte> flood(1 << 20);
  EXPECT_THROW(
      {
        data->send({1, flood, {}, MessageKind::kData}, deadline_in(milliseconds(10'000)));
        data->peek(deadline_in(milliseconds(10'000)));
      },
      CommError);
  shared->read(0, {&first, 1}, pixels.data());
}

// A server announces false lengths: nothing is written beyond what was asked for.
TEST_F(Served, AnswersThatCannotBeAreRefused) {
  const auto listener = tcp_listen("127.0.0.1:0", identity_, served_parties());
  const auto lie = [&](const std::function<void(Endpoint&)>& answer) {
    return std::thread([&listener, answer] {
      const Deadline deadline = deadline_in(milliseconds(10'000));
      const auto endpoint = listener->accept(deadline);
      std::vector<std::byte> request(endpoint->peek(deadline).bytes);
      endpoint->recv({static_cast<uint32_t>(ServedTag::kDescribe), request, {}, MessageKind::kControl},
                     deadline);
      answer(*endpoint);
      EXPECT_THROW(endpoint->peek(deadline), CommError);  // the reader has left
    });
  };
  const auto send = [](Endpoint& to, ServedTag tag, const std::string& text) {
    to.send({static_cast<uint32_t>(tag), std::as_bytes(std::span(text)), {}, MessageKind::kData},
            deadline_in(milliseconds(10'000)));
  };
  const auto expect_refused = [&](const std::function<void(Endpoint&)>& answer, const char* why) {
    std::thread liar = lie(answer);
    EXPECT_THAT(message_of<CommError>([&] { ServedClient(listener->address(), identity_); }), HasSubstr(why));
    liar.join();
  };
  expect_refused([&](Endpoint& e) { send(e, ServedTag::kPixels, "12"); },
                 "not a data server of this version");
  expect_refused([&](Endpoint& e) { send(e, ServedTag::kDescription, "{"); }, "cannot be parsed");
  expect_refused(
      [&](Endpoint& e) {
        send(e, ServedTag::kDescription,
             R"({"source":"x","parts":[{"channels":1,"height":28,"width":28,"samples":99999999999,)"
             R"("classes":10,"class_names":[]}]})");
      },
      "is invalid");
}

TEST_F(Served, ReadersWithAnotherSecurityAreToldBothSettings) {
  JobIdentity encrypting = identity_;
  encrypting.security = DataSecurity::kEncrypt;
  EXPECT_THAT(message_of<CommError>([&] { ServedClient(address_, encrypting); }),
              HasSubstr("the peer uses --net-security none and this process uses encrypt"));
  server_.reset();
  server_ = std::make_unique<DataServer>(
      DataServer::Content{"digits", served_stores(ImageParts{digits_, nullptr})},
      tcp_listen(address_, encrypting, served_parties()), DataServerOptions{}, clock_);
  const ServedClient client(address_, encrypting);
  std::vector<uint8_t> got(2 * digits_->shape().bytes()), want(got.size());
  client.read(0, std::vector<int64_t>{7, 3}, got.data());
  digits_->decode(std::vector<int64_t>{7, 3}, want.data());
  EXPECT_EQ(got, want);
}

TEST_F(Served, NoServerIsAClearErrorInTime) {
  server_.reset();
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(message_of<CommError>([&] { ServedClient(address_, identity_, {milliseconds(300)}); }),
              ::testing::AllOf(HasSubstr(address_), HasSubstr("starling data serve")));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  DataSpec spec;
  spec.source = "served:127.0.0.1:1";
  EXPECT_THAT(message_of<ConfigError>([&] { open_data(spec, 0, 0); }), HasSubstr("starling data serve"));
  spec.source = "served:nonsense";
  EXPECT_THROW(open_data(spec, 0, 0), ConfigError);
}

}  // namespace
}  // namespace starling
