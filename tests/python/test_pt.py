"""Starling's reader and writer of .pt files against torch.save and torch.load, both ways."""
import collections
import io
import os
import random
import struct
import subprocess
import unittest
import unittest.mock
import zipfile

import torch
from safetensors.torch import load_file, save_file

from peer import BUILD, MODEL_IO, FolderTest, call
from test_safetensors import samples

COUNT = int(os.environ.get("STARLING_DIFFERENCES", 20_000)) // 10


class Evil:
    """A value whose pickle runs a command."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 2)
        self.norm = torch.nn.BatchNorm1d(2)
        self.tied = torch.nn.Linear(3, 2)
        self.tied.weight = self.fc.weight


def saved(value, **options):
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


def packed(file, change=lambda name, content: content, compression=zipfile.ZIP_STORED):
    """Returns the archive `file`, packed again by Python with changed records."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(file)) as old, zipfile.ZipFile(out, "w", compression) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, change(entry.filename.split("/", 1)[1], old.read(entry)))
    return out.getvalue()


class Pt(FolderTest):
    def assert_equal(self, want, got):
        self.assertEqual(set(want), set(got))
        for name, tensor in want.items():
            self.assertEqual(tensor.dtype, got[name].dtype, name)
            self.assertTrue(torch.equal(tensor, got[name]), name)

    def through_ours(self, file):
        """Returns the tensors of `file`, a value or bytes, after Starling has read them."""
        theirs = self.dir / "theirs.pt"
        theirs.write_bytes(file if isinstance(file, bytes) else saved(file))
        call(MODEL_IO, "copy", theirs, self.dir / "ours.safetensors")
        return load_file(self.dir / "ours.safetensors")

    def error_of(self, file):
        with self.assertRaises(RuntimeError) as caught:
            self.through_ours(file)
        self.assertIn("theirs.pt: ", str(caught.exception))
        return str(caught.exception)

    def test_their_file_through_ours(self):
        self.assert_equal(samples(), self.through_ours(samples()))
        torch.save(samples(), self.dir / "by name.pt")
        call(MODEL_IO, "copy", self.dir / "by name.pt", self.dir / "ours.safetensors")
        self.assert_equal(samples(), load_file(self.dir / "ours.safetensors"))
        self.assert_equal(samples(), self.through_ours(saved(samples(), pickle_protocol=4)))
        self.assert_equal(samples(), self.through_ours(saved(samples(), pickle_protocol=5)))
        self.assert_equal(samples(), self.through_ours(packed(saved(samples()))))  # the records are not aligned

    def test_our_file_is_theirs(self):
        save_file(samples(), self.dir / "theirs.safetensors")
        for name in ("ours.pt", "ours.pth"):
            call(MODEL_IO, "copy", self.dir / "theirs.safetensors", self.dir / name)
            for options in ({}, {"mmap": True}):
                got = torch.load(self.dir / name, weights_only=True, **options)
                self.assertIs(type(got), collections.OrderedDict)
                self.assert_equal(samples(), got)
            with zipfile.ZipFile(self.dir / name) as archive:
                self.assertIsNone(archive.testzip())
        call(MODEL_IO, "copy", self.dir / "ours.pt", self.dir / "again.pt")
        self.assertEqual((self.dir / "ours.pt").read_bytes(), (self.dir / "again.pt").read_bytes())

    def test_torch_finds_the_records_of_our_file_by_every_way(self):
        # torch.load for the device meta, and with this option, may compute where the records lie without
        # reading their heads.
        theirs = {f"t{size:04}": torch.arange(size, dtype=torch.uint8) for size in (0, 1, 2, 3, 63, 64, 65, 100, 127, 128, 200, 255)}
        theirs.update(scalar=torch.tensor(1.5), matrix=torch.randn(33, 7), half=torch.randn(5).half())
        save_file(theirs, self.dir / "theirs.safetensors")
        ours = self.dir / "ours.pt"
        call(MODEL_IO, "copy", self.dir / "theirs.safetensors", ours)
        with unittest.mock.patch.dict(os.environ, TORCH_SERIALIZATION_DEBUG="1"):
            for options in ({}, {"mmap": True}):
                self.assert_equal(theirs, torch.load(ours, weights_only=True, **options))
            for options in ({}, {"mmap": True}):
                meta = torch.load(ours, weights_only=True, map_location="meta", **options)
                self.assertEqual({name: (tensor.shape, tensor.dtype) for name, tensor in theirs.items()},
                                 {name: (tensor.shape, tensor.dtype) for name, tensor in meta.items()})
            load = getattr(getattr(getattr(torch.utils, "serialization", None), "config", None), "load", None)
            if hasattr(load, "calculate_storage_offsets"):
                for value in (True, False):
                    with unittest.mock.patch.object(load, "calculate_storage_offsets", value):
                        self.assert_equal(theirs, torch.load(ours, weights_only=True, mmap=True))
                        self.assertEqual(set(theirs), set(torch.load(ours, weights_only=True, map_location="meta")))

    def test_storages_with_bytes_left_over_and_views_without_elements(self):
        tensors = {"left": torch.arange(10, dtype=torch.uint8)[:8].view(torch.int32), "none": torch.zeros(2, 3)[2:, 1:]}
        self.assertEqual(tensors["none"].storage_offset(), 7)
        self.assert_equal(tensors, self.through_ours(tensors))

    def test_tensors_that_are_more_than_their_elements_are_refused_with_the_remedy(self):
        parameter, tensor = torch.nn.Parameter(torch.ones(2)), torch.ones(2)
        parameter.note, tensor.note = 1, 1
        negative = torch.ones(2, dtype=torch.complex64).conj().imag
        self.assertTrue(negative.is_neg())
        for value, message in ((parameter, "_rebuild_parameter_with_state is refused; .*save parameter.detach"),
                               (tensor, r"_rebuild_from_type_v2 is refused; .*save tensor.detach\(\).as_subclass\(torch.Tensor\)"),
                               (negative, r"save tensor.resolve_conj\(\) or tensor.resolve_neg\(\)")):
            self.assertRegex(self.error_of({"a": value}), message)
        self.assert_equal({"a": negative.resolve_neg()}, self.through_ours({"a": negative.resolve_neg()}))

    def test_files_without_checksums_are_refused_by_the_name_of_the_option(self):
        before = torch.serialization.get_crc32_options()
        torch.serialization.set_crc32_options(False)
        try:
            file = saved({"a": torch.arange(100)})
        finally:
            torch.serialization.set_crc32_options(before)
        self.assertIn("without torch.serialization.set_crc32_options(False)", self.error_of(file))

    def test_a_state_dict_and_a_training_checkpoint(self):
        torch.manual_seed(1)
        net = Net()
        adam = torch.optim.Adam(net.parameters())
        net.norm(net.fc(torch.randn(4, 3))).square().sum().backward()
        adam.step()
        self.assert_equal(net.state_dict(), self.through_ours(net.state_dict()))
        got = self.through_ours({"model": net.state_dict(), "optimizer": adam.state_dict(), "epoch": 3, "loss": 0.5, "note": None,
                                 "history": [1.0, 2], "parameter": torch.nn.Parameter(torch.ones(2))})
        want = {"model." + name: tensor for name, tensor in net.state_dict().items()}
        for number, state in adam.state_dict()["state"].items():
            want.update({f"optimizer.state.{number}.{name}": tensor for name, tensor in state.items()})
        want["parameter"] = torch.ones(2)
        self.assert_equal(want, got)

    def test_views_and_shared_storages(self):
        base = torch.arange(120, dtype=torch.float64).reshape(4, 5, 6)
        tensors = {"base": base, "transposed": base.transpose(0, 2), "part": base[1:3, ::2, 4:], "row": base[2, 3], "one": base[3, 4, 5],
                   "repeated": base[0, 0].expand(7, 6), "diagonal": base.diagonal(dim1=0, dim2=1), "windows": base.flatten().unfold(0, 10, 3),
                   "none": base[2:2], "same": base}
        self.assert_equal(tensors, self.through_ours(tensors))
        random_ = random.Random(3)
        for _ in range(20):
            for name in list(tensors):
                view = tensors[name]
                if view.dim() > 0 and view.size(0) > 1:
                    tensors[name] = random_.choice([view[1:], view.flip(0), view[::2], view.movedim(0, -1), view.unsqueeze(1), view[0]])
            self.assert_equal(tensors, self.through_ours(tensors))

    def test_a_model_trains_on_from_the_file(self):
        call(MODEL_IO, "save", "lenet5", self.dir / "w.pt")
        state = torch.load(self.dir / "w.pt", weights_only=True)
        save_file({"input": torch.randn(2, 1, 28, 28)}, self.dir / "x.safetensors")
        save_file(dict(state), self.dir / "w.safetensors")
        torch.save(state, self.dir / "theirs.pt")
        outputs = []
        for name in ("w.pt", "w.safetensors", "theirs.pt"):
            call(MODEL_IO, "forward", "lenet5", self.dir / name, self.dir / "x.safetensors", self.dir / "y.safetensors")
            outputs.append(load_file(self.dir / "y.safetensors")["output"])
        self.assertTrue(torch.equal(outputs[0], outputs[1]))
        self.assertTrue(torch.equal(outputs[0], outputs[2]))

    def test_nothing_is_executed(self):
        marker = self.dir / "executed"
        error = self.error_of({"a": torch.ones(2), "b": Evil(f"touch {marker}")})
        self.assertRegex(error, r"the global (posix|os|nt)\.system is refused; nothing of the file was executed; save tensors only")
        self.assertFalse(marker.exists())
        self.assertIn("the global test_pt.Net is refused", self.error_of(Net()))

    def test_what_is_no_state_dict_of_our_dtypes_is_refused_by_name(self):
        one = torch.ones(2)
        for value, message in (({"a": one.to(torch.complex64)}, "the dtype torch.ComplexFloatStorage is refused; convert"),
                               ({"a": one.to(torch.uint16)}, "the dtype torch.uint16 is refused; convert"),
                               ({"a": one.to(torch.float8_e4m3fn)}, "the dtype torch.float8_e4m3fn is refused; convert"),
                               ({"a": one.to_sparse()}, "the global torch._utils._rebuild_sparse_tensor is refused"),
                               ({"a": one.numpy()}, "the global numpy"),
                               ({"a": torch.float32}, "the global torch.float32 is refused"),
                               ({"a": collections.defaultdict(list)}, "the global collections.defaultdict is refused"),
                               (one, "holds no dictionary of names"),
                               ([one], "holds no dictionary of names"),
                               ({(1, 2): one}, "neither text nor integer")):
            self.assertIn(message, self.error_of(value))

    def test_other_formats_are_refused_with_the_remedy(self):
        file = saved({"a": torch.ones(2)})
        self.assertIn("the format of PyTorch before 1.6. Save it again with PyTorch 1.6 or later",
                      self.error_of(saved({"a": torch.ones(2)}, _use_new_zipfile_serialization=False)))
        self.assertIn("the byte order \"big\"",
                      self.error_of(packed(file, lambda name, content: b"big" if name == "byteorder" else content)))
        self.assertIn("is compressed or encrypted", self.error_of(packed(file, compression=zipfile.ZIP_DEFLATED)))
        script = io.BytesIO()
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), script)
        self.assertIn("a TorchScript module. In C++, save the weights with starling::save_model()", self.error_of(script.getvalue()))
        self.assertIn("truncated", self.error_of(file[:-1]))

    def test_a_damaged_tensor_is_found(self):
        content = torch.arange(4, dtype=torch.int64) + 0x1122334455667788
        file = bytearray(saved({"a": content}))
        file[file.index(struct.pack("<q", 0x1122334455667788))] ^= 1
        self.assertIn("the checksum of data/0 differs", self.error_of(bytes(file)))


