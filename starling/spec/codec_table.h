// The table of codecs (spec/codecs.inc) for code that needs names and traits. Layers above make the codecs.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace starling {

struct RunSpec;

// What a codec is and can do.
struct CodecTraits {
  std::string_view name = {};      // The word of --codec.
  std::string_view settings = "";  // The keys of its word, separated by spaces, besides "feedback".
  // The codecs that can encode the values of its messages, separated by spaces: "prune+int8" is a stack.
  std::string_view values = "";
  bool error_feedback = false;  // Whether error feedback is on unless the word turns it off.
  bool state = false;           // Whether it keeps a state between messages besides that of error feedback.
  bool weights = true;          // Whether servers can send weights: each message has all values, nearly.
  bool momentum = true;  // false: a recipe's momentum m becomes 0, and its rate lr becomes lr / (1 − m).
  // Whether the momentum can come before the codec (codec/momentum_correction.h).
  bool momentum_correction = false;
  // Which momentum comes before the codec. true: that of Deep Gradient Compression, which sets the velocity
  // of a sent value to 0, needs error feedback and includes the weight decay. false: that of SIGNUM, which
  // does none of these.
  bool factor_masking = true;
  double rate_factor = 1;  // of the recipe's learning rate, if the momentum comes before the codec
  // Its recipe's learning rate. The momentum becomes 0 unless it comes before the codec. 0: the rules of
  // `momentum` and `rate_factor` apply.
  double rate = 0;
  double keep = 0.01;     // The default of its setting "keep".
  int warmup = 0;         // The default of its setting "warmup", in messages. 0: it has no warm-up.
  bool contracts = true;  // Whether a message is nearer to the values than zeros are. Feedback needs it.
  bool servers = true;    // Whether its gradients can go to servers.
  bool rounds = true;     // Whether it can encode the changes of weights between synchronization rounds.
};

// Returns all codecs in the order of the table.
std::span<const CodecTraits> codec_table();
// Returns the codec with this name, or null.
const CodecTraits* find_codec(std::string_view name);
// Returns the codec with this name that the run can use, also one that its program adds, or null.
const CodecTraits* find_codec(std::string_view name, const RunSpec& spec);
// Returns the name of the first codec of a word: "prune" for "prune+int8:keep=0.1".
std::string_view first_codec(std::string_view word);
// Returns the number that the word gives to a setting, 0.1 for `keep` and "prune+int8:keep=0.1", or
// `otherwise` if the word does not give one. The parser of words says what is wrong with a setting.
double setting_of(std::string_view word, std::string_view key, double otherwise);
// Returns true if the codec and the exchange of the run are such that the momentum of sgd comes before the
// codec (codec/momentum_correction.h). With train.shard it does not (codec/coded_reduce_scatter.h).
bool corrects_momentum(const RunSpec& spec);
// Returns the names of the codecs, separated by spaces. weights: only those that servers can send.
std::string_view codec_words(bool weights);
// Returns these names with commas, without "none" if `none` is false, for sentences.
std::string codec_list(bool weights, bool none);
// Returns the stacks of two codecs, "prune+int8" for example. weights: as for codec_words().
std::string codec_stacks(bool weights, std::string_view separator);

}  // namespace starling
