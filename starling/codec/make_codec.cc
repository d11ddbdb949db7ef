#include "starling/codec/make_codec.h"

#include "starling/codec/bf16.h"
#include "starling/codec/fp16.h"
#include "starling/codec/int8.h"
#include "starling/codec/none.h"
#include "starling/codec/one_bit.h"
#include "starling/codec/pca.h"
#include "starling/codec/power_sgd.h"
#include "starling/codec/prune.h"
#include "starling/codec/threshold.h"

namespace starling {

std::unique_ptr<Codec> make_codec(const CodecSpec& spec, const std::vector<TensorShape>& shapes) {
  switch (spec.kind) {
    case CodecKind::kNone:
      return std::make_unique<NoneCodec>();
    case CodecKind::kFp16:
      return std::make_unique<Fp16Codec>();
    case CodecKind::kBf16:
      return std::make_unique<Bf16Codec>();
    case CodecKind::kInt8:
      return std::make_unique<Int8Codec>(spec.block, shapes);
    case CodecKind::kOneBit:
      return std::make_unique<OneBitCodec>(spec.block, shapes);
    case CodecKind::kThreshold:
      return std::make_unique<ThresholdCodec>(static_cast<float>(spec.tau));
    case CodecKind::kPrune:
      return std::make_unique<PruneCodec>(spec.keep);
    case CodecKind::kLowRank:
      break;
  }
  if (spec.form == LowRankForm::kPca) return std::make_unique<PcaCodec>(shapes, spec.rank, spec.iterations);
  return std::make_unique<PowerSgdCodec>(shapes, spec.rank);
}

std::unique_ptr<Codec> make_codec(const std::string& word, const std::vector<TensorShape>& shapes) {
  return make_codec(parse_codec(word), shapes);
}

}  // namespace starling
