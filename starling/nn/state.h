// A module's parameters and buffers by name, and back.
#pragma once

#include <torch/nn/module.h>

#include <string>

#include "starling/nn/safetensors.h"

namespace starling {

// Parameters and buffers under their dotted names, as PyTorch's state_dict(): the module's own memory, not
// copies.
TensorMap state_of(const torch::nn::Module& module);

// Copies the file's tensors into the module's, converting between floating-point types. Names may lack or
// have one leading "transformer."; of a GPT-2 file the attention masks ("….attn.bias") are left out, and an
// lm_head.weight must equal the token embedding that it is tied to. Nothing is copied unless everything fits.
// strict: every tensor of the module must be in the file and the other way round; else only those of both are
// copied, though a shape that differs is an error always, and so is a file that shares no name with the
// module. Errors: DataError naming `from` (a path for the message), the first tensor that differs and both
// shapes.
void load_into(torch::nn::Module& module, const TensorFile& file, bool strict = true,
               const std::string& from = "file");

// read_safetensors + load_into.
void load_model(torch::nn::Module& module, const std::string& path, bool strict = true);

// state_of + write_safetensors, with the metadata {"format": "pt"} that Hugging Face asks for; a path that
// ends in .safetensors.index.json is written in shards of at most 5 GB.
void save_model(const torch::nn::Module& module, const std::string& path);

}  // namespace starling
