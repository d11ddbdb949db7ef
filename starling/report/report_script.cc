#include "starling/report/report_script.h"

namespace starling {

const char kReportScript[] = R"js(
(function () {
  "use strict";
  var tip = document.getElementById("tip");
  var data = JSON.parse(document.getElementById("data").textContent);

  // Values under the pointer.
  function axis(text) {
    var a = text.split(" "), low = +a[1], high = +a[2], from = +a[3], to = +a[4];
    return function (position) {
      var share = (position - from) / (to - from);
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
  function named(svg) { return svg.querySelectorAll(".series[data-name]:not(.off)"); }
  function nearestPoint(group, at) {
    var best = null;
    group.querySelector("path").getAttribute("d").slice(1).split("L").forEach(function (pair) {
      var p = pair.split(" ").map(Number);
      if (!best || Math.abs(p[0] - at) < Math.abs(best[0] - at)) best = p;
    });
    return best;
  }
  document.querySelectorAll("svg.lines").forEach(function (svg) {
    var x = axis(svg.dataset.x), y = axis(svg.dataset.y);
    svg.addEventListener("pointerleave", function () { tip.style.display = "none"; });
    svg.addEventListener("pointermove", function (event) {
      var box = svg.getBoundingClientRect();
      var at = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
      var head = document.createElement("div"), nearest = null;
      tip.textContent = "";
      tip.appendChild(head);
      named(svg).forEach(function (group) {
        var best = nearestPoint(group, at), row = document.createElement("div");
        if (nearest === null || Math.abs(best[0] - at) < Math.abs(nearest - at)) nearest = best[0];
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

  // Legend.
  document.querySelectorAll(".legend button").forEach(function (button) {
    button.addEventListener("click", function () {
      var on = button.getAttribute("aria-pressed") === "false";
      button.setAttribute("aria-pressed", String(on));
      button.closest("section").querySelectorAll('.series[data-run="' + button.dataset.run + '"]').forEach(
        function (group) { group.classList.toggle("off", !on); });
    });
  });

  // Files.
  function slug(text) { return text.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, ""); }
  function save(blob, name) {
    var link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    document.body.appendChild(link);
    link.click();
    link.remove();
    setTimeout(function () { URL.revokeObjectURL(link.href); }, 1000);
  }
  function csv(rows) {
    return new Blob([rows.map(function (row) {
      return row.map(function (value) {
        var text = value === null || value === undefined ? "" : String(value);
        return /[",\r\n]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
      }).join(",");
    }).join("\r\n") + "\r\n"], { type: "text/csv" });
  }
  function table() {
    var keys = ["name", "run", "error"];
    data.runs.forEach(function (run) {
      Object.keys(run).forEach(function (key) {
        if (["event", "curve", "evaluations"].indexOf(key) < 0 && keys.indexOf(key) < 0) keys.push(key);
      });
    });
    var rows = data.runs.map(function (run) { return keys.map(function (key) { return run[key]; }); });
    return [keys].concat(rows);
  }
  function curves() {
    var rows = [["name", "run", "part", "step", "samples", "seconds", "bytes", "loss", "average_loss",
                 "accuracy"]];
    data.runs.forEach(function (run) {
      [["train", run.curve], ["test", run.evaluations]].forEach(function (part) {
        var columns = part[1];
        columns.step.forEach(function (step, i) {
          var average = columns.average && columns.average[i];
          var accuracy = columns.accuracy && columns.accuracy[i];
          rows.push([run.name, run.run, part[0], step, columns.samples[i], columns.seconds[i],
                     columns.bytes[i], columns.loss[i], average, accuracy]);
        });
      });
    });
    return rows;
  }

  // A chart as it is on the screen, with its legend, on the color of the card.
  var properties = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin",
                    "opacity", "font-family", "font-size", "font-weight", "display", "text-anchor"];
  function copied(svg) {
    var copy = svg.cloneNode(true), from = svg.querySelectorAll("*"), to = copy.querySelectorAll("*");
    from.forEach(function (element, i) {
      var style = getComputedStyle(element);
      properties.forEach(function (name) { to[i].style.setProperty(name, style.getPropertyValue(name)); });
    });
    return copy;
  }
  function addLegend(svg, copy, box) {
    var at = 0, line = box.height + 8, namespace = svg.namespaceURI;
    var type = getComputedStyle(svg.querySelector("text:not(.title)"));
    function copyStyle(from, to, names) {
      names.forEach(function (name) { to.style.setProperty(name, from.getPropertyValue(name)); });
    }
    named(svg).forEach(function (group) {
      var text = group.dataset.name, width = 34 + 7.2 * text.length;
      if (at > 0 && at + width > box.width) { at = 0; line += 20; }
      var mark = document.createElementNS(namespace, "path");
      mark.setAttribute("d", "M" + at + " " + line + "h18");
      mark.style.strokeWidth = "3";
      copyStyle(getComputedStyle(group.querySelector("path")), mark, ["stroke", "stroke-dasharray"]);
      var label = document.createElementNS(namespace, "text");
      label.setAttribute("x", at + 23);
      label.setAttribute("y", line + 4);
      label.textContent = text;
      copyStyle(type, label, ["fill", "font-family", "font-size"]);
      copy.appendChild(mark);
      copy.appendChild(label);
      at += width;
    });
    return named(svg).length > 0 ? line + 12 : box.height;
  }
  function png(figure) {
    var svg = figure.querySelector("svg"), box = svg.viewBox.baseVal, scale = 2, margin = 12;
    var copy = copied(svg), height = addLegend(svg, copy, box), title = svg.getAttribute("aria-label");
    copy.setAttribute("viewBox", "0 0 " + box.width + " " + height);
    copy.setAttribute("width", box.width * scale);
    copy.setAttribute("height", height * scale);
    var image = new Image(), canvas = document.createElement("canvas");
    canvas.width = (box.width + 2 * margin) * scale;
    canvas.height = (height + 2 * margin) * scale;
    image.onload = function () {
      var context = canvas.getContext("2d");
      context.fillStyle = getComputedStyle(figure).backgroundColor;
      context.fillRect(0, 0, canvas.width, canvas.height);
      context.drawImage(image, margin * scale, margin * scale);
      canvas.toBlob(function (blob) { save(blob, slug(title) + ".png"); }, "image/png");
    };
    var text = new XMLSerializer().serializeToString(copy);
    image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
  }
  document.querySelectorAll("button.save").forEach(function (button) {
    button.addEventListener("click", function () {
      var kind = button.dataset.save;
      if (kind === "png") png(button.closest("figure"));
      else save(csv(kind === "table" ? table() : curves()), slug(data.title) + "-" + kind + ".csv");
    });
  });
})();
)js";

}  // namespace starling
