// All-reduce between hosts.
//
// small (up to kSmallRemoteBytes): all-gather by doubling, then every rank reduces all p tensors in rank order:
//                                                    T = ⌈log2 p⌉ α + (p - 1) N β + p N γ
// large: reduce-scatter by direct exchange, then a ring all-gather. Bytes sent and received: 2 (p - 1) / p · N, the
// least that is possible:                            T = p α + 2 (p - 1)/p N β + N γ
// Both give every rank the same bits, summed in rank order.
#pragma once

#include <cstddef>

#include "starling/comm/collective/tcp_reduce_scatter.h"

namespace starling {

constexpr size_t kSmallRemoteBytes = 8 * 1024;

void tcp_all_reduce(RemoteTeam& team, void* data, size_t count, const Elements& elements);

}  // namespace starling
