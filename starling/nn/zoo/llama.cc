// Llama (Touvron et al., arXiv 2302.13971) with the names, shapes, mathematics and initialization of Hugging
// Face's LlamaForCausalLM. RMSNorm (Zhang and Sennrich, arXiv 1910.07467) precedes attention and
// feed-forward. Positions are rotations (layers/rotary.h). Several queries may share a key and a value. The
// feed-forward layer is SwiGLU (Shazeer, arXiv 2002.05202): down(silu(gate(x)) · up(x)). No layer has a bias.
// Weights are drawn from N(0, 0.02²). If model.tied is true, the output layer is the token embedding, and no
// lm_head.weight is stored.
#include <ATen/ops/silu.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/types.h>

#include "starling/base/error.h"
#include "starling/nn/layers/causal_attention.h"
#include "starling/nn/layers/linear.h"
#include "starling/nn/layers/rms_norm.h"
#include "starling/nn/layers/rotary.h"
#include "starling/nn/tensor_parallel/shard_model.h"
#include "starling/nn/zoo/embedding_table.h"
#include "starling/nn/zoo/zoo_models.h"

namespace starling {
namespace {

// Returns the width inside the feed-forward layers: model.hidden, or 8/3 of the width, rounded up to a
// multiple of 64. Three matrices of 8/3 of the width have as many parameters as gpt's two matrices of four
// times the width.
int64_t hidden_width(const ModelSpec& spec) {
  constexpr int64_t kMultiple = 64;
  if (spec.hidden > 0) return spec.hidden;
  return (8 * spec.width + 3 * kMultiple - 1) / (3 * kMultiple) * kMultiple;
}

class RmsNorm : public torch::nn::Module {
 public:
  RmsNorm(int64_t width, double eps) : eps_(eps) {
    weight_ = register_parameter("weight", torch::ones({width}));
  }
  at::Tensor forward(const at::Tensor& x) const { return rms_norm(x, weight_, eps_); }

 private:
  double eps_;
  at::Tensor weight_;
};

std::shared_ptr<LinearImpl> llama_linear(int64_t in, int64_t out) {
  auto layer = std::make_shared<LinearImpl>(in, out, WeightLayout::kOutIn, /*has_bias=*/false);
  torch::nn::init::normal_(layer->weight, 0.0, 0.02);
  return layer;
}

// Causal self-attention of x [n, t, width] with rotated queries and keys.
class LlamaAttention : public torch::nn::Module, public TensorShardable {
 public:
  LlamaAttention(const ModelSpec& spec, std::shared_ptr<const RotaryTable> table)
      : heads_(spec.heads),
        kv_heads_(spec.key_value_heads()),
        head_width_(spec.width / spec.heads),
        table_(std::move(table)) {
    q_proj_ = register_module("q_proj", llama_linear(spec.width, spec.width));
    k_proj_ = register_module("k_proj", llama_linear(spec.width, kv_heads_ * head_width_));
    v_proj_ = register_module("v_proj", llama_linear(spec.width, kv_heads_ * head_width_));
    o_proj_ = register_module("o_proj", llama_linear(spec.width, spec.width));
  }

  at::Tensor forward(const at::Tensor& x) const {
    const at::Tensor in = enter_ ? enter_(x) : x;
    // q, k and v belong to this rank's heads. The layers may communicate, so all ranks must call them in one
    // order.
    const at::Tensor q = q_proj_->forward(in);
    const at::Tensor k = k_proj_->forward(in);
    const at::Tensor v = v_proj_->forward(in);
    return o_proj_->forward(causal_attention(rotated_qkv(q, k, v, *table_), q.size(2) / head_width_));
  }

  // Shards by whole heads: each rank computes its keys and values, the queries that share them, and their
  // part of the projection.
  void shard(ModelSharder& sharder) override {
    refuse_unless_divisible("model.heads", "heads", heads_, sharder.size());
    refuse_unless_divisible("model.kv_heads", "key and value heads", kv_heads_, sharder.size());
    enter_ = sharder.by_columns({q_proj_.get(), k_proj_.get(), v_proj_.get()}, sharder.name_of(*this));
    sharder.by_rows(*o_proj_);
  }

 private:
  static void refuse_unless_divisible(const char* key, const char* what, int64_t count, int ranks) {
    if (count % ranks == 0) return;
    throw ConfigError(key,
                      fmt::format("{} {} cannot be divided among the {} ranks of the tensor axis, which take "
                                  "whole heads: use {} = {}, or a tensor axis that divides {}",
                                  count, what, ranks, key, (count / ranks + 1) * ranks, count));
  }

  int64_t heads_, kv_heads_, head_width_;
  std::shared_ptr<const RotaryTable> table_;
  TensorFunction enter_;  // empty if the layers are whole
  std::shared_ptr<LinearImpl> q_proj_, k_proj_, v_proj_, o_proj_;
};

class SwiGlu : public torch::nn::Module, public TensorShardable {
 public:
  explicit SwiGlu(const ModelSpec& spec) {
    const int64_t hidden = hidden_width(spec);
    gate_proj_ = register_module("gate_proj", llama_linear(spec.width, hidden));
    up_proj_ = register_module("up_proj", llama_linear(spec.width, hidden));
    down_proj_ = register_module("down_proj", llama_linear(hidden, spec.width));
  }

  at::Tensor forward(const at::Tensor& x) const {
    const at::Tensor in = enter_ ? enter_(x) : x;
    const at::Tensor gate = gate_proj_->forward(in);
    return down_proj_->forward(at::silu(gate) * up_proj_->forward(in));
  }

  void shard(ModelSharder& sharder) override {
    enter_ = sharder.by_columns({gate_proj_.get(), up_proj_.get()}, sharder.name_of(*this));
    sharder.by_rows(*down_proj_);
  }

