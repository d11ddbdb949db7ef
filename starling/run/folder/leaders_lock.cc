#include "starling/run/folder/leaders_lock.h"

#include <utility>

#include "starling/base/error.h"

namespace starling {

std::shared_ptr<FolderLock> LeadersLock::lock() const {
  const std::lock_guard guard(mutex_);
  return lock_;
}

void LeadersLock::take(Take take) {
  {
    const std::lock_guard guard(mutex_);
    take_ = std::move(take);
  }
  require();
}

std::string LeadersLock::try_take(Take take) {
  try {
    this->take(std::move(take));
    return {};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCheckpoint) throw;
    return error.what();
  }
}

bool LeadersLock::wanted() const {
  const std::lock_guard guard(mutex_);
  return take_ != nullptr;
}

bool LeadersLock::held() const {
  const std::shared_ptr<FolderLock> had = lock();
  return had && had->held();
}

void LeadersLock::require() {
  const std::lock_guard taking(taking_);
  if (const std::shared_ptr<FolderLock> had = lock()) return had->require();
  if (!wanted()) return;
  if (refused_) std::rethrow_exception(refused_);
  try {
    std::shared_ptr<FolderLock> taken = take_();
    const std::lock_guard guard(mutex_);
    lock_ = std::move(taken);
  } catch (const ConfigError&) {
    refused_ = std::current_exception();
    throw;
  }
}

int64_t LeadersLock::epoch() const {
  const std::shared_ptr<FolderLock> had = lock();
  return had ? had->epoch() : 0;
}

}  // namespace starling
