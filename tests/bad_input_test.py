"""Bad input is refused with an exit status and one message for all ranks, which names place and remedy."""
import base64
import gzip
import io
import os
import pathlib
import re
import socket
import struct
import tarfile

from program import SMALL, ProgramTest, environment, main

CONFIG, DATA, COMM = 2, 3, 4
# 16 x 16 grey pixels; the scan begins at byte 162.
JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQc1tdhbWGkJ6jq62rZ4C8ybqmx5moq6T/wAAL"
    "CAAQABABAREA/8QAFgABAQEAAAAAAAAAAAAAAAAAAwAB/8QAIhABAAIBBAEFAQAAAAAAAAAAAQIRAxIhMUEEEyJRYYHx/9oACAEBAAA/AMk4oa4wcmEZJFhkQ32B"
    "rmj3fqdNr4yTJTiSd9OiONVC0qwBu2/vk7DxshgxacuqGJGWiVO5zvX8RetqscowxwnryaX06oOeYtfMO75N+3//2Q==")


class BadInput(ProgramTest):
    def refused(self, status, pattern, *args, env=None):
        """Expects exit status `status` and one message on stderr that `pattern` matches."""
        _, err = self.run_program("train", "--steps", 2, "--resume", "never", "--run-dir", self.path("run"), *args, status=status,
                                  timeout=60, env=env)
        self.assertRegex(err, pattern)
        self.assertEqual(len(re.findall("error: ", err)), 1, err)
        self.assertNotIn("what():", err)
        return err

    def refused_by_two_ranks(self, pattern, source, *args):
        err = self.refused(DATA, pattern, "--data", source, "-n", 2, "--global-batch", 4, "--model", "mlp", *args)
        self.assertRegex(err, r"rank [01]: ")
        self.assertIn(self.path("run/log"), err)

    def write(self, name, data):
        path = pathlib.Path(self.path(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return str(path)

    def write_idx(self, name, labels, cut=None, pack=lambda data: data, ending=""):
        count = len(labels)
        for part in ("train", "t10k"):
            images = pack(struct.pack(">IIII", 0x803, count, 28, 28) + os.urandom(784 * count))
            self.write(f"{name}/{part}-images-idx3-ubyte{ending}", images[:cut] if part == "train" else images)
            self.write(f"{name}/{part}-labels-idx1-ubyte{ending}", pack(struct.pack(">II", 0x801, count) + bytes(labels)))
        return "idx:" + self.path(name)

    def test_idx_labels_out_of_range(self):
        source = self.write_idx("labels", [0, 1, 250] + [1] * 13)
        self.refused_by_two_ranks(r"labels/train-labels-idx1-ubyte: offset 10: label 250 of sample 2 is out of range", source)

    def test_truncated_idx(self):
        source = self.write_idx("cut", [1, 0] * 8, cut=5000)
        self.refused_by_two_ranks(r"cut/train-images-idx3-ubyte: offset 5000: truncated: .*12544 bytes, 4984 are there; fetch", source)

    def test_truncated_gzip_idx(self):
        source = self.write_idx("cutgz", [1, 0] * 8, cut=9000, pack=gzip.compress, ending=".gz")
        self.refused_by_two_ranks(r"cutgz/train-images-idx3-ubyte.gz: offset \d+: the gzip stream is truncated; fetch", source)

    def write_cifar(self, name, **changed):
        for file in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
            self.write(f"{name}/{file}.bin", changed.get(file, bytes(4 * 3073)))
        return "cifar-bin:" + self.path(name)

    def test_truncated_cifar(self):
        source = self.write_cifar("cifar", data_batch_3=bytes(7000))
        self.refused_by_two_ranks(r"cifar/data_batch_3.bin: offset 7000: truncated: the record that begins at 6146 .*fetch", source)

    def test_cifar_labels_out_of_range(self):
        source = self.write_cifar("cifar", data_batch_3=bytes(3073) + b"\x2a" + bytes(3072))
        self.refused_by_two_ranks(r"cifar/data_batch_3.bin: offset 3073: label 42 of record 1 is out of range 0 to 9", source)

    def test_truncated_jpeg_in_a_class_folder(self):
        for name in ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg"):
            self.write("pictures/" + name, JPEG)
        self.write("pictures/dog/2.jpg", JPEG[:-40])
        self.refused_by_two_ranks(r"pictures/dog/2.jpg: cannot decode \(213 bytes\): Premature end of JPEG file; fetch",
                                  "images:" + self.path("pictures"), "--set", "model.widths=[256,4,2]")

    def test_truncated_tar_gz(self):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            for i in range(20):
                member = tarfile.TarInfo(f"{'cat' if i % 2 else 'dog'}/{i}.jpg")
                data = JPEG + os.urandom(500)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        cut = packed.getvalue()[:6000]
        path = self.write("cut.tar.gz", cut)
        self.refused_by_two_ranks(r"cut.tar.gz: offset (\d{2,4}): the gzip stream is truncated; fetch", "images:" + path)

    def test_missing_data(self):
        self.refused_by_two_ranks(r"nowhere: the folder does not exist; check the path", "idx:" + self.path("nowhere"))
        os.mkdir(self.path("empty"))
        self.write("file", b"text")
        for source, words in (("images:nowhere", "nowhere: no such file"), ("cifar-bin:nowhere", "nowhere: the folder does not exist"),
                              ("idx:empty", "empty: the folder has no train-images-idx3-ubyte "), ("idx:file", "file: not a folder"),
                              ("cifar-bin:empty", "empty/data_batch_1.bin: No such file"),
                              ("text:nowhere", "nowhere: No such file")):
            _, err = self.run_program("data", "inspect", "--data", source, status=DATA, timeout=60)
            self.assertRegex(err, words + ".*; check the path")

    def test_more_ranks_than_samples(self):
        self.refused(CONFIG, "train.ranks = 4 is more than data.samples = 2: .*use fewer ranks", *SMALL, "--set", "data.samples=2",
                     "-n", 4, "--global-batch", 4)
        source = self.write_idx("three", [0, 1, 2])
        self.refused(CONFIG, r"idx:.*three holds 3 samples, fewer than one global batch of 4; use a smaller train.global_batch", *SMALL,
                     "--set", "data.test_samples=0", "--set", "data.samples=0", "--data", source, "-n", 2, "--global-batch", 4)

    def test_batch_that_does_not_divide(self):
        self.refused(CONFIG, "--global-batch: .*7 cannot be shared equally by train.ranks = 2: use a batch of 6 or 8", *SMALL, "-n", 2,
                     "--global-batch", 7)

    def test_run_folder_that_cannot_be_written(self):
        self.write("file", b"x")
        self.refused(CONFIG, r"--run-dir: .*file/run cannot be written: Not a directory; give a folder that you may write", *SMALL, "-n", 2,
                     "--run-dir", self.path("file/run"))

    def test_configuration_file(self):
        for text, words in (("[optimizer]\nlr = 0.1\nmomentun = 0.9\n", r"a.toml:3:1: unknown key optimizer.momentun: did you mean optimizer.momentum\?"),
                            ("[model]\nname = \"lenet\"\n", r"a.toml:2:\d+: model.name = \"lenet\" is unknown: did you mean \"lenet5\"\?"),
                            ("[optimizer]\nlr = \"fast\"\n", r"a.toml:2:\d+: optimizer.lr is a number, not \"fast\""),
                            ("[optimizer\nlr = 1\n", r"a.toml:1:\d+: not TOML")):
            self.write("a.toml", text.encode())
            self.refused(CONFIG, words, "-c", self.path("a.toml"), "-n", 2)
        self.refused(CONFIG, r"modle.width.*did you mean model.width\?", "--set", "modle.width=3")

    def started_by_hand(self, port, local_world_size):
        return environment(RANK=0, WORLD_SIZE=2, LOCAL_RANK=0, LOCAL_WORLD_SIZE=local_world_size, MASTER_ADDR="127.0.0.1",
                           MASTER_PORT=port)

    def test_schedule_of_another_number_of_micro_batches(self):
        schedule = self.path("mine.txt")
        with open(schedule, "w", encoding="utf-8") as f:
            f.write("schedule mine\nranks 2\nmicro-batches 2\nrank 0: F0 F1 SA1 SA0 RG1 B1 RG0 B0\n"
                    "rank 1: RA1 F1 B1 SG1 RA0 F0 B0 SG0\n")
        self.refused(CONFIG, "pipeline.micro_batches: the schedule .* has 2 micro-batches, not 4: give --micro-batches 2", *SMALL, "-n", 2,
                     "--mesh", "stage=2", "--schedule", "file:" + schedule, "--micro-batches", 4)

    def test_key_file_that_others_can_read(self):
        key = self.write("key", b"ab" * 32 + b"\n")
        os.chmod(key, 0o644)
        self.refused(CONFIG, "key: the job key file can be used by others .mode 0644.; make it private: chmod 600", *SMALL, "--set",
                     "comm.key_file=" + key, env=self.started_by_hand(29733, 1))

    def test_port_in_use(self):
        """Ranks of several hosts meet at port MASTER_PORT + 1.

        Ranks of one host meet at a Unix socket without a port.
        """
        key = self.write("key", b"ab" * 32 + b"\n")
        os.chmod(key, 0o600)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.refused(COMM, rf"MASTER_PORT \+ 1\): port {port} of 127.0.0.1 is in use; find who holds it with `ss -ltnp", *SMALL, "--set",
                         "comm.key_file=" + key, env=self.started_by_hand(port - 1, 1))
        with socket.socket(socket.AF_UNIX) as taken:
            taken.bind(f"\0starling-{os.getuid()}-127.0.0.1:{port}-{port}")
            taken.listen()
            self.refused(COMM, r"the Unix socket is in use; another job with this id runs here .ss -xlp", *SMALL,
                         env=self.started_by_hand(port, 2))


if __name__ == "__main__":
    main()