 private:
  TensorFunction enter_;  // empty if the layers are whole
  std::shared_ptr<LinearImpl> gate_proj_, up_proj_, down_proj_;
};

class LlamaBlock : public torch::nn::Module {
 public:
  LlamaBlock(const ModelSpec& spec, const std::shared_ptr<const RotaryTable>& table) {
    self_attn_ = register_module("self_attn", std::make_shared<LlamaAttention>(spec, table));
    mlp_ = register_module("mlp", std::make_shared<SwiGlu>(spec));
    before_attention_ =
        register_module("input_layernorm", std::make_shared<RmsNorm>(spec.width, spec.norm_eps));
    before_mlp_ =
        register_module("post_attention_layernorm", std::make_shared<RmsNorm>(spec.width, spec.norm_eps));
  }

  at::Tensor forward(const at::Tensor& x) const {
    const at::Tensor h = self_attn_->forward(before_attention_->forward(x)).add_(x);
    return mlp_->forward(before_mlp_->forward(h)).add_(h);
  }

 private:
  std::shared_ptr<LlamaAttention> self_attn_;
  std::shared_ptr<SwiGlu> mlp_;
  std::shared_ptr<RmsNorm> before_attention_, before_mlp_;
};

class LlamaDecoder : public torch::nn::Module {
 public:
  LlamaDecoder(const ModelSpec& spec, int64_t vocabulary) {
    const auto table =
        std::make_shared<const RotaryTable>(spec.tokens, spec.width / spec.heads, spec.rope_theta);
    embed_tokens = register_module("embed_tokens", std::make_shared<EmbeddingTable>(vocabulary, spec.width));
    torch::nn::ModuleList list;
    layers.reserve(static_cast<size_t>(spec.layers));
    for (int64_t i = 0; i < spec.layers; ++i) {
      layers.push_back(std::make_shared<LlamaBlock>(spec, table));
      list->push_back(layers.back());
    }
    register_module("layers", list);
    norm = register_module("norm", std::make_shared<RmsNorm>(spec.width, spec.norm_eps));
  }

  std::shared_ptr<EmbeddingTable> embed_tokens;
  std::vector<std::shared_ptr<LlamaBlock>> layers;
  std::shared_ptr<RmsNorm> norm;
};

class Llama : public torch::nn::Module, public TensorShardable {
 public:
  Llama(const ModelSpec& spec, int64_t vocabulary) : tokens_(spec.tokens) {
    decoder_ = register_module("model", std::make_shared<LlamaDecoder>(spec, vocabulary));
    head_ = decoder_->embed_tokens;
    if (!spec.tied)
      head_ = register_module("lm_head", std::make_shared<EmbeddingTable>(vocabulary, spec.width));
  }

  // Returns the logits [n, t, vocabulary] of tokens [n, t] int64, for t up to model.tokens. If the vocabulary
  // is sharded, these are only this rank's logits, as the model's loss expects.
  at::Tensor forward(const at::Tensor& tokens) const {
    at::Tensor x = embed(tokens);
    for (const auto& layer : decoder_->layers) x = layer->forward(x);
    return logits(x);
  }

  // Shards the vocabulary of the embedding, the head and the loss. Attention and feed-forward layers shard
  // themselves.
  void shard(ModelSharder& sharder) override {
    const int64_t width = head_->weight.size(1), begin = decoder_->embed_tokens->shard(sharder);
    if (head_ != decoder_->embed_tokens) sharder.rows_of_table(head_->weight);
    enter_head_ = shard_vocabulary(sharder, begin);
    sharder.sharding.transformer_layers = std::ssize(decoder_->layers);
    sharder.sharding.width = width;
    sharder.sharding.transformer_prefix = "model.layers.";
  }

  // The blocks are the embedding, each transformer block and the head.
  std::vector<Block> blocks() {
    std::vector<Block> blocks;
    blocks.reserve(decoder_->layers.size() + 2);
    blocks.push_back(make_block("embedding", {decoder_->embed_tokens},
                                [this](const at::Tensor& tokens) { return embed(tokens); }));
    for (size_t i = 0; i < decoder_->layers.size(); ++i) {
      blocks.push_back(
          make_block(fmt::format("layers.{}", i), {decoder_->layers[i]},
                     [layer = decoder_->layers[i].get()](const at::Tensor& x) { return layer->forward(x); }));
    }
    blocks.push_back(
        make_block("head", {decoder_->norm, head_}, [this](const at::Tensor& x) { return logits(x); }));
    return blocks;
  }

 private:
  at::Tensor embed(const at::Tensor& tokens) const {
    if (tokens.dim() != 2 || tokens.size(1) > tokens_) {
      throw ConfigError("model.tokens",
                        fmt::format("llama takes [batch, up to {} tokens], got a batch of shape [{}]",
                                    tokens_, fmt::join(tokens.sizes(), ", ")));
    }
    return decoder_->embed_tokens->vectors_of(tokens);
  }
  at::Tensor logits(const at::Tensor& x) const {
    const at::Tensor normed = decoder_->norm->forward(x);
    return linear(enter_head_ ? enter_head_(normed) : normed, head_->weight, {}, WeightLayout::kOutIn);
  }

  int64_t tokens_;
  TensorFunction enter_head_;  // empty if the vocabulary is whole
  std::shared_ptr<LlamaDecoder> decoder_;
  std::shared_ptr<EmbeddingTable> head_;  // the embedding itself if model.tied
};

}  // namespace

ModelFactory make_llama(const ModelSpec& spec, int64_t vocabulary) {
  return [spec, vocabulary] { return model_of(std::make_shared<Llama>(spec, vocabulary)); };
}

}  // namespace starling
