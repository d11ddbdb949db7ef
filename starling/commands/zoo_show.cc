#include "starling/commands/zoo_show.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "starling/base/error.h"
#include "starling/nn/layer_volumes.h"

namespace starling {
namespace {

// VolumeRow has the megabytes and the work of a layer for a batch. An element has 4 bytes, and MB = 10⁶
// bytes.
struct VolumeRow {
  std::string name;
  std::string kind;      // "conv", "linear" or "total"
  double weight_mb = 0;  // |W|
  double input_mb = 0;   // |D|
  double gflop = 0;      // of forward and backward: 2 per product, and backward twice as much as forward
  // Data parallelism exchanges ∇W, of size |W|. Model parallelism exchanges D and ∇D, of size |D|. The
  // smaller of the two moves fewer bytes.
  bool model_parallel() const { return input_mb < weight_mb; }
};

ModelShape shape_to_show(const ModelSpec& spec, const ZooShowOptions& show) {
  ModelShape shape = usual_shape(spec);
  if (show.pixels == 0) return shape;
  if (show.pixels < 1) throw ConfigError("--pixels", fmt::format("is {}, must be at least 1", show.pixels));
  if (shape.input_shape.size() != 3) {
    throw ConfigError("--pixels", spec.name +
                                      " does not read pictures; its input follows from model.widths or "
                                      "model.tokens (--set)");
  }
  shape.input_shape[1] = shape.input_shape[2] = show.pixels;
  return shape;
}

const char* fewer(const VolumeRow& row) {
  return row.model_parallel() ? "model" : "data";
}

nlohmann::ordered_json json_of(const VolumeRow& row) {
  return {{"event", row.kind == "total" ? "result" : "layer"},
          {"name", row.name},
          {"kind", row.kind},
          {"weight_mb", row.weight_mb},
          {"input_mb", row.input_mb},
          {"gflop", row.gflop},
          {"fewer_bytes", fewer(row)}};
}

// Returns the MB that a step exchanges if each layer is divided the better way.
double hybrid_mb(const std::vector<VolumeRow>& rows) {
  double mb = 0;
  for (const VolumeRow& row : rows) mb += std::min(row.weight_mb, row.input_mb);
  return mb;
}

std::string text_of(const std::vector<VolumeRow>& rows, const VolumeRow& total, int64_t batch) {
  size_t width = 5;
  for (const VolumeRow& row : rows) width = std::max(width, row.name.size());
  std::string out = fmt::format("{:<{}}  {:<6} {:>10} {:>10} {:>12}  {}\n", "layer", width, "kind", "|W| MB",
                                "|D| MB", "GFLOP", "fewer bytes");
  const auto line = [&](const VolumeRow& row) {
    out += fmt::format("{:<{}}  {:<6} {:>10.2f} {:>10.2f} {:>12.2f}  {}\n", row.name, width, row.kind,
                       row.weight_mb, row.input_mb, row.gflop, fewer(row));
  };
  for (const VolumeRow& row : rows) line(row);
  line(total);
  out += fmt::format(
      "\nBatch {}: |D| / |W| = {:.3g}. In fp32, MB of 10^6 bytes; GFLOP of forward and backward. Data "
      "parallelism "
      "exchanges |W| = {:.0f} MB,\nmodel parallelism |D| = {:.0f} MB, each layer the better way {:.0f} MB.",
      batch, total.input_mb / total.weight_mb, total.weight_mb, total.input_mb, hybrid_mb(rows));
  return out;
}

VolumeRow row_of(const LayerVolume& layer, int64_t batch) {
  const auto mb = [](int64_t elements) { return static_cast<double>(elements) * 4 / 1e6; };
  VolumeRow row;
  row.name = layer.name;
  row.kind = layer.kind == LayerKind::kConvolution ? "conv" : "linear";
  row.weight_mb = mb(layer.weights);
  row.input_mb = mb(layer.inputs) * static_cast<double>(batch);
  row.gflop = static_cast<double>(layer.products) * 6 * static_cast<double>(batch) / 1e9;
  return row;
}

VolumeRow total_of(const std::vector<VolumeRow>& rows) {
  VolumeRow total;
  total.name = total.kind = "total";
  for (const VolumeRow& row : rows) {
    total.weight_mb += row.weight_mb;
    total.input_mb += row.input_mb;
    total.gflop += row.gflop;
  }
  return total;
}

}  // namespace

std::string zoo_show(const ModelSpec& spec, const ZooShowOptions& show, bool json) {
  if (show.batch < 1) throw ConfigError("--batch", fmt::format("is {}, must be at least 1", show.batch));
  const ModelShape shape = shape_to_show(spec, show);
  std::vector<VolumeRow> rows;
  for (const LayerVolume& layer : layer_volumes(zoo_model(spec, shape), shape)) {
    rows.push_back(row_of(layer, show.batch));
  }
  const VolumeRow total = total_of(rows);
  if (!json) return text_of(rows, total, show.batch);
  std::string lines;
  for (const VolumeRow& row : rows) lines += json_of(row).dump() + "\n";
  nlohmann::ordered_json sum = json_of(total);
  sum["model"] = spec.name;
  sum["batch"] = show.batch;
  sum["hybrid_mb"] = hybrid_mb(rows);
  return lines + sum.dump();
}

}  // namespace starling
