"""Our parsers of safetensors and of its index accept and refuse the files that the reference does.

The reference is the package `safetensors` for files, and Python's json for indexes. The files are mutations
of files that the package wrote. STARLING_DIFFERENCES=N sets the number of files, by default 20,000. The
random numbers are fixed.
"""
import collections
import json
import os
import random
import re
import struct
import subprocess
import unittest

import torch
from safetensors import SafetensorError, deserialize
from safetensors.torch import save

from peer import BUILD

COUNT = int(os.environ.get("STARLING_DIFFERENCES", 20_000))
DTYPES = ["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL"]

# What we refuse though the reference accepts it, and why. Each is a choice; the other direction has no
# exception.
STRICTER = [
    (r"unknown dtype", "torch's CPU kernels have no such dtype, or none that Starling trains with"),
    (r"unknown field|the field .* twice", "the format names three fields; the reference ignores others"),
    (r"the key .* twice|occurs twice", "the reference keeps the last of two equal names"),
    (r"null where the format has none", "the reference takes null for no metadata"),
    (r"JSON array where the format has none", "the reference's JSON library takes a list for an object"),
    (r"does not begin with \{", "blanks before the header, which the format does not allow"),
    (r"more than 64 dimensions", "torch has at most 64"),
    (r"is too large|overflows", "numbers above 2^63, which torch's sizes cannot hold"),
]


def header_of(file):
    length = struct.unpack("<Q", file[:8])[0]
    return file[8:8 + length], file[8 + length:]


def with_header(header, data):
    return struct.pack("<Q", len(header)) + header + data


def real_files():
    one = {"a": torch.ones(2), "b.weight": torch.zeros(2, 3, dtype=torch.bfloat16)}
    every = {f"t{i}": torch.ones(i, 2).to(t) for i, t in enumerate([torch.float64, torch.float32, torch.int64, torch.bool, torch.uint8])}
    return [save(one), save(one, metadata={"format": "pt", "ünï": "\"x\"\n"}), save(every), save({"scalar": torch.tensor(2.5)}), save({})]


class Mutations:
    NUMBERS = [0, 1, 2, 3, 4, 8, 12, 16, 255, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, -1, -2**63, 1.0, 2.5, 1e3]
    VALUES = NUMBERS + [None, True, "", "F32", "x", [], [0], [0, 8], {}, {"dtype": "F32"}, [[1]], "\ud83e", "é"]
    PIECES = [b"{", b"}", b"[", b"]", b",", b":", b"\"", b"\\u0000", b"\\ud800", b"null", b"1e2", b"-0", b"0", b" ", b"\n", b"\0", b"\xff", b"\xc3\xa9",
              b"\"dtype\"", b"\"shape\":[]", b"\"__metadata__\":{}", b"[1,2]", b"//x", b"\xef\xbb\xbf", b"NaN"]

    def __init__(self, seed):
        self.random = random.Random(seed)

    def of_bytes(self, text):
        text = bytearray(text)
        for _ in range(self.random.choice([1, 1, 1, 2, 4])):
            at = self.random.randrange(len(text) + 1)
            kind = self.random.randrange(5)
            if kind == 0 and at < len(text):
                text[at] ^= 1 << self.random.randrange(8)
            elif kind == 1:
                text[at:at] = self.random.choice(self.PIECES)
            elif kind == 2:
                del text[at:at + self.random.choice([1, 1, 2, 8])]
            elif kind == 3:
                end = at + self.random.randrange(1, 16)
                text[at:at] = text[at:end]
            else:
                text[at:at + 1] = self.random.choice(self.PIECES)
        return bytes(text)

    def of_tree(self, tree):
        """Changes one value or key somewhere in a JSON value."""
        if isinstance(tree, dict) and tree and self.random.random() < 0.8:
            key = self.random.choice(list(tree))
            kind = self.random.randrange(6)
            changed = dict(tree)
            if kind == 0:
                del changed[key]
            elif kind == 1:
                changed[self.random.choice(["x", "", "__metadata__", "dtype", "shape", "data_offsets", key + "0"])] = changed.pop(key)
            elif kind == 2:
                changed[self.random.choice(["x", "extra", "__metadata__", "shape"])] = self.random.choice(self.VALUES)
            else:
                changed[key] = self.of_tree(changed[key])
            return changed
        if isinstance(tree, list) and tree and self.random.random() < 0.9:
            changed = list(tree)
            at = self.random.randrange(len(tree))
            kind = self.random.randrange(4)
            if kind == 0:
                del changed[at]
            elif kind == 1:
                changed.insert(at, self.random.choice(self.VALUES))
            else:
                changed[at] = self.of_tree(changed[at])
            return changed
        if isinstance(tree, int) and not isinstance(tree, bool) and self.random.random() < 0.5:
            return tree + self.random.choice([-8, -4, -2, -1, 1, 2, 4, 8])
        if tree in DTYPES and self.random.random() < 0.7:
            return self.random.choice(DTYPES + ["F8_E4M3", "F8_E5M2", "U16", "U32", "U64", "C64", "f32", "F4", ""])
        return self.random.choice(self.VALUES)

    def of_json(self, text):
        tree = json.loads(text)
        for _ in range(self.random.choice([1, 1, 2, 3])):
            tree = self.of_tree(tree)
        return json.dumps(tree, ensure_ascii=self.random.random() < 0.5).encode("utf-8", "surrogatepass")

    def of_file(self, file):
        header, data = header_of(file)
        kind = self.random.randrange(10)
        if kind < 4:
            return with_header(self.of_json(header), data)
        if kind < 8:
            return with_header(self.of_bytes(header), data)
        if kind == 8:
            return self.of_bytes(file)
        return with_header(header, data[:self.random.randrange(len(data) + 1)] + b"z" * self.random.randrange(3))


