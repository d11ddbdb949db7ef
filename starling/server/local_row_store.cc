#include "starling/server/local_row_store.h"

#include "starling/server/row_client.h"
#include "starling/server/row_shard.h"

namespace starling {

template <typename T>
struct BasicLocalRowStore<T>::State {
  explicit State(const RowTableOptions& options) : shard(options), client(shard) {}

  RowShard<T> shard;
  BasicRowClient<T> client;  // of the only worker, with a shard in its own process
};

template <typename T>
BasicLocalRowStore<T>::BasicLocalRowStore(const RowTableOptions& options)
    : state_(std::make_unique<State>(options)) {}

template <typename T>
BasicLocalRowStore<T>::~BasicLocalRowStore() = default;

template <typename T>
BasicRowStore<T>& BasicLocalRowStore<T>::client() const {
  return state_->client;
}

template class BasicLocalRowStore<int32_t>;
template class BasicLocalRowStore<int64_t>;
template class BasicLocalRowStore<float>;
template class BasicLocalRowStore<double>;

}  // namespace starling
