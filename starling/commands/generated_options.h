// Refuses options of generated data beside data of the user, where they would have no effect.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

namespace starling {

// Throws ConfigError for the first option that has another value than by default, if `data` is not empty.
// name: of the argument with the data, such as "DATA". options: whether each has another value, and its name.
void refuse_beside_data(const std::string& data, const char* name,
                        std::initializer_list<std::pair<bool, const char*>> options);

}  // namespace starling
