"""Model files move between Starling and PyTorch both ways, with equal outputs.

The counterparts are torchvision's ResNets and Hugging Face's GPT-2 and Llama.
"""
import unittest

import torch
import torchvision
import transformers
from safetensors.torch import load_file, save_file

from lenet5 import LeNet5
from peer import MODEL_IO, STARLING, FolderTest, call

TOLERANCE = 1e-5


def gpt2(layers=2, width=48, heads=4, tokens=32, vocabulary=61):
    config = transformers.GPT2Config(
        vocab_size=vocabulary, n_positions=tokens, n_embd=width, n_layer=layers, n_head=heads,
        activation_function="gelu_new", bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return transformers.GPT2LMHeadModel(config)


def llama(layers=2, width=48, heads=4, kv_heads=2, hidden=80, tokens=32, vocabulary=61, theta=10000.0, eps=1e-5, tied=False):
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, max_position_embeddings=tokens, rms_norm_eps=eps, tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": theta})
    return transformers.LlamaForCausalLM(config)


class Models(FolderTest):
    def check_same(self, name, peer, x, outputs, *options):
        """Loads Starling's file into the peer's model and the peer's file into Starling's.

        Compares their outputs.
        """
        ours = self.dir / "ours.safetensors"
        call(MODEL_IO, "save", name, ours, *options)
        state = load_file(ours)
        unexpected = self.load(peer, state)
        self.assertEqual([], unexpected)
        self.check_outputs(name, ours, peer, x, outputs, *options)

        torch.manual_seed(5)
        with torch.no_grad():
            for parameter in peer.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.01)
        theirs = self.dir / "theirs.safetensors"
        tied = getattr(getattr(peer, "config", None), "tie_word_embeddings", False)
        save_file({k: v for k, v in peer.state_dict().items() if not (tied and k == "lm_head.weight")}, theirs)
        self.check_outputs(name, theirs, peer, x, outputs, *options)

    def load(self, peer, state):
        missing, unexpected = peer.load_state_dict(state, strict=False)
        tied = getattr(getattr(peer, "config", None), "tie_word_embeddings", False)
        self.assertEqual(["lm_head.weight"] if tied else [], missing)
        return unexpected

    def check_outputs(self, name, file, peer, x, outputs, *options):
        save_file({"input": x}, self.dir / "x.safetensors")
        for mode in ("eval", "train"):
            call(MODEL_IO, "forward", name, file, self.dir / "x.safetensors", self.dir / "y.safetensors",
                 f"mode={mode}", *options)
            got = load_file(self.dir / "y.safetensors")["output"]
            kept = {k: v.clone() for k, v in peer.state_dict().items()}
            peer.train(mode == "train")
            with torch.no_grad():
                want = outputs(peer(x))
            peer.load_state_dict(kept)
            self.assertEqual(want.shape, got.shape)
            difference = ((got - want).abs().max() / want.abs().max()).item()
            self.assertLessEqual(difference, TOLERANCE, f"{name} {mode}")

    def test_resnet18(self):
        self.check_same("resnet18", torchvision.models.resnet18(), torch.randn(4, 3, 96, 96), lambda y: y,
                        "channels=3", "image=96", "classes=1000", "stem=imagenet")

    def test_resnet34(self):
        self.check_same("resnet34", torchvision.models.resnet34(num_classes=7), torch.randn(4, 3, 64, 64), lambda y: y,
                        "channels=3", "image=64", "classes=7", "stem=imagenet")

    def test_resnet50(self):
        self.check_same("resnet50", torchvision.models.resnet50(), torch.randn(4, 3, 96, 96), lambda y: y,
                        "channels=3", "image=96", "classes=1000", "stem=imagenet")

    def test_resnet18_with_cifar_stem(self):
        peer = torchvision.models.resnet18(num_classes=10)
        peer.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)
        peer.maxpool = torch.nn.Identity()
        self.check_same("resnet18", peer, torch.randn(8, 3, 32, 32), lambda y: y,
                        "channels=3", "image=32", "classes=10", "stem=auto")

    def test_gpt(self):
        self.check_same("gpt", gpt2(), torch.randint(0, 61, (3, 32)), lambda y: y.logits)

    def test_gpt_of_fewer_tokens_than_it_holds(self):
        self.check_same("gpt", gpt2(layers=3, width=64, heads=2), torch.randint(0, 61, (2, 11)), lambda y: y.logits,
                        "layers=3", "width=64", "heads=2")

    def test_gpt_through_save_pretrained_and_from_pretrained(self):
        peer = gpt2()
        peer.save_pretrained(self.dir / "hf")
        x = torch.randint(0, 61, (2, 32))
        self.check_outputs("gpt", self.dir / "hf" / "model.safetensors", peer, x, lambda y: y.logits)
        call(MODEL_IO, "save", "gpt", self.dir / "hf" / "model.safetensors", "seed=9")
        ours = transformers.GPT2LMHeadModel.from_pretrained(self.dir / "hf")
        self.check_outputs("gpt", self.dir / "hf" / "model.safetensors", ours, x, lambda y: y.logits)

    def test_gpt_in_shards_of_hugging_face(self):
        peer = gpt2()
        peer.save_pretrained(self.dir / "hf", max_shard_size="50KB")
        index = self.dir / "hf" / "model.safetensors.index.json"
        self.assertTrue(index.exists())
        self.check_outputs("gpt", index, peer, torch.randint(0, 61, (2, 32)), lambda y: y.logits)

    def test_llama_with_grouped_queries(self):
        self.check_same("llama", llama(), torch.randint(0, 61, (3, 32)), lambda y: y.logits, "kv_heads=2", "hidden=80")

    def test_llama_with_tied_embeddings(self):
        self.check_same("llama", llama(tied=True), torch.randint(0, 61, (3, 32)), lambda y: y.logits, "kv_heads=2", "hidden=80",
                        "tied=true")

    def test_llama_with_one_key_another_base_another_epsilon_and_fewer_tokens(self):
        peer = llama(layers=3, width=64, heads=8, kv_heads=1, hidden=96, tokens=600, theta=500000.0, eps=1e-3)
        for tokens in (11, 600):  # by ATen's attention, and past the lengths of Starling's own
            self.check_same("llama", peer, torch.randint(0, 61, (2, tokens)), lambda y: y.logits, "layers=3", "width=64", "heads=8",
                            "kv_heads=1", "hidden=96", "tokens=600", "rope_theta=500000", "norm_eps=0.001")

    def test_llama_with_a_key_for_every_query(self):
        peer = llama(width=64, heads=4, kv_heads=4, hidden=192)
        self.check_same("llama", peer, torch.randint(0, 61, (2, 32)), lambda y: y.logits, "width=64")  # hidden: 8/3 of 64, rounded up

    def test_llama_through_save_pretrained_and_from_pretrained(self):
        for tied in (False, True):
            peer = llama(tied=tied)
            options = ["kv_heads=2", "hidden=80", "tied=" + str(tied).lower()]
            file = self.dir / f"hf-{tied}" / "model.safetensors"
            peer.save_pretrained(file.parent)
            x = torch.randint(0, 61, (2, 32))
            self.check_outputs("llama", file, peer, x, lambda y: y.logits, *options)
            call(MODEL_IO, "save", "llama", file, "seed=9", *options)
            ours = transformers.LlamaForCausalLM.from_pretrained(file.parent)
            self.check_outputs("llama", file, ours, x, lambda y: y.logits, *options)

    def test_llama_of_hugging_face_trains_and_is_saved_under_its_names(self):
        peer = llama()
        peer.save_pretrained(self.dir / "hf")
        file = self.dir / "hf" / "model.safetensors"
        for rate in (0, 0.01):
            saved = self.dir / f"saved-{rate}.safetensors"
            call(STARLING, "train", "-q", "--run-dir", self.dir / f"run-{rate}", "--model", "llama", "--data", "grammar", "--init", file,
                 "--save", saved, "--steps", 2, "--lr", rate, "--set", "data.samples=32", "--set", "data.test_samples=8", "--set",
                 "model.layers=2", "--set", "model.width=48", "--set", "model.heads=4", "--set", "model.kv_heads=2", "--set",
                 "model.hidden=80", "--set", "model.tokens=32", "--set", "model.vocabulary=61")
            state, first = load_file(saved), peer.state_dict()
            self.assertEqual(set(first), set(state))
            for name, tensor in state.items():
                self.assertEqual(rate == 0, torch.equal(first[name], tensor), name)
        file.write_bytes(saved.read_bytes())
        ours = transformers.LlamaForCausalLM.from_pretrained(self.dir / "hf")
        self.check_outputs("llama", saved, ours, torch.randint(0, 61, (2, 32)), lambda y: y.logits, "kv_heads=2", "hidden=80")

    def test_llama_of_a_base_that_is_half_precision(self):
        llama().to(torch.bfloat16).save_pretrained(self.dir / "hf")
        file = self.dir / "hf" / "model.safetensors"
        # from_pretrained, because to() also rounds the frequencies of the rotations, which are no weights.
        peer = transformers.LlamaForCausalLM.from_pretrained(self.dir / "hf", dtype=torch.float32)
        self.check_outputs("llama", file, peer, torch.randint(0, 61, (2, 32)), lambda y: y.logits, "kv_heads=2", "hidden=80")

    def test_lenet5(self):
        self.check_same("lenet5", LeNet5(), torch.randn(16, 1, 28, 28), lambda y: y)

    def test_another_model_is_refused_with_both_shapes(self):
        file = self.dir / "w.safetensors"
        save_file(LeNet5(classes=7).state_dict(), file)
        save_file({"input": torch.randn(1, 1, 28, 28)}, self.dir / "x.safetensors")
        with self.assertRaisesRegex(RuntimeError, r"fc3\.bias.*\[7\].*\[10\]"):
            call(MODEL_IO, "forward", "lenet5", file, self.dir / "x.safetensors", self.dir / "y.safetensors")


if __name__ == "__main__":
    unittest.main()
