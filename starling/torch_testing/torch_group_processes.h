// Runs the ranks of a test as processes of one thread each, in a group of all of them. Returns the numbers
// that they compute.
//
//   const auto body = [](Group& group, Store&) { return Numbers{{"rank", group.rank()}}; };
//   const Numbers found = numbers_of_processes(4, body)[3];
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "starling/comm/group.h"
#include "starling/net/store/store.h"

namespace starling {

// Numbers by name. Names have no blanks.
using Numbers = std::map<std::string, double>;

// Runs `body` on `size` processes and returns the result of each rank, by rank. The function forks: call it
// while the test has no threads of its own. Errors: Error with the messages of the ranks that failed.
std::vector<Numbers> numbers_of_processes(int size, const std::function<Numbers(Group&, Store&)>& body);
// Like numbers_of_processes(), for numbers without names. They arrive bit for bit.
std::vector<std::vector<double>> values_of_processes(
    int size, const std::function<std::vector<double>(Group&, Store&)>& body);

// Returns the largest number of each name over the ranks.
Numbers largest_of(const std::vector<Numbers>& ranks);

}  // namespace starling
