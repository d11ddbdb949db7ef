// CodecSpec: what the word behind --codec says, as a value.
//
//   NAME[:KEY=VALUE[,KEY=VALUE…]]     "int8", "1bit:feedback=off", "lowrank:rank=4,form=pca", "prune:keep=0.05"
//
//   none fp16 bf16
//   int8       block       elements that share a scale (256)
//   1bit       block (256)
//   threshold  tau         elements beyond it travel (0.001)
//   lowrank    form        power-sgd: one step of the power method a call, from the last one's result: gradients
//                          pca: converged anew each time, for weights and deltas
//              rank        columns of the factors (2)
//              iterations  of pca (12)
//   prune      keep        the part of the elements that travels (0.01)
//   all        feedback    on, off: error feedback; on by default for 1bit, threshold, prune and lowrank as power-sgd
//
// fp16, bf16 and int8 are also what "16-bit weights with 8-bit activations" is made of: a codec for each direction.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace starling {

enum class CodecKind { kNone, kFp16, kBf16, kInt8, kOneBit, kThreshold, kLowRank, kPrune };
enum class LowRankForm { kPowerSgd, kPca };

struct CodecSpec {
  CodecKind kind = CodecKind::kNone;
  bool error_feedback = false;
  size_t block = 256;
  double tau = 1e-3;
  LowRankForm form = LowRankForm::kPowerSgd;
  int rank = 2;
  int iterations = 12;
  double keep = 0.01;
  bool operator==(const CodecSpec&) const = default;
};

// "none", "fp16", …, in the order above.
const std::vector<std::string>& codec_names();
const std::string& name_of(CodecKind kind);

// where: names the value in errors, e.g. "--codec". Errors: ConfigError with the words or the range that are allowed.
CodecSpec parse_codec(const std::string& word, const std::string& where = "--codec");

// The codec of weights that a server sends (--pull-codec). Each message stands for itself: nothing is fed back, and lowrank is
// pca unless the word says otherwise. Errors: also for what needs a history: threshold, and lowrank as power-sgd.
CodecSpec parse_weight_codec(const std::string& word, const std::string& where = "--pull-codec");

// The word of a spec with every value that its codec uses: parse_codec(to_word(spec)) == spec.
std::string to_word(const CodecSpec& spec);

}  // namespace starling
