// The sections into which help texts and manual pages divide the configuration.
#pragma once

#include <array>
#include <string_view>

namespace starling {

// Every key of the schema belongs to one section. A command names the sections that concern it, and its help
// shows the flags of these sections only.
enum class Section {
  kModel,
  kData,
  kOptimizer,
  kTraining,
  kRanks,
  kParallel,
  kNetwork,
  kEmulation,
  kRun,
  kVerify,
};

// In the order in which help texts show them.
constexpr auto kSections = std::to_array(
    {Section::kModel, Section::kData, Section::kOptimizer, Section::kTraining, Section::kRanks,
     Section::kParallel, Section::kNetwork, Section::kEmulation, Section::kRun, Section::kVerify});

// The heading of a section, for example "Optimizer and schedule".
std::string_view title_of(Section section);

}  // namespace starling
