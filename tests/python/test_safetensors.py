"""Starling's reader and writer of safetensors against the package `safetensors`, both ways."""
import json
import unittest

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from peer import MODEL_IO, FolderTest, call

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
          torch.uint8, torch.bool)


def samples():
    """Returns tensors of every type. They are equal at each call."""
    random = torch.Generator().manual_seed(1)
    tensors = {f"t.{i}": torch.randint(0, 2, (3, i + 1), generator=random).to(dtype) for i, dtype in enumerate(DTYPES)}
    tensors.update({"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3), "ünï \"code\"\n": torch.ones(5)})
    return tensors


class Safetensors(FolderTest):
    def assert_equal(self, want, got):
        self.assertEqual(set(want), set(got))
        for name, tensor in want.items():
            self.assertEqual(tensor.dtype, got[name].dtype, name)
            self.assertTrue(torch.equal(tensor, got[name]), name)

    def test_their_file_through_ours(self):
        save_file(samples(), self.dir / "theirs.safetensors", metadata={"format": "pt", "note": "a \"b\" ü"})
        call(MODEL_IO, "copy", self.dir / "theirs.safetensors", self.dir / "ours.safetensors")
        self.assert_equal(samples(), load_file(self.dir / "ours.safetensors"))
        with safe_open(self.dir / "ours.safetensors", "pt") as file:
            self.assertEqual({"format": "pt", "note": "a \"b\" ü"}, file.metadata())

    def test_the_same_tensors_give_the_same_bytes(self):
        tensors = {"b": torch.randn(3), "a": torch.randn(2, 2), "c": torch.ones(3, dtype=torch.uint8)}
        save_file(tensors, self.dir / "theirs.safetensors")
        call(MODEL_IO, "copy", self.dir / "theirs.safetensors", self.dir / "ours.safetensors")
        self.assertEqual((self.dir / "theirs.safetensors").read_bytes(), (self.dir / "ours.safetensors").read_bytes())

    def test_our_shards_are_theirs(self):
        save_file(samples(), self.dir / "theirs.safetensors")
        index = self.dir / "model.safetensors.index.json"
        call(MODEL_IO, "copy", self.dir / "theirs.safetensors", index, "shard_bytes=64")
        weight_map = json.loads(index.read_text())["weight_map"]
        self.assertGreater(len(set(weight_map.values())), 2)
        shards = {name: load_file(self.dir / name) for name in set(weight_map.values())}
        self.assert_equal(samples(), {name: shards[shard][name] for name, shard in weight_map.items()})

    def test_a_cut_file_is_refused(self):
        save_file(samples(), self.dir / "theirs.safetensors")
        cut = self.dir / "cut.safetensors"
        cut.write_bytes((self.dir / "theirs.safetensors").read_bytes()[:-1])
        with self.assertRaisesRegex(RuntimeError, "truncated"):
            call(MODEL_IO, "copy", cut, self.dir / "ours.safetensors")


if __name__ == "__main__":
    unittest.main()
