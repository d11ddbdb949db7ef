#include "starling/data/served/served_leases.h"

namespace starling {

int64_t LeaseTable::lease(int64_t worker, Nanoseconds now) {
  expire(worker, now);
  int64_t ticket = fresh_;
  if (returned_.empty()) {
    ++fresh_;
  } else {
    ticket = *returned_.begin();
    returned_.erase(returned_.begin());
    ++counts_.given_again;
  }
  Worker& asking = workers_[worker];
  asking.last_sign = now;
  asking.held.insert(ticket);
  ++counts_.given;
  return ticket;
}

bool LeaseTable::settle(int64_t worker, int64_t ticket, Nanoseconds now) {
  Worker& asking = workers_[worker];
  asking.last_sign = now;
  const bool held = asking.held.erase(ticket) == 1;
  ++(held ? counts_.settled : counts_.late);
  return held;
}

int64_t LeaseTable::release(int64_t worker) {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return 0;
  const auto lost = static_cast<int64_t>(found->second.held.size());
  returned_.merge(found->second.held);
  workers_.erase(found);
  return lost;
}

void LeaseTable::expire(int64_t asking, Nanoseconds now) {
  for (auto& [number, worker] : workers_) {
    if (number == asking || now - worker.last_sign <= patience_) continue;
    returned_.merge(worker.held);
  }
}

}  // namespace starling