def our_verdicts(kind, files):
    """Returns (content, None) or (None, reason) for each file."""
    stream = b"".join(kind + struct.pack("<Q", len(f)) + f for f in files)
    done = subprocess.run([str(BUILD / "tests" / "file_verdicts")], input=stream, capture_output=True, timeout=1200)
    if done.returncode != 0:
        raise AssertionError(f"file_verdicts: status {done.returncode}: {done.stderr.decode()[-2000:]}")
    verdicts = []
    for line in done.stdout.decode(errors="replace").splitlines():
        word, _, rest = line.partition(" ")
        verdicts.append((json.loads(rest), None) if word == "accept" else (None, rest))
    assert len(verdicts) == len(files), (len(verdicts), len(files))
    return verdicts


def reference_of_file(file):
    try:
        return {name: [t["dtype"], t["shape"], len(t["data"])] for name, t in deserialize(file)}, None
    except (SafetensorError, UnicodeError, OverflowError) as error:
        return None, str(error)


def reference_of_index(text):
    def no_constant(word):
        raise ValueError(word)
    try:
        # RFC 8259, 8.1: a parser may ignore a byte order mark.
        tree = json.loads(text.decode("utf-8-sig"), parse_constant=no_constant)
        json.dumps(tree, ensure_ascii=False).encode()  # half of a surrogate pair is no character
        weight_map = tree["weight_map"]
        if not isinstance(weight_map, dict):
            raise TypeError("not an object")
        shards = collections.defaultdict(list)
        for tensor in sorted(weight_map, key=lambda name: name.encode()):
            shard = weight_map[tensor]
            if shard in ("", ".", "..") or "/" in shard or "\0" in shard:
                raise ValueError("not beside the index")
            shard.encode()
            shards[shard].append(tensor)
        return dict(shards), None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return None, str(error)


class Differences(unittest.TestCase):
    def test_files(self):
        mutations, files = Mutations(1), real_files()
        inputs = files + [mutations.of_file(mutations.random.choice(files)) for _ in range(COUNT)]
        counts = collections.Counter()
        for file, (ours, reason) in zip(inputs, our_verdicts(b"f", inputs)):
            theirs, refusal = reference_of_file(file)
            if ours is not None and theirs is not None:
                self.assertEqual(ours, theirs, file)
                counts["accepted"] += 1
            elif theirs is not None:
                choice = next((why for pattern, why in STRICTER if re.search(pattern, reason)), None)
                self.assertIsNotNone(choice, f"we refuse {file!r}: {reason}")
                counts[choice] += 1
            else:
                self.assertIsNone(ours, f"the reference refuses {file!r}: {refusal}")
                counts["refused"] += 1
        print(f"\n{len(inputs)} files:", *(f"\n  {n:8}  {what}" for what, n in counts.most_common()))
        self.assertGreater(counts["accepted"], COUNT // 100)
        self.assertGreater(counts["refused"], COUNT // 10)

    def test_indexes(self):
        mutations = Mutations(2)
        real = json.dumps({"metadata": {"total_size": 28}, "weight_map": {"a": "m-00001-of-00002.safetensors", "b.w": "m-00002-of-00002.safetensors"}})
        inputs = [real.encode()] + [(mutations.of_json if i % 2 else mutations.of_bytes)(real.encode()) for i in range(COUNT)]
        counts = collections.Counter()
        for text, (ours, reason) in zip(inputs, our_verdicts(b"i", inputs)):
            theirs, refusal = reference_of_index(text)
            if theirs is not None and ours is None and "nested deeper" in reason:
                counts["nested deeper than an index is"] += 1
                continue
            self.assertEqual(ours, theirs, f"{text!r}: ours {reason}, theirs {refusal}")
            counts["accepted" if ours is not None else "refused"] += 1
        print(f"\n{len(inputs)} indexes:", dict(counts))
        self.assertGreater(counts["accepted"], COUNT // 10)
        self.assertGreater(counts["refused"], COUNT // 10)


if __name__ == "__main__":
    unittest.main()
