"""Files saved by Starling load into torchvision's ResNets and Hugging Face's GPT-2 with the same outputs, and back."""
import unittest

import torch
import torchvision
import transformers
from safetensors.torch import load_file, save_file

from lenet5 import LeNet5
from peer import MODEL_IO, FolderTest, call

TOLERANCE = 1e-5


def gpt2(layers=2, width=48, heads=4, tokens=32, vocabulary=61):
    config = transformers.GPT2Config(
        vocab_size=vocabulary, n_positions=tokens, n_embd=width, n_layer=layers, n_head=heads,
        activation_function="gelu_new", bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return transformers.GPT2LMHeadModel(config)


class Models(FolderTest):
    def check_same(self, name, peer, x, outputs, *options):
        """Our file into their model and theirs into ours, in evaluation and in training."""
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
        save_file({k: v for k, v in peer.state_dict().items() if k != "lm_head.weight"}, theirs)
        self.check_outputs(name, theirs, peer, x, outputs, *options)

    def load(self, peer, state):
        missing, unexpected = peer.load_state_dict(state, strict=False)
        self.assertIn(missing, ([], ["lm_head.weight"]))
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
