#include "starling/report/theory_charts.h"

#include <algorithm>

#include "starling/report/bar_chart.h"
#include "starling/report/chart_grid.h"
#include "starling/report/exchange_time.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

std::string text_of_bytes(double value) {
  return bytes_text(static_cast<uint64_t>(std::max(0.0, value)));
}

std::string memory_figure(const Comparison& comparison) {
  if (comparison.memory.empty()) return "";
  BarChart chart;
  chart.title = "Bytes of model state per rank";
  chart.segment_names = {"parameters", "gradients", "optimizer"};
  chart.text = text_of_bytes;
  for (const MemoryBar& bar : comparison.memory)
    chart.rows.push_back({bar.name + (bar.measured ? ", measured" : ""),
                          {bar.bytes.parameters, bar.bytes.gradients, bar.bytes.optimizer},
                          !bar.measured});
  return html_figure(
      svg_of(chart),
      "Pale bars are the prediction of “starling plan memory”. Full bars are the allocations that the run "
      "counted. ZeRO shards the state that replicas otherwise hold as a whole.");
}

std::string layers_figure(const Comparison& comparison) {
  if (comparison.layers.empty()) return "";
  PairChart chart;
  chart.title = "Bytes by layer and step";
  chart.first_name = "|W|, data parallel";
  chart.second_name = "|D|, model parallel";
  chart.x_label = "bytes that each way exchanges (logarithmic)";
  chart.text = text_of_bytes;
  for (const LayerBytes& layer : comparison.layers)
    chart.rows.push_back({layer.name, layer.weights, layer.inputs});
  return html_figure(svg_of(chart),
                     "|W| is the bytes of the weights of a layer, which data parallelism exchanges. |D| is "
                     "the bytes of its inputs for all samples of a step, which model parallelism exchanges. "
                     "The dot further left is the better way to parallelize the layer (FireCaffe: Iandola et "
                     "al., CVPR 2016).");
}

}  // namespace

std::string theory_section(const Comparison& comparison) {
  return "<section><h2>What formulas predict</h2>\n" +
         html_figure_rows({html_figure(svg_of(exchange_chart(comparison)), exchange_caption(comparison)),
                           layers_figure(comparison), memory_figure(comparison)}) +
         "</section>\n";
}

}  // namespace starling
