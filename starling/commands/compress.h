// Deep Compression (Han, Mao, Dally, arXiv 1510.00149): prunes a trained model, lets its weights share
// values, and writes both in Huffman codes.
//
//   1. Pruning. Each layer keeps its largest weights. The density of every layer falls from 1 to its final
//      value d during the first half of the steps. So the other weights adapt. After the share x of these
//      steps it is
//
//        d + (1 - d)(1 - x)³                 Zhu and Gupta, To prune, or not to prune, arXiv 1710.01878
//
//      The second half trains what is left.
//   2. Clustering. k-means divides the remaining weights of each layer into 2^b clusters. The centroids are
//      trained: the gradient of a centroid is the sum of the gradients of its weights.
//   3. Coding. A file holds the relative indexes and the clusters of the weights in Huffman codes, and the
//      codebooks (compress/compressed_file.h). Biases and buffers are stored whole.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "starling/commands/commands.h"
#include "starling/spec/run_spec.h"
#include "starling/telemetry/event.h"

namespace starling {

class Group;

// What became of one layer.
struct CompressedLayer {
  std::string name;
  uint64_t weights = 0;     // of the layer, without its bias
  uint64_t kept = 0;        // that remain
  uint64_t padding = 0;     // padding zeros of the relative indexes
  int64_t clusters = 0;     // values that the remaining weights share
  double index_bits = 0;    // mean length of an index's code
  double cluster_bits = 0;  // mean length of a cluster's code
  uint64_t bytes = 0;       // in the file, with the codebook and the tables of both codes
};

// The result.
struct CompressReport {
  std::string file;
  bool interrupted = false;  // `progress` ended the compression: no file was written
  std::vector<CompressedLayer> layers;
  uint64_t parameters = 0;         // number of parameters, with biases
  uint64_t other_bytes = 0;        // of the file: everything but the layers, such as biases and the checksum
  uint64_t file_bytes = 0;         // of the whole file
  EvalDone before, pruned, after;  // on the test data; `after` is that of the weights read from the file

  // Bytes of the parameters in fp32, divided by the bytes of the whole file.
  double ratio() const { return 4.0 * static_cast<double>(parameters) / static_cast<double>(file_bytes); }
};

// The message for several ranks.
inline constexpr const char* kOneProcess = "one process compresses a network: leave out -n";

// Is called before each step of training with the number of the stage (1 pruning, 2 clustering) and the share
// of it that is done. It is also called between other pieces of work, with the stage 0. Returns false to end
// the compression.
using CompressProgress = std::function<bool(int stage, double done)>;

// Checks the path of the file to write. Errors: ConfigError for a file that exists unless options.force is
// set, for spec.model.init itself, and for a file called model.safetensors.
void check_output(const RunSpec& spec, const CompressOptions& options);

// Compresses the weights in spec.model.init on the data of spec.data and writes options.file. `group` has
// this process alone. The file appears when it is whole and tested. Errors: ConfigError for a group of
// several processes, for data without a test part and for a model that cannot be compressed. Also ConfigError
// for wrong densities and for values that fp16 cannot hold. DataError for weights that are not finite. The
// errors of check_output(), of retrain() and of the files.
CompressReport compress(const RunSpec& spec, const CompressOptions& options, Group& group,
                        const CompressProgress& progress = {});

}  // namespace starling
