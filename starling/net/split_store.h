// SplitStore: values go to the store of the job, descriptors to the one of this host, for a descriptor cannot cross a network.
#pragma once

#include <optional>
#include <string>

#include "starling/net/store.h"

namespace starling {

// Both must outlive it.
class SplitStore final : public Store {
 public:
  SplitStore(Store& job, Store& host) : job_(job), host_(host) {}
  void put(const std::string& key, const std::string& value) override { job_.put(key, value); }
  std::string get(const std::string& key, Milliseconds timeout) override { return job_.get(key, timeout); }
  std::optional<std::string> try_get(const std::string& key) override { return job_.try_get(key); }
  int64_t add(const std::string& key, int64_t delta) override { return job_.add(key, delta); }
  void put_fd(const std::string& key, int fd) override { host_.put_fd(key, fd); }
  UniqueFd get_fd(const std::string& key, Milliseconds timeout) override {
    return host_.get_fd(key, timeout);
  }

 private:
  Store& job_;
  Store& host_;
};

}  // namespace starling
