// `starling tour`: the pictures of the documents that Starling began with, each as runs on real processes, on generated
// digits, and the page of `starling compare` with a caption for each. docs/seeds.md lists the ideas one by one.
#pragma once

#include "starling/run/compare.h"

namespace starling {

// quick: a small model and few samples, to see that it works; else about as much as two cores do in five minutes.
// only: the pictures whose title holds this text; empty: all. What is configured (by flags or file) stays as it is, the rest
// is the tour's. Errors: those of make_plan, and ConfigError ("--only") where no picture is left.
ComparisonPlan make_tour(Config base, bool quick, const std::string& only);

}  // namespace starling
