// SplitStore: a Store that keeps values in the store of the job and descriptors in the store of the host. A
// descriptor cannot cross a network.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "starling/net/store/store.h"

namespace starling {

// SplitStore refers to two stores, which must outlive it.
class SplitStore final : public Store {
 public:
  // `job` gets the values, `host` the descriptors.
  SplitStore(Store& job, Store& host) : job_(job), host_(host) {}
  void put(const std::string& key, const std::string& value) override { job_.put(key, value); }
  std::string put_if_absent(const std::string& key, const std::string& value) override {
    return job_.put_if_absent(key, value);
  }
  std::string get(const std::string& key, Milliseconds timeout) override { return job_.get(key, timeout); }
  std::optional<std::string> try_get(const std::string& key) override { return job_.try_get(key); }
  std::vector<std::string> gather(const std::string& prefix, int count, Milliseconds timeout) override {
    return job_.gather(prefix, count, timeout);
  }
  std::map<std::string, std::string> list(const std::string& prefix) override { return job_.list(prefix); }
  int64_t add(const std::string& key, int64_t delta) override { return job_.add(key, delta); }
  void put_fd(const std::string& key, int fd, int readers) override { host_.put_fd(key, fd, readers); }
  UniqueFd get_fd(const std::string& key, Milliseconds timeout) override {
    return host_.get_fd(key, timeout);
  }
  void erase(const std::string& prefix) override {
    job_.erase(prefix);
    host_.erase(prefix);
  }
  std::string address() const override { return job_.address(); }

 private:
  Store& job_;
  Store& host_;
};

}  // namespace starling
