// A pipeline's step as a picture: a row a rank, forwards and backwards along time; planned above measured, on one scale.
#pragma once

#include <string>

#include "starling/report/timeline.h"

namespace starling {

std::string svg_of(const StepTimeline& measured);

}  // namespace starling
