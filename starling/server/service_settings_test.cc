#include "starling/server/service_settings.h"

#include <gtest/gtest.h>

#include <thread>

#include "starling/base/error.h"
#include "starling/net/memory/memory_store.h"
#include "starling/net/store/store_server.h"

namespace starling {
namespace {

ServiceSettings some_settings() {
  ServiceSettings settings;
  settings.type = DataType::kFp64;
  settings.optimizer.name = "adam";
  settings.optimizer.lr = 0.1;
  settings.optimizer.momentum = 1.0 / 3;
  settings.optimizer.nesterov = true;
  settings.optimizer.weight_decay = 1e-300;
  settings.optimizer.beta1 = 0.875;
  settings.optimizer.beta2 = 0.9990000000000001;
  settings.optimizer.eps = 1e-8;
  return settings;
}

TEST(ServiceSettings, EveryNumberKeepsItsValue) {
  const ServiceSettings settings = some_settings();
  const ServiceSettings read = service_settings_of(to_text(settings));
  EXPECT_EQ(read.type, DataType::kFp64);
  EXPECT_EQ(read.optimizer.name, "adam");
  EXPECT_EQ(read.optimizer.lr, settings.optimizer.lr);
  EXPECT_TRUE(read.optimizer.nesterov);
  EXPECT_EQ(read.optimizer.momentum, settings.optimizer.momentum);
  EXPECT_EQ(read.optimizer.weight_decay, settings.optimizer.weight_decay);
  EXPECT_EQ(read.optimizer.beta1, settings.optimizer.beta1);
  EXPECT_EQ(read.optimizer.beta2, settings.optimizer.beta2);
  EXPECT_EQ(read.optimizer.eps, settings.optimizer.eps);
  EXPECT_FALSE(read.more);
}

TEST(ServiceSettings, TheOptionsOfAnOptimizerKeepTheirValues) {
  ServiceSettings settings = some_settings();
  settings.torch.name = "rmsprop";
  settings.torch.groups = {{0.1, 1.0 / 3}, {}, {1e-5}};
  settings.groups_of_shard = {{0, 2, 1}, {0}};
  const ServiceSettings read = service_settings_of(to_text(settings));
  EXPECT_EQ(read.torch.name, "rmsprop");
  EXPECT_EQ(read.torch.groups, settings.torch.groups);
  EXPECT_EQ(read.groups_of_shard, settings.groups_of_shard);
  EXPECT_TRUE(service_settings_of(to_text(some_settings())).torch.name.empty());
}

TEST(ServiceSettings, AnotherTextIsRefused) {
  for (const char* text : {"", "fp32", "fp32 sgd x", "int64 sgd 1 1 1 1 1 1 1 0", "fp64 sgd 1 1 1 1 1 1 1",
                           "fp64 sgd 1 1 1 1 1 1 1 0 rmsprop 1 2 0.5", "fp64 sgd 1 1 1 1 1 1 1 0 rmsprop"})
    EXPECT_THROW(service_settings_of(text), CommError) << text;
}

TEST(ServiceSettings, EachServiceHasItsOwn) {
  MemoryStore store;
  ServerRendezvous job;
  const ServerRendezvous second = rendezvous_of_service(job, 1);
  EXPECT_EQ(rendezvous_of_service(job, 0).name, job.name);
  announce_service(store, second, some_settings());
  EXPECT_FALSE(announced_service(store, job));
  EXPECT_EQ(announced_service(store, second)->optimizer.name, "adam");
}

TEST(ServiceSettings, AServerStopsWaitingWhenAllWorkersAreLost) {
  MemoryStore store;
  ServerRendezvous job;
  job.workers = 2;
  store.put(lost_key(0), "killed");
  std::thread loses([&] { store.put(lost_key(1), "killed"); });
  EXPECT_FALSE(await_service(store, job));
  loses.join();
}

}  // namespace
}  // namespace starling
