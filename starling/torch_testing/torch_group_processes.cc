#include "starling/torch_testing/torch_group_processes.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include "starling/testing/forked_ranks.h"
#include "starling/testing/join_group.h"

namespace starling {
namespace {

std::vector<std::string> answers_of_processes(int size,
                                              const std::function<std::string(Group&, Store&)>& body) {
  const auto key = [](int rank) { return fmt::format("answer/{}", rank); };
  ForkedRanks ranks(size, [&](int rank, Store& store) {
    at::set_num_threads(1);
    const auto group = join_group(store, rank, size);
    store.put(key(rank), body(*group, store));
    barrier(*group);
  });
  ranks.wait_all();
  std::vector<std::string> answers;
  for (int r = 0; r < size; ++r) answers.push_back(ranks.store().try_get(key(r)).value());
  return answers;
}

}  // namespace

std::vector<Numbers> numbers_of_processes(int size, const std::function<Numbers(Group&, Store&)>& body) {
  const auto answers = answers_of_processes(size, [&](Group& group, Store& store) {
    std::string text;
    for (const auto& [name, value] : body(group, store)) text += fmt::format("{} {}\n", name, value);
    return text;
  });
  std::vector<Numbers> numbers;
  for (const std::string& answer : answers) {
    Numbers& own = numbers.emplace_back();
    std::istringstream text(answer);
    for (std::string name, value; text >> name >> value;) own[name] = std::stod(value);
  }
  return numbers;
}

std::vector<std::vector<double>> values_of_processes(
    int size, const std::function<std::vector<double>(Group&, Store&)>& body) {
  const auto answers = answers_of_processes(size, [&](Group& group, Store& store) {
    const std::vector<double> values = body(group, store);
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double));
  });
  std::vector<std::vector<double>> values;
  for (const std::string& answer : answers) {
    std::vector<double>& own = values.emplace_back(answer.size() / sizeof(double));
    std::memcpy(own.data(), answer.data(), answer.size());
  }
  return values;
}

Numbers largest_of(const std::vector<Numbers>& ranks) {
  Numbers largest;
  for (const Numbers& own : ranks) {
    for (const auto& [name, value] : own) {
      const auto [it, fresh] = largest.emplace(name, value);
      if (!fresh) it->second = std::max(it->second, value);
    }
  }
  return largest;
}

}  // namespace starling
