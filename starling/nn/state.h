// Copies a module's parameters and buffers to and from named tensors and files.
#pragma once

#include <torch/nn/module.h>

#include <string>

#include "starling/nn/safetensors/safetensors.h"

namespace starling {

// Returns parameters and buffers under their dotted names, as PyTorch's state_dict() does. The tensors are
// the module's own memory, not copies.
TensorMap state_of(const torch::nn::Module& module);

// Copies the file's tensors into the module and converts between floating-point types. The file's names may
// have one leading "transformer." that the module's names lack, or the reverse. Of a GPT-2 file, the
// attention masks ("….attn.bias") are ignored, and of a Llama file, the frequencies
// ("….rotary_emb.inv_freq"). If the output layer of the module is its token embedding, lm_head.weight must
// equal the embedding. If a tensor does not fit, nothing is copied.
//
// If `strict` is true, the file and the module must have the same tensors. Otherwise only the tensors that
// both have are copied. A shape that differs is always an error. So is a tensor that holds integers on one
// side only (except num_batches_tracked), and a file that shares no name with the module. Errors: DataError
// that names `from` (a path for the message), the first tensor that differs, and both shapes or types.
void load_into(torch::nn::Module& module, const TensorFile& file, bool strict = true,
               const std::string& from = "file");

// Reads a file with read_weights(), safetensors or .pt, and copies it into the module with load_into().
void load_model(torch::nn::Module& module, const std::string& path, bool strict = true);

// Writes state_of(module) with write_weights(). The ending of the path decides the format.
void save_model(const torch::nn::Module& module, const std::string& path);

}  // namespace starling