def changed(random_, text):
    """Returns a pickle with one to three changes."""
    text = bytearray(text)
    for _ in range(random_.choice([1, 1, 2, 3])):
        at = random_.randrange(2, len(text))
        kind = random_.randrange(4)
        if kind == 0:
            text[at] ^= 1 << random_.randrange(8)
        elif kind == 1:
            text[at] = random_.choice(b"()tRQhqKMJ}]uesa.NX\x85\x86\x87\x88\x89\x00\x01\x02\x03\x04")
        elif kind == 2:
            del text[at:at + random_.choice([1, 2, 5])]
        else:
            text[at:at] = text[at:at + random_.randrange(1, 12)]
    return bytes(text)


def names_of(value, name=""):
    """Yields (dotted name, tensor) for the tensors in nested dictionaries, lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, (dict, list, tuple)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from names_of(item, f"{name}.{key}" if name else str(key))


class Differences(unittest.TestCase):
    def test_changed_pickles_hold_what_torch_finds_there_or_are_refused(self):
        random_ = random.Random(7)
        base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
        real = [saved(value) for value in ({"a": base, "b": base.t()[1:], "c": torch.ones(3, dtype=torch.int64)}, Net().state_dict(),
                                           {"model": collections.OrderedDict(w=torch.nn.Parameter(base)), "step": 3, "list": [base, (1.5,)]})]
        files = [packed(file, lambda name, content: changed(random_, content) if name == "data.pkl" else content)
                 for file in (random_.choice(real) for _ in range(COUNT))] + real
        given = b"".join(b"p" + struct.pack("<Q", len(file)) + file for file in files)
        done = subprocess.run([str(BUILD / "tests" / "file_verdicts")], input=given, capture_output=True, timeout=300, check=True)
        lines = done.stdout.decode().splitlines()
        self.assertEqual(len(lines), len(files))
        both, only_ours = 0, 0
        for file, line in zip(files, lines):
            verdict, _, rest = line.partition(" ")
            if verdict == "refuse":
                continue
            try:
                theirs = list(names_of(torch.load(io.BytesIO(file), weights_only=True, map_location="cpu")))
            except Exception:  # torch refuses a damaged pickle by many kinds of errors
                only_ours += 1
                continue
            want = sorted((name, list(tensor.shape), tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes().hex())
                          for name, tensor in theirs)
            got = sorted((part.split("|")[0], [int(n) for n in part.split("|")[1].split(",") if n], part.split("|")[2])
                         for part in rest.split(";") if part)
            self.assertEqual(want, got)
            both += 1
        self.assertTrue(all(line.startswith("accept") for line in lines[-len(real):]), lines[-len(real):])
        self.assertGreater(both, COUNT // 50)
        self.assertLess(only_ours, COUNT // 20)


if __name__ == "__main__":
    unittest.main()
