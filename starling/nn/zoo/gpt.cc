// GPT-2 (Radford et al., Language Models are Unsupervised Multitask Learners, 2019) with the names, shapes,
// mathematics and initialization of Hugging Face's GPT2LMHeadModel. Weights are drawn from N(0, 0.02²), and
// projections onto the residual stream from N(0, 0.02² / (2 layers)). GELU has its tanh form. The output
// layer is the token embedding ("tied"), so no lm_head.weight is stored.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/types.h>

#include <cmath>
#include <limits>

#include "starling/base/error.h"
#include "starling/nn/layers/bias_gelu.h"
#include "starling/nn/layers/causal_attention.h"
#include "starling/nn/layers/keyed_dropout.h"
#include "starling/nn/layers/linear.h"
#include "starling/nn/tensor_parallel/shard_model.h"
#include "starling/nn/zoo/embedding_table.h"
#include "starling/nn/zoo/zoo_models.h"

namespace starling {
namespace {

class LayerNorm : public torch::nn::Module {
 public:
  explicit LayerNorm(int64_t width) {
    weight_ = register_parameter("weight", torch::ones({width}));
    bias_ = register_parameter("bias", torch::zeros({width}));
  }
  at::Tensor forward(const at::Tensor& x) { return at::layer_norm(x, {x.size(-1)}, weight_, bias_, 1e-5); }

 private:
  at::Tensor weight_, bias_;
};

std::shared_ptr<LinearImpl> residual_projection(int64_t in, int64_t out, int64_t layers) {
  auto layer = std::make_shared<LinearImpl>(in, out, WeightLayout::kInOut);
  torch::nn::init::normal_(layer->weight, 0.0, 0.02 / std::sqrt(2.0 * static_cast<double>(layers)));
  return layer;
}

// Computes softmax(q k^T / sqrt(head width)) v with dropout of the attention weights, which the fused kernel
// cannot draw by key. All tensors are [n, heads, t, head width].
at::Tensor attention_with_dropout(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const Dropout& dropout) {
  const int64_t t = q.size(2);
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor later = torch::ones({t, t}, q.options().dtype(torch::kBool)).triu(1);
  const at::Tensor scores =
      at::matmul(q * scale, k.transpose(2, 3)).masked_fill(later, -std::numeric_limits<double>::infinity());
  return at::matmul(dropout(at::softmax(scores, -1), true), v);
}

// Dropout numbers its places as follows. Place 0 is the embedding. Block i has 3 i + 1 (attention weights), 3
// i + 2 (attention) and 3 i + 3 (feed-forward).

// Causal self-attention, softmax(q k^T / sqrt(head width)) v, of x [n, t, width].
class Attention : public torch::nn::Module, public TensorShardable {
 public:
  Attention(const ModelSpec& spec, const SharedKeys& samples, int64_t block)
      : heads_(spec.heads),
        head_width_(spec.width / spec.heads),
        dropout_(spec.dropout, samples, 3 * block + 1) {
    c_attn_ = register_module("c_attn",
                              std::make_shared<LinearImpl>(spec.width, 3 * spec.width, WeightLayout::kInOut));
    c_proj_ = register_module("c_proj", residual_projection(spec.width, spec.width, spec.layers));
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor qkv = c_attn_->forward(x);
    const int64_t n = x.size(0), t = x.size(1), width = qkv.size(2) / 3;  // width of this rank's heads
    if (!dropout_.on(is_training())) return c_proj_->forward(causal_attention(qkv, width / head_width_));
    const auto by_head = [&](const at::Tensor& part) {
      return part.view({n, t, width / head_width_, head_width_}).transpose(1, 2);
    };
    const std::vector<at::Tensor> parts = qkv.chunk(3, 2);
    const at::Tensor y =
        attention_with_dropout(by_head(parts[0]), by_head(parts[1]), by_head(parts[2]), dropout_);
    return c_proj_->forward(y.transpose(1, 2).reshape({n, t, width}));
  }

  // Shards by whole heads: each rank computes the queries, keys and values of its heads and their part of
  // the projection.
  void shard(ModelSharder& sharder) override {
    if (heads_ % sharder.size() != 0) {
      throw ConfigError(
          "model.heads",
          fmt::format(
              "{} heads cannot be divided among the {} ranks of the tensor axis, which take whole heads: "
              "use model.heads = {}, or a tensor axis that divides {}",
              heads_, sharder.size(), (heads_ / sharder.size() + 1) * sharder.size(), heads_));
    }
    sharder.by_columns(*c_attn_, 3);
    sharder.by_rows(*c_proj_);
  }

 private:
  int64_t heads_, head_width_;
  Dropout dropout_;
  std::shared_ptr<LinearImpl> c_attn_, c_proj_;
};

class FeedForward : public torch::nn::Module, public TensorShardable {
 public:
  explicit FeedForward(const ModelSpec& spec) {
    c_fc_ = register_module("c_fc",
                            std::make_shared<LinearImpl>(spec.width, 4 * spec.width, WeightLayout::kInOut));
    c_proj_ = register_module("c_proj", residual_projection(4 * spec.width, spec.width, spec.layers));
  }
  at::Tensor forward(const at::Tensor& x) {
    if (c_fc_->has_leave()) return c_proj_->forward(at::gelu(c_fc_->forward(x), "tanh"));
    const at::Tensor hidden = linear(c_fc_->entered(x), c_fc_->weight, {}, WeightLayout::kInOut);
    return c_proj_->forward(bias_gelu(hidden, c_fc_->bias));
  }

  void shard(ModelSharder& sharder) override { sharder.in_pairs({c_fc_.get(), c_proj_.get()}); }

