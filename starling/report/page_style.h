// Style and script of the page. The pictures use the classes c0 (neutral) to c8 for series, and grid, axis, tick, title,
// label, idle, inside, faint, join, dash.
#pragma once

namespace starling {

extern const char kPageStyle[];
// Shows the values of a chart's lines under the pointer, and turns a run off or on at its name.
extern const char kPageScript[];

}  // namespace starling
