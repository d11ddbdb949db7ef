// The style of the report, for light and dark color schemes and for narrow screens.
#pragma once

namespace starling {

// CSS. Charts use the classes c0 (neutral) to c8 for series. The remaining classes are grid, axis, tick,
// title, label, idle, inside, faint, join, dash and raw.
extern const char kReportStyle[];

}  // namespace starling
