// A comparison as one HTML page that needs nothing beside it: pictures as SVG, style and a small script inside.
#pragma once

#include <string>

#include "starling/report/comparison.h"

namespace starling {

std::string html_page(const Comparison& comparison);

// Errors: Error(kInternal) naming the file.
void write_page(const std::string& path, const Comparison& comparison);

}  // namespace starling
