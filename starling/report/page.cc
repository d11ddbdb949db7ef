#include "starling/report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "starling/base/error.h"
#include "starling/report/bar_chart.h"
#include "starling/report/exchange_time.h"
#include "starling/report/line_chart.h"
#include "starling/report/markup.h"
#include "starling/report/page_style.h"
#include "starling/report/table.h"
#include "starling/report/timeline_picture.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

constexpr size_t kPoints = 120;  // of a line

std::string bytes_of(double value) {
  return bytes_text(static_cast<uint64_t>(std::max(0.0, value)));
}

std::string figure(const std::string& svg, const std::string& caption = "") {
  if (svg.empty()) return "";
  return "<figure>" + svg + (caption.empty() ? "" : "<figcaption>" + escaped(caption) + "</figcaption>") +
         "</figure>\n";
}

std::string html_of(const Table& table) {
  std::string out = "<div class=\"scroll\"><table><thead><tr>";
  for (const std::string& head : table.head) out += "<th>" + escaped(head) + "</th>";
  out += "</tr></thead><tbody>\n";
  for (const auto& row : table.rows) {
    out += "<tr>";
    const bool failed = row.size() < table.head.size();
    for (size_t i = 0; i < row.size(); ++i) {
      const bool why = failed && i + 1 == row.size();
      out += why ? fmt::format("<td class=\"why\" colspan=\"{}\">", table.head.size() - i) : "<td>";
      out += escaped(row[i]) + "</td>";
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

// The names of a picture's runs; a press turns one off in its charts.
std::string legend(const std::vector<RunRecord>& runs, const std::vector<size_t>& shown) {
  std::string out = "<div class=\"legend\">";
  for (size_t place = 0; place < shown.size(); ++place) {
    const int color = shown[place] == 0 ? 0 : static_cast<int>(place);
    out += fmt::format(
        "<button type=\"button\" aria-pressed=\"true\" data-run=\"{0}\"><svg viewBox=\"0 0 22 10\"><path "
        "class=\"{1}\" "
        "d=\"M0 5L22 5\" fill=\"none\" stroke-width=\"3\"/></svg>{2}</button>",
        color, color_class(color), escaped(runs[shown[place]].name));
  }
  return out + "</div>\n";
}

struct Against {
  const char* title;
  const char* label;
  Scale scale;
  double RunPoint::* x;
  std::function<std::string(double)> text;
};

// Loss of the training batches; on a logarithmic scale where it falls far.
LineChart loss_chart(const Comparison& comparison, const std::vector<size_t>& shown, const Against& against) {
  LineChart chart;
  chart.title = against.title;
  chart.x_label = against.label;
  chart.y_label = "loss";
  chart.x_scale = against.scale;
  chart.x_text = against.text;
  double least = 1e300, most = 0;
  for (size_t place = 0; place < shown.size(); ++place) {
    const RunRecord& run = comparison.runs[shown[place]];
    Series series;
    series.name = run.name;
    series.run = shown[place] == 0 ? 0 : static_cast<int>(place);
    for (const RunPoint& p : thinned(run.steps, kPoints)) {
      if (!std::isfinite(p.loss)) continue;
      series.points.emplace_back(p.*against.x, p.loss);
      least = std::min(least, p.loss);
      most = std::max(most, p.loss);
    }
    chart.series.push_back(std::move(series));
  }
  if (least > 0 && most > 8 * least) chart.y_scale = Scale::kLog;
  return chart;
}

LineChart accuracy_chart(const Comparison& comparison, const std::vector<size_t>& shown) {
  LineChart chart;
  chart.title = "Test accuracy against time";
  chart.x_label = "seconds of steps";
  chart.y_label = "accuracy";
  chart.y_text = [](double share) { return fmt::format("{:.4g} %", 100 * share); };
  for (size_t place = 0; place < shown.size(); ++place) {
    const RunRecord& run = comparison.runs[shown[place]];
    Series series;
    series.name = run.name;
    series.run = shown[place] == 0 ? 0 : static_cast<int>(place);
    series.marks = run.evaluations.size() <= 12;
    for (const RunPoint& p : run.evaluations) {
      if (p.accuracy >= 0) series.points.emplace_back(p.seconds, p.accuracy);
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

std::string picture(const Comparison& comparison, const Picture& picture) {
  const std::vector<RunRecord>& runs = comparison.runs;
  std::string out = "<section><h2>" + escaped(picture.title) + "</h2>\n";
  if (!picture.caption.empty()) out += "<p>" + escaped(picture.caption) + "</p>\n";
  out += legend(runs, picture.runs) + "<div class=\"charts\">\n";
  out += figure(svg_of(loss_chart(
      comparison, picture.runs,
      {"Training loss against time", "seconds of steps", Scale::kLinear, &RunPoint::seconds, nullptr})));
  out += figure(svg_of(
      loss_chart(comparison, picture.runs,
                 {"Training loss against samples", "samples", Scale::kLinear, &RunPoint::samples, nullptr})));
  out += figure(svg_of(loss_chart(comparison, picture.runs,
                                  {"Training loss against bytes", "bytes sent, all ranks and servers",
                                   Scale::kLog, &RunPoint::bytes, bytes_of})));
  const bool tested = std::any_of(picture.runs.begin(), picture.runs.end(), [&](size_t i) {
    const auto& evaluations = runs[i].evaluations;
    return evaluations.size() > 1 && evaluations.back().accuracy >= 0;
  });
  if (tested) out += figure(svg_of(accuracy_chart(comparison, picture.runs)));
  out += "</div>\n";
  for (const size_t i : picture.runs) {
    if (!runs[i].timeline) continue;
    out += "<figure class=\"wide\"><div class=\"scroll\">" + svg_of(*runs[i].timeline) +
           "</div><figcaption>" +
           escaped(fmt::format(
               "{}: the schedule {}, {} micro-batches; blue forward, orange backward, the number is the "
               "micro-batch. The formula with equal stages says {:.1f} % idle.",
               runs[i].name, runs[i].timeline->schedule, runs[i].timeline->micro_batches,
               100 * planned_bubble(runs[i].timeline->schedule, runs[i].timeline->ranks,
                                    runs[i].timeline->chunks, runs[i].timeline->micro_batches))) +
           "</figcaption></figure>\n";
  }
  return out + "</section>\n";
}

std::string memory_figure(const Comparison& comparison) {
  if (comparison.memory.empty()) return "";
  BarChart chart;
  chart.title = "Bytes of model states a rank";
  chart.segment_names = {"parameters", "gradients", "optimizer"};
  chart.text = bytes_of;
  for (const MemoryBar& bar : comparison.memory)
    chart.rows.push_back({bar.name + (bar.measured ? ", measured" : ""),
                          {bar.bytes.parameters, bar.bytes.gradients, bar.bytes.optimizer},
                          !bar.measured});
  return figure(
      svg_of(chart),
      "Pale: the formula (plan memory). Full: as the run counted its allocations. ZeRO divides what "
      "replicas would each hold.");
}

std::string layers_figure(const Comparison& comparison) {
  if (comparison.layers.empty()) return "";
  PairChart chart;
  chart.title = "Bytes by layer and step";
  chart.first_name = "|W|, data parallel";
  chart.second_name = "|D|, model parallel";
  chart.x_label = "bytes that each way exchanges (logarithmic)";
  chart.text = bytes_of;
  for (const LayerBytes& layer : comparison.layers)
    chart.rows.push_back({layer.name, layer.weights, layer.inputs});
  return figure(svg_of(chart), "The dot further left is the better way to divide the layer (FireCaffe).");
}

std::string data_of(const Comparison& comparison) {
  nlohmann::ordered_json json;
  json["title"] = comparison.title;
  for (const Compared& run : compared(comparison))
    json["runs"].push_back(nlohmann::ordered_json::parse(to_json(run)));
  std::string text = json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  for (size_t at = 0; (at = text.find('<', at)) != std::string::npos;) text.replace(at, 1, "\\u003c");
  return text;
}

std::string commands(const std::vector<RunRecord>& runs) {
  std::string out = "<details><summary>The command of each run</summary>\n";
  for (const RunRecord& run : runs)
    out += "<p><b>" + escaped(run.name) + "</b><br><code>" + escaped(run.command) + "</code></p>\n";
  return out + "</details>\n";
}

}  // namespace

std::string html_page(const Comparison& comparison) {
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">";
  out += "<title>" + escaped(comparison.title) + "</title><style>" + kPageStyle +
         "</style></head>\n<body><main>\n";
  out += "<h1>" + escaped(comparison.title) + "</h1>\n<p>" + escaped(comparison.lead) + "</p>\n<dl>";
  for (const auto& [name, value] : comparison.facts)
    out += "<div><dt>" + escaped(name) + "</dt><dd>" + escaped(value) + "</dd></div>";
  out += "</dl>\n" + html_of(table_of(comparison));
  if (comparison.target.any())
    out += "<p>The target is " + escaped(target_text(comparison.target)) +
           "; “sooner by” is the first run's time to it over this one's. ";
  else
    out += "<p>";
  out +=
      "Speed-up is samples/s over those of the first run; bytes are all ranks' and servers', in steps; "
      "balance the "
      "largest bytes of any rank or server over the mean; waiting the share of the steps in which rank 0 "
      "neither "
      "computed nor read.</p>\n";
  for (const Picture& p : comparison.pictures) out += picture(comparison, p);
  out += "<section><h2>What theory says of it</h2><div class=\"charts\">\n";
  out += figure(svg_of(exchange_chart(comparison)), exchange_caption(comparison));
  out += layers_figure(comparison) + memory_figure(comparison) + "</div></section>\n";
  out += commands(comparison.runs);
  out += "</main><div id=\"tip\" role=\"status\"></div>\n<script type=\"application/json\" id=\"data\">" +
         data_of(comparison) + "</script>\n<script>" + kPageScript + "</script>\n</body></html>\n";
  return out;
}

void write_page(const std::string& path, const Comparison& comparison) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << html_page(comparison);
  file.close();
  if (!file) throw Error(ErrorCode::kInternal, path + " cannot be written: is the disk full?");
}

}  // namespace starling
