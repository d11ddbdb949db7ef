#include "starling/parallel/replica/gather_state.h"
#include "starling/comm/message_tags.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <string>
#include <utility>
#include <vector>

namespace starling {
namespace {

using Map = std::map<std::string, at::Tensor>;

// The message has, for each tensor, the length of its name, its type, its number of dimensions and their
// sizes. Then come the names and the values, one tensor after another.
void send_map(Group& group, const Map& tensors) {
  std::vector<int64_t> words;
  std::string names;
  for (const auto& [name, tensor] : tensors) {
    words.push_back(static_cast<int64_t>(name.size()));
    words.push_back(static_cast<int64_t>(tensor.scalar_type()));
    words.push_back(tensor.dim());
    words.insert(words.end(), tensor.sizes().begin(), tensor.sizes().end());
    names += name;
  }
  const int64_t counts[3] = {static_cast<int64_t>(tensors.size()), static_cast<int64_t>(words.size()),
                             static_cast<int64_t>(names.size())};
  send(group, counts, sizeof(counts), 0, kStateTag);
  send(group, words.data(), words.size() * sizeof(int64_t), 0, kStateTag);
  send(group, names.data(), names.size(), 0, kStateTag);
  for (const auto& item : tensors) {
    const at::Tensor whole = item.second.contiguous();
    send(group, whole.data_ptr(), whole.nbytes(), 0, kStateTag);
  }
}

void recv_map(Group& group, int peer, Map& into) {
  int64_t counts[3] = {};
  recv(group, counts, sizeof(counts), peer, kStateTag);
  std::vector<int64_t> words(counts[1]);
  std::string names(counts[2], '\0');
  recv(group, words.data(), words.size() * sizeof(int64_t), peer, kStateTag);
  recv(group, names.data(), names.size(), peer, kStateTag);
  size_t word = 0, begin = 0;
  for (int64_t t = 0; t < counts[0]; ++t) {
    const auto length = static_cast<size_t>(words.at(word));
    const auto type = static_cast<at::ScalarType>(words.at(word + 1));
    const auto dims = static_cast<size_t>(words.at(word + 2));
    word += 3;
    const std::vector<int64_t> sizes(words.begin() + word, words.begin() + word + dims);
    word += dims;
    at::Tensor value = at::empty(sizes, type);
    recv(group, value.data_ptr(), value.nbytes(), peer, kStateTag);
    into.emplace(names.substr(begin, length), std::move(value));
    begin += length;
  }
}

}  // namespace

void gather_state(Group& group, StrategyState& state) {
  at::NoGradGuard no_grad;
  for (Map* part : {&state.parameters, &state.buffers, &state.optimizer}) {
    if (group.rank() != 0) {
      send_map(group, *part);
      continue;
    }
    for (int r = 1; r < group.size(); ++r) recv_map(group, r, *part);
  }
}

}  // namespace starling
