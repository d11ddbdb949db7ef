#include "starling/nn/tensor_parallel/shard_vocabulary.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

namespace starling {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// OwnTokens marks the tokens that belong to other ranks (`foreign`) and has the rows of all tokens in this
// rank's part of the table. The row of a foreign token is 0.
struct OwnTokens {
  at::Tensor foreign, rows;
};

OwnTokens own_tokens(const at::Tensor& tokens, int64_t begin, int64_t count) {
  const at::Tensor rows = tokens - begin;
  const at::Tensor foreign = rows.lt(0).logical_or_(rows.ge(count));
  return {foreign, rows.masked_fill(foreign, 0)};
}

struct GroupHolder : torch::CustomClassHolder {
  GroupHolder(TensorGroup& g, std::string l) : group(g), layer(std::move(l)) {}
  TensorGroup& group;
  const std::string layer;
};

class CrossEntropy : public torch::autograd::Function<CrossEntropy> {
 public:
  // `logits` is [n, v] with this rank's entries of the vocabulary, and `target` is [n].
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits, const at::Tensor& target,
                            int64_t begin, const c10::intrusive_ptr<GroupHolder>& holder) {
    TensorGroup& group = holder->group;
    const OwnTokens own = own_tokens(target, begin, logits.size(1));
    const at::Tensor column = own.rows.unsqueeze(1);
    const at::Tensor most = group.maximum(logits.amax(1), holder->layer);
    at::Tensor z = logits - most.unsqueeze(1);
    const at::Tensor picked = z.gather(1, column).squeeze(1).masked_fill_(own.foreign, 0);
    z.exp_();
    const at::Tensor sums = group.sum(at::stack({z.sum(1), picked}), holder->layer);
    z.div_(sums[0].unsqueeze(1));
    ctx->save_for_backward({z, column, own.foreign});
    return (sums[0].log() - sums[1]).mean();
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &softmax = saved[0], &column = saved[1], &foreign = saved[2];
    const at::Tensor each = gradients[0] / static_cast<double>(softmax.size(0));
    const at::Tensor own = at::where(foreign, at::zeros({}, softmax.options()), -each);
    return {(softmax * each).scatter_add_(1, column, own.unsqueeze(1)), {}, {}, {}};
  }
};

}  // namespace

at::Tensor partial_embedding(const at::Tensor& tokens, const at::Tensor& table, int64_t begin) {
  const OwnTokens own = own_tokens(tokens, begin, table.size(0));
  return at::embedding(table, own.rows).masked_fill(own.foreign.unsqueeze(-1), 0);
}

at::Tensor vocabulary_cross_entropy(const at::Tensor& logits, const at::Tensor& target, int64_t begin,
                                    TensorGroup& group, const std::string& layer) {
  at::Tensor rows = logits.reshape({-1, logits.size(-1)});
  if (at::isReducedFloatingType(rows.scalar_type())) rows = rows.to(at::kFloat);
  return CrossEntropy::apply(rows, target.reshape({-1}), begin,
                             c10::make_intrusive<GroupHolder>(group, layer));
}

}  // namespace starling
