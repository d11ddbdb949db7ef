#include "starling/report/report_style.h"

namespace starling {

const char kReportStyle[] = R"css(
:root { color-scheme: light dark;
  --ground: #fcfcfb; --card: #ffffff; --ink: #1b1b1a; --soft: #5f5e5a; --line: #e4e3df; --idle: #efeeea;
  --warn: #fff6e0; --warn-line: #d99a00;
  --c0: #8a8983; --c1: #2a78d6; --c2: #eb6834; --c3: #1b9e77; --c4: #c98500; --c5: #c2408a; --c6: #4a3aa7;
  --c7: #d03b3b; --c8: #4f7a1c; }
@media (prefers-color-scheme: dark) { :root {
  --ground: #151514; --card: #1e1e1c; --ink: #f2f1ed; --soft: #b3b1aa; --line: #383733; --idle: #2a2926;
  --warn: #33290f; --warn-line: #b98a1c;
  --c0: #98968f; --c1: #4c95ea; --c2: #f0804f; --c3: #2dbd8f; --c4: #dba32b; --c5: #e072b0; --c6: #a195f0;
  --c7: #ee7272; --c8: #8fbf52; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1280px; margin: 0 auto; padding: 24px 16px 64px; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 8px; }
h2 { font-size: 1.2rem; margin: 44px 0 4px; }
p { margin: 4px 0 12px; max-width: 75ch; color: var(--soft); }
dl { display: flex; flex-wrap: wrap; gap: 4px 28px; margin: 12px 0; }
dl div { display: flex; gap: 8px; max-width: 100%; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.warning { color: var(--ink); background: var(--warn); border: 1px solid var(--warn-line);
  border-left-width: 5px;
  border-radius: 6px; padding: 10px 14px; max-width: none; margin: 16px 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; width: 100%;
  margin: 18px 0 8px; }
th, td { text-align: right; padding: 6px 8px; border-bottom: 1px solid var(--line);
  vertical-align: baseline; font-weight: 400; }
thead th { color: var(--soft); font-weight: 500; vertical-align: bottom; }
td { white-space: nowrap; }
th:first-child { text-align: left; padding-left: 0; }
tbody th { overflow-wrap: anywhere; font-weight: 500; min-width: 7em; }
tbody th[title] { cursor: help; }
td.why { text-align: left; white-space: normal; color: var(--c7); overflow-wrap: anywhere; }
.saves { display: flex; flex-wrap: wrap; gap: 8px; margin: 0 0 12px; }
button.save { font: inherit; font-size: 0.82rem; color: var(--soft); background: none;
  border: 1px solid var(--line);
  border-radius: 6px; padding: 2px 10px; cursor: pointer; white-space: nowrap; }
button:hover { border-color: var(--soft); } button:focus-visible { outline: 2px solid var(--c1);
  outline-offset: 1px; }
.charts { display: grid; gap: 16px; margin-bottom: 16px; grid-template-columns: minmax(0, 1fr); }
@media (min-width: 700px) { .charts.of2 { grid-template-columns: repeat(2, minmax(0, 1fr)); } }
@media (min-width: 960px) { .charts.of3 { grid-template-columns: repeat(3, minmax(0, 1fr)); } }
figure { margin: 0; padding: 14px; background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; min-width: 0;
  display: flex; flex-direction: column; justify-content: space-between; gap: 8px; overflow: hidden; }
.below { display: flex; justify-content: flex-end; align-items: flex-end; gap: 12px; }
.below figcaption { flex: 1; }
.note { font-size: 0.88rem; }
.wide { margin-bottom: 16px; }
.wide figure { overflow-x: auto; }
figcaption { color: var(--soft); font-size: 0.88rem; }
.legend { display: flex; flex-wrap: wrap; gap: 6px; margin: 8px 0 12px; }
.legend button { font: inherit; font-size: 0.88rem; color: inherit; background: none;
  border: 1px solid var(--line);
  border-radius: 14px; padding: 2px 12px 2px 8px; cursor: pointer; display: flex; align-items: center;
  gap: 7px; }
.legend svg { width: 22px; height: 10px; flex: none; }
.legend button[aria-pressed="false"] { opacity: 0.4; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
.wide svg { min-width: 640px; }
svg.timeline text { font-size: 12px; }
svg text { font-size: 13px; fill: var(--soft); }
svg text.title { fill: var(--ink); font-weight: 600; }
svg text.inside { fill: #fff; font-size: 11px; }
.grid { stroke: var(--line); } .axis, .tick { stroke: var(--soft); } .join { stroke: var(--soft); }
.series path { fill: none; stroke-width: 2; stroke-linejoin: round; }
.series.raw path { stroke-width: 1; opacity: 0.28; } .series.raw circle { opacity: 0.28; }
.dash path, path.dash { stroke-dasharray: 6 3; }
.c0 path, path.c0 { stroke: var(--c0); } .c1 path, path.c1 { stroke: var(--c1); } .c2 path,
  path.c2 { stroke: var(--c2); }
.c3 path, path.c3 { stroke: var(--c3); } .c4 path, path.c4 { stroke: var(--c4); } .c5 path,
  path.c5 { stroke: var(--c5); }
.c6 path, path.c6 { stroke: var(--c6); } .c7 path, path.c7 { stroke: var(--c7); } .c8 path,
  path.c8 { stroke: var(--c8); }
.c0 circle { fill: var(--c0); } .c1 circle { fill: var(--c1); } .c2 circle { fill: var(--c2); }
  .c3 circle { fill: var(--c3); }
.c4 circle { fill: var(--c4); } .c5 circle { fill: var(--c5); } .c6 circle { fill: var(--c6); }
  .c7 circle { fill: var(--c7); }
.c8 circle { fill: var(--c8); }
rect.c1, circle.c1 { fill: var(--c1); } rect.c2, circle.c2 { fill: var(--c2); } rect.c3,
  circle.c3 { fill: var(--c3); }
.idle { fill: var(--idle); } .faint { opacity: 0.55; } .off { display: none; }
details { margin: 8px 0; } summary { cursor: pointer; color: var(--soft); }
dl.notes { display: block; } dl.notes dt { flex: none; width: 6em; }
code { font-size: 0.85rem; overflow-wrap: anywhere; }
#tip { position: fixed; pointer-events: none; background: var(--card); color: var(--ink);
  border: 1px solid var(--line);
  border-radius: 6px; padding: 6px 10px; font-size: 0.82rem; line-height: 1.4; box-shadow: 0 2px 8px #0003;
  display: none;
  font-variant-numeric: tabular-nums; max-width: 90vw; z-index: 2; }
@media (max-width: 860px) {
  table, tbody, tr, tbody th, td { display: block; width: 100%; }
  thead { display: none; }
  tr { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px;
  margin-bottom: 10px;
    display: grid; grid-template-columns: repeat(auto-fill, minmax(6.2em, 1fr)); gap: 6px 14px; }
  th, td { border: 0; padding: 0; text-align: left; }
  tbody th, td.why { grid-column: 1 / -1; font-size: 1rem; }
  td[data-label]::before { content: attr(data-label); display: block; color: var(--soft); font-size: 0.8rem; }
}
@media print { button.save, #tip { display: none; } figure { break-inside: avoid; } }
)css";

}  // namespace starling
