#include "starling/report/page_style.h"

namespace starling {

const char kPageStyle[] = R"css(
:root { color-scheme: light dark;
  --page: #fcfcfb; --card: #ffffff; --ink: #1b1b1a; --soft: #5f5e5a; --line: #e4e3df; --idle: #efeeea;
  --c0: #8a8983; --c1: #2a78d6; --c2: #eb6834; --c3: #1b9e77; --c4: #c98500; --c5: #c2408a; --c6: #4a3aa7;
  --c7: #d03b3b; --c8: #4f7a1c; }
@media (prefers-color-scheme: dark) { :root {
  --page: #151514; --card: #1e1e1c; --ink: #f2f1ed; --soft: #b3b1aa; --line: #383733; --idle: #2a2926;
  --c0: #98968f; --c1: #4c95ea; --c2: #f0804f; --c3: #2dbd8f; --c4: #dba32b; --c5: #e072b0; --c6: #a195f0;
  --c7: #ee7272; --c8: #8fbf52; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1280px; margin: 0 auto; padding: 24px 16px 64px; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 8px; }
h2 { font-size: 1.2rem; margin: 44px 0 4px; }
p { margin: 4px 0 12px; max-width: 75ch; color: var(--soft); }
dl { display: flex; flex-wrap: wrap; gap: 4px 28px; margin: 12px 0; }
dl div { display: flex; gap: 8px; max-width: 100%; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.92rem; min-width: 100%; }
th, td { text-align: right; padding: 6px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; }
th:first-child, td:first-child { text-align: left; }
td.why { text-align: left; white-space: normal; color: var(--c7); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); gap: 16px; }
figure { margin: 0; padding: 12px; background: var(--card); border: 1px solid var(--line); border-radius: 8px; min-width: 0; }
figure.wide { margin-top: 16px; }
figcaption { color: var(--soft); font-size: 0.88rem; margin-top: 6px; }
.legend { display: flex; flex-wrap: wrap; gap: 6px; margin: 8px 0 12px; }
.legend button { font: inherit; font-size: 0.88rem; color: inherit; background: none; border: 1px solid var(--line);
  border-radius: 14px; padding: 2px 12px 2px 8px; cursor: pointer; display: flex; align-items: center; gap: 7px; }
.legend svg { width: 22px; height: 10px; flex: none; }
.legend button[aria-pressed="false"] { opacity: 0.4; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
.scroll svg { min-width: 640px; }
svg.timeline text { font-size: 12px; }
svg text { font-size: 13px; fill: var(--soft); }
svg text.title { fill: var(--ink); font-weight: 600; }
svg text.inside { fill: #fff; font-size: 11px; }
.grid { stroke: var(--line); } .axis, .tick { stroke: var(--soft); } .join { stroke: var(--soft); }
.series path { fill: none; stroke-width: 2; stroke-linejoin: round; }
.dash path, path.dash { stroke-dasharray: 6 3; }
.c0 path, path.c0 { stroke: var(--c0); } .c1 path, path.c1 { stroke: var(--c1); } .c2 path, path.c2 { stroke: var(--c2); }
.c3 path, path.c3 { stroke: var(--c3); } .c4 path, path.c4 { stroke: var(--c4); } .c5 path, path.c5 { stroke: var(--c5); }
.c6 path, path.c6 { stroke: var(--c6); } .c7 path, path.c7 { stroke: var(--c7); } .c8 path, path.c8 { stroke: var(--c8); }
.c0 circle { fill: var(--c0); } .c1 circle { fill: var(--c1); } .c2 circle { fill: var(--c2); } .c3 circle { fill: var(--c3); }
.c4 circle { fill: var(--c4); } .c5 circle { fill: var(--c5); } .c6 circle { fill: var(--c6); } .c7 circle { fill: var(--c7); }
.c8 circle { fill: var(--c8); }
rect.c1, circle.c1 { fill: var(--c1); } rect.c2, circle.c2 { fill: var(--c2); } rect.c3, circle.c3 { fill: var(--c3); }
.idle { fill: var(--idle); } .faint { opacity: 0.55; } .off { display: none; }
details { margin: 8px 0; } summary { cursor: pointer; color: var(--soft); }
code { font-size: 0.85rem; overflow-wrap: anywhere; }
#tip { position: fixed; pointer-events: none; background: var(--card); color: var(--ink); border: 1px solid var(--line);
  border-radius: 6px; padding: 6px 10px; font-size: 0.82rem; line-height: 1.4; box-shadow: 0 2px 8px #0003; display: none;
  font-variant-numeric: tabular-nums; max-width: 90vw; z-index: 2; }
)css";

const char kPageScript[] = R"js(
(function () {
  var tip = document.getElementById("tip");
  function axis(text) {
    var a = text.split(" "), low = +a[1], high = +a[2], from = +a[3], to = +a[4];
    return function (pixel) {
      var share = (pixel - from) / (to - from);
      return a[0] === "log" ? low * Math.pow(high / low, share) : low + share * (high - low);
    };
  }
  function shown(value) {
    var size = Math.abs(value);
    if (size >= 1e9) return (value / 1e9).toPrecision(3) + "G";
    if (size >= 1e6) return (value / 1e6).toPrecision(3) + "M";
    if (size >= 1e4) return (value / 1e3).toPrecision(3) + "k";
    return value.toPrecision(3);
  }
  document.querySelectorAll("svg.lines").forEach(function (svg) {
    var x = axis(svg.dataset.x), y = axis(svg.dataset.y);
    svg.addEventListener("pointerleave", function () { tip.style.display = "none"; });
    svg.addEventListener("pointermove", function (event) {
      var box = svg.getBoundingClientRect();
      var at = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
      tip.textContent = "";
      var head = document.createElement("div"), nearest = null;
      tip.appendChild(head);
      svg.querySelectorAll(".series:not(.off)").forEach(function (group) {
        var best = null;
        group.querySelector("path").getAttribute("d").slice(1).split("L").forEach(function (pair) {
          var p = pair.split(" ").map(Number);
          if (!best || Math.abs(p[0] - at) < Math.abs(best[0] - at)) best = p;
        });
        if (!nearest || Math.abs(best[0] - at) < Math.abs(nearest - at)) nearest = best[0];
        var row = document.createElement("div");
        row.textContent = group.dataset.name + ": " + shown(y(best[1]));
        tip.appendChild(row);
      });
      if (nearest === null) return;
      head.textContent = svg.dataset.xLabel + " " + shown(x(nearest));
      tip.style.display = "block";
      tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
      tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)) + "px";
    });
  });
  document.querySelectorAll(".legend button").forEach(function (button) {
    button.addEventListener("click", function () {
      var on = button.getAttribute("aria-pressed") === "false";
      button.setAttribute("aria-pressed", String(on));
      button.closest("section").querySelectorAll('.series[data-run="' + button.dataset.run + '"]').forEach(
        function (group) { group.classList.toggle("off", !on); });
    });
  });
})();
)js";

}  // namespace starling