 private:
  std::shared_ptr<LinearImpl> c_fc_, c_proj_;
};

class GptBlock : public torch::nn::Module {
 public:
  GptBlock(const ModelSpec& spec, const SharedKeys& samples, int64_t block)
      : drop_attention_(spec.dropout, samples, 3 * block + 2),
        drop_mlp_(spec.dropout, samples, 3 * block + 3) {
    ln_1_ = register_module("ln_1", std::make_shared<LayerNorm>(spec.width));
    attn_ = register_module("attn", std::make_shared<Attention>(spec, samples, block));
    ln_2_ = register_module("ln_2", std::make_shared<LayerNorm>(spec.width));
    mlp_ = register_module("mlp", std::make_shared<FeedForward>(spec));
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = drop_attention_(attn_->forward(ln_1_->forward(x)), is_training()).add_(x);
    return drop_mlp_(mlp_->forward(ln_2_->forward(h)), is_training()).add_(h);
  }

 private:
  Dropout drop_attention_, drop_mlp_;
  std::shared_ptr<LayerNorm> ln_1_, ln_2_;
  std::shared_ptr<Attention> attn_;
  std::shared_ptr<FeedForward> mlp_;
};

class Transformer : public torch::nn::Module {
 public:
  Transformer(const ModelSpec& spec, int64_t vocabulary, const SharedKeys& samples)
      : drop_(spec.dropout, samples, 0) {
    wte = register_module("wte", std::make_shared<EmbeddingTable>(vocabulary, spec.width));
    wpe = register_module("wpe", std::make_shared<EmbeddingTable>(spec.tokens, spec.width));
    torch::nn::ModuleList h;
    for (int64_t i = 0; i < spec.layers; ++i) {
      blocks.push_back(std::make_shared<GptBlock>(spec, samples, i));
      h->push_back(blocks.back());
    }
    register_module("h", h);
    ln_f = register_module("ln_f", std::make_shared<LayerNorm>(spec.width));
  }

  at::Tensor embed(const at::Tensor& tokens) {
    const at::Tensor x = wte->vectors_of(tokens) + wpe->weight.narrow(0, 0, tokens.size(1));
    return drop_(x, is_training());
  }

  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = embed(tokens);
    for (auto& block : blocks) x = block->forward(x);
    return ln_f->forward(x);
  }

  std::shared_ptr<EmbeddingTable> wte, wpe;
  std::vector<std::shared_ptr<GptBlock>> blocks;
  std::shared_ptr<LayerNorm> ln_f;

 private:
  Dropout drop_;
};

class Gpt : public torch::nn::Module, public TensorShardable {
 public:
  Gpt(const ModelSpec& spec, int64_t vocabulary, const SharedKeys& samples) : tokens_(spec.tokens) {
    transformer_ = register_module("transformer", std::make_shared<Transformer>(spec, vocabulary, samples));
  }

  // Returns the logits [n, t, vocabulary] of tokens [n, t] int64, for t up to model.tokens. If the vocabulary
  // is sharded, these are only this rank's logits, as the model's loss expects.
  at::Tensor forward(const at::Tensor& tokens) {
    check(tokens);
    return logits(transformer_->forward(tokens));
  }

  // Shards the vocabulary of the embedding, and with it that of the head and the loss. Attention and
  // feed-forward layers shard themselves.
  void shard(ModelSharder& sharder) override {
    Transformer& t = *transformer_;
    enter_head_ = shard_vocabulary(sharder, t.wte->shard(sharder));
    sharder.sharding.transformer_layers = static_cast<int64_t>(t.blocks.size());
    sharder.sharding.width = t.wte->weight.size(1);
    sharder.sharding.transformer_prefix = "transformer.h.";
  }

  // The blocks are the embedding, each transformer block and the head, whose weight is the embedding's
  // weight.
  std::vector<Block> blocks() {
    Transformer& t = *transformer_;
    std::vector<Block> blocks;
    blocks.push_back(make_block("embedding", {t.wte, t.wpe}, [this](const at::Tensor& tokens) {
      check(tokens);
      return transformer_->embed(tokens);
    }));
    for (size_t i = 0; i < t.blocks.size(); ++i) {
      blocks.push_back(
          make_block(fmt::format("h.{}", i), {t.blocks[i]},
                     [block = t.blocks[i].get()](const at::Tensor& x) { return block->forward(x); }));
    }
    blocks.push_back(make_block("head", {t.ln_f, t.wte}, [this](const at::Tensor& x) {
      return logits(transformer_->ln_f->forward(x));
    }));
    return blocks;
  }

 private:
  void check(const at::Tensor& tokens) const {
    if (tokens.dim() != 2 || tokens.size(1) > tokens_) {
      throw ConfigError("model.tokens",
                        fmt::format("gpt takes [batch, up to {} tokens], got a batch of shape [{}]", tokens_,
                                    fmt::join(tokens.sizes(), ", ")));
    }
  }
  at::Tensor logits(const at::Tensor& x) const {
    const at::Tensor in = enter_head_ ? enter_head_(x) : x;
    return linear(in, transformer_->wte->weight, {}, WeightLayout::kOutIn);
  }

  int64_t tokens_;
  TensorFunction enter_head_;  // empty if the vocabulary is whole
  std::shared_ptr<Transformer> transformer_;
};

}  // namespace

ModelFactory make_gpt(const ModelSpec& spec, int64_t vocabulary) {
  return [spec, vocabulary] {
    return model_with_keys([&](const SharedKeys& samples) {
      return model_of(std::make_shared<Gpt>(spec, vocabulary, samples));
    });
  };
}

}  // namespace starling
