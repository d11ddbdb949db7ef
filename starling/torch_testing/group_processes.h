// Ranks of a test as processes of one thread each, in a group of all of them; and the numbers that they find.
//
//   const Numbers found = numbers_of_processes(4, [](Group& group, Store&) { return Numbers{{"rank", group.rank()}}; })[3];
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "starling/comm/group.h"
#include "starling/net/store.h"

namespace starling {

using Numbers = std::map<std::string, double>;  // by name, without blanks

// Runs `body` on `size` processes and returns what each rank's returns, by rank. Throws Error with the messages of the ranks
// that fail. Forks: call it while the test has no threads of its own.
std::vector<Numbers> numbers_of_processes(int size, const std::function<Numbers(Group&, Store&)>& body);
// The same of numbers without names, bit for bit.
std::vector<std::vector<double>> values_of_processes(
    int size, const std::function<std::vector<double>(Group&, Store&)>& body);

// The largest of each name over the ranks.
Numbers largest_of(const std::vector<Numbers>& ranks);

}  // namespace starling
