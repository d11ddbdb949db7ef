// CodecSpec is the value that a word such as that of --codec describes.
//
//   NAME[+NAME][:KEY=VALUE[,KEY=VALUE…]]   "int8", "1bit:feedback=off", "lowrank:rank=4,form=pca",
//   "prune:keep=0.05".
//
// none, fp16, bf16 and signsgd have no setting of their own. All other codecs have these:
//
//   int8       block       number of elements that share a scale, a multiple of 8 (256).
//   1bit       block       as for int8 (256).
//   threshold  tau         only elements of larger magnitude are sent (0.001).
//   lowrank    form        power-sgd: one step of the power method per call, started from the last
//                          result, for gradients.
//                          pca: iterates from a new start in each call, for weights and changes.
//              rank        columns of the factors (2).
//              iterations  iterations of pca (12).
//   prune      keep        fraction of the elements that is sent (0.01).
//   dgc        keep        as for prune, after the warm-up (0.001).
//              warmup      steps of the warm-up, which sends more elements (400).
//   random-k   keep        as for prune (0.1).
//   qsgd       levels      number of levels of a magnitude above 0, 1 to 127 (7).
//              norm        max, l2: what the levels divide (max).
//              block       as for int8 (256).
//   terngrad   clip        limit of an element in root mean squares of its block, or 0 for none (2.5).
//              block       as for int8 (256).
//
// Several codecs have these settings:
//
//   correction  on, off: momentum correction (momentum_correction.h), of threshold, prune and dgc (as
//               feedback), and of signsgd (on). It needs feedback, except for signsgd.
//   feedback    on, off: error feedback, of all codecs but qsgd, terngrad and signsgd. It is on for 1bit,
//               threshold, prune, dgc, random-k and lowrank as power-sgd.
//
// NAME+NAME is a stack: the second codec encodes the values that the messages of the first one contain. The
// stacks are prune and dgc with fp16, bf16 or int8, and lowrank with fp16 or bf16. The word of a stack has
// the settings of both codecs.
//
// Values in parentheses are defaults. Each kind of message has a word of its own: gradients or changes
// (--codec), weights that a server sends (--pull-codec) and activations (pipeline.activations).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace starling {

struct AddedCodec;
struct CodecTraits;
class Extensions;
struct RunSpec;

// The codecs, in the order of the table in spec/codecs.inc. kAdded is a codec of the user's program. Its
// value does not depend on the number of rows.
enum class CodecKind {
#define STARLING_CODEC(kind, maker, ...) kind,
#include "starling/spec/codecs.inc"
#undef STARLING_CODEC
  kAdded = 255
};
// The forms of lowrank (power_sgd.h, pca.h).
enum class LowRankForm { kPowerSgd, kPca };

// The settings of one codec. Codecs ignore the fields that they do not use.
struct CodecSpec {
  CodecKind kind = CodecKind::kNone;             // the codec; of a stack the first one
  CodecKind values = CodecKind::kNone;           // of a stack the second codec; kNone: no stack
  bool error_feedback = false;                   // what a message leaves out is added to the next one
  bool momentum_correction = false;              // the momentum is summed before the codec
  uint64_t seed = 0;                             // of random decisions (random_codec.h): train.seed
  size_t block = 256;                            // int8, 1bit, qsgd, terngrad: the values that share a scale
  double tau = 1e-3;                             // threshold: values of larger magnitude are sent
  LowRankForm form = LowRankForm::kPowerSgd;     // lowrank: how the factors are found
  int rank = 2;                                  // lowrank: the columns of the factors
  int iterations = 12;                           // lowrank, form pca: iterations for the eigenvectors
  double keep = 0.01;                            // prune, dgc, random-k: the share of values that is sent
  std::shared_ptr<const AddedCodec> added = {};  // the row of a codec that the program adds (extensions.h)
  // The settings that have no field above, by key. The function that makes the codec reads and checks them.
  std::map<std::string, std::string> settings = {};
  // Compares all fields.
  bool operator==(const CodecSpec&) const = default;
};

// Returns the names "none", "fp16" and so on, in the order of CodecKind.
const std::vector<std::string>& codec_names();
// Returns the name of the codec, or both names of a stack: "prune+int8".
std::string name_of(const CodecSpec& spec);

// Returns what the codec, or the first codec of a stack, is and can do. The reference is valid for the
// lifetime of the spec.
const CodecTraits& traits_of(const CodecSpec& spec);

// Returns true if a codec of this spec may keep a state between messages (codec.h).
bool keeps_state(const CodecSpec& spec);

// Parses a word. where: the name of the setting in errors, for example "--codec". added: the codecs of the
// program; may be null. Errors: ConfigError that tells which words or which range are allowed.
CodecSpec parse_codec(const std::string& word, const std::string& where = "--codec",
                      const Extensions* added = nullptr);

// Returns the codec of exchange.codec, with the seed of the run. Errors: those of parse_codec().
CodecSpec codec_of(const RunSpec& spec);

// Parses the codec of weights that a server sends (--pull-codec). Each message must be complete by itself, so
// error feedback is off, and lowrank is pca unless the word gives another form. Errors: as parse_codec().
// Also ConfigError for codecs that need a history or encode gradients only: threshold, dgc, random-k, qsgd,
// terngrad, signsgd, and lowrank as power-sgd.
CodecSpec parse_weight_codec(const std::string& word, const std::string& where = "--pull-codec",
                             const Extensions* added = nullptr);

// Returns the word of a spec with every value that its codec uses. parse_codec() of this word returns an
// equal spec if `spec` has the default values of the fields that its codec does not use.
std::string to_word(const CodecSpec& spec);

}  // namespace starling
