// `starling tour`: a comparison with a fixed list of runs that shows the ideas of distributed training, one
// section for each.
//
// The runs train on generated digits unless the configuration names other data. docs/explanation/comparing.md
// describes the tour.
#pragma once

#include "starling/commands/compare.h"

namespace starling {

// Makes the plan of the tour.
//
// quick: trains a small model on few samples, to show that the tour works.
//
// only: keeps the sections whose title contains this text. An empty text keeps all of them.
//
// A flag or file takes precedence over the tour's own choice of a key.
// Errors: those of make_plan(), and ConfigError ("--only") if no section is left.
ComparisonPlan make_tour(Config base, bool quick, const std::string& only);

}  // namespace starling
