"""The data of a run is in a file system that does not answer. Earlier steps go on, and the file is named.

The files are in a file system of tests/fuse_files.py. A read stalls until the test lets it go on, so that no
test depends on how long it takes.
"""
import os
import pathlib
import re
import struct
import subprocess
import sys
import time
import zlib

import fuse_files
from full_disk_test import own_mounts
from program import STARLING, ProgramTest, environment, last_step, main, recorded_events, wait_for_step

CLASSES, IMAGES, BATCH = 10, 8, 16  # the images of a class; an epoch has 5 steps
LAST = "train/9/07.png"  # in the order of the files it is the last image, so that step 5 needs it


def write_png(path, brightness):
    """Writes a gray image of 28 x 28 pixels."""
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes((brightness + x + y) % 256 for x in range(28)) for y in range(28))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 28, 28, 8, 0, 0, 0, 0))
                     + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


class StalledData(ProgramTest):
    def setUp(self):
        super().setUp()
        folder = pathlib.Path(self.path("images"))
        for label in range(CLASSES):
            for number in range(IMAGES):
                write_png(folder / "train" / str(label) / f"{number:02}.png", 20 * label + number)
            write_png(folder / "test" / str(label) / "00.png", 20 * label)
        self.mounted = self.path("far")
        os.mkdir(self.mounted)
        try:
            self.files = fuse_files.StallingFiles(str(folder), self.mounted)
        except OSError as error:
            self.skipTest(f"/dev/fuse cannot be used here: {error.strerror}")
        self.addCleanup(self.files.close)

    def start_run(self, ranks, *more):
        words = [STARLING, "train", "--model", "mlp", "--set", "model.widths=[784,16,10]", "--data", f"images:{self.mounted}", "--order",
                 "sequential", "--global-batch", BATCH, "--steps", 15, "-n", ranks, "--lr", 0.01, "--set", "train.gemm=mkl", "--set",
                 "data.stall_s=0.2", "--set", "data.prefetch=2", "--run-dir", self.path("run"), *more]
        with open(self.path("stdout"), "wb") as out, open(self.path("stderr"), "wb") as err:
            process = subprocess.Popen([str(word) for word in words], stdout=out, stderr=err, cwd=self.dir, env=environment())
        self.addCleanup(self.end, process)
        self.addCleanup(self.files.release)  # runs before end(): a killed process ends when its read is answered
        return process

    def printed(self):
        return pathlib.Path(self.path("stderr")).read_text() + pathlib.Path(self.path("stdout")).read_text()

    def await_text(self, process, text, pattern):
        """Waits until `text()` contains the pattern. Returns the match."""
        end = time.monotonic() + 60
        while not (found := re.search(pattern, text())):
            self.assertIsNone(process.poll(), self.printed())
            self.assertLess(time.monotonic(), end, self.printed())
            time.sleep(0.05)
        return found

    def messages(self):
        return "\n".join(e.get("text", "") for e in recorded_events(self.path("run")))

    def check_end(self, process):
        self.files.release()
        self.assertEqual(process.wait(timeout=120), 0, self.printed())
        self.assertEqual(last_step(self.path("run")), 15)
        return [e for e in recorded_events(self.path("run")) if e["event"] == "result"][-1]

    def test_the_steps_before_a_stalled_read_are_taken_and_the_file_is_named(self):
        self.files.stall(LAST)
        process = self.start_run(1)
        found = self.await_text(process, self.messages, r"rank 0 has waited ([\d.]+) s for the data of step 5: \S+ reads (\S+) at offset "
                                r"(\d+) \(positions 64 to 79 of epoch 0\)")
        self.assertGreaterEqual(float(found[1]), 0.2)
        self.assertEqual((found[2], found[3]), (f"{self.mounted}/{LAST}", "0"))
        self.assertIn("--set data.prefetch=N to read more than 2 batches ahead", self.messages())
        wait_for_step(self.path("run"), 4)
        self.assertEqual(last_step(self.path("run")), 4)
        result = self.check_end(process)
        self.assertGreaterEqual(result["data_wait_s"], 0.2)
        self.assertRegex(self.messages(), r"rank 0 has the data of step 5 after [\d.]+ s of waiting; --set data.prefetch=\d+ outlasts")

    # Rank 1 has the second half of each batch. Rank 0 leads and shows its own events only.
    def test_another_rank_than_the_first_names_its_file(self):
        self.files.stall(LAST)
        process = self.start_run(2)
        found = self.await_text(process, self.printed, r"warning: rank 1 has waited [\d.]+ s for the data of step 5: \S+ reads (\S+) at")
        self.assertEqual(found[1], f"{self.mounted}/{LAST}")
        self.check_end(process)
        self.assertRegex(self.printed(), r"warning: rank 1 has the data of step 5 after [\d.]+ s of waiting")
        self.assertNotRegex(self.printed() + self.messages(), rf"rank 0 has waited [^\n]*{re.escape(LAST)}")

    def test_nothing_is_said_without_a_stall(self):
        self.check_end(self.start_run(1, "--set", "data.stall_s=1000"))
        self.assertNotIn("has waited", self.printed() + self.messages())


if __name__ == "__main__":
    reason = own_mounts()
    if reason:
        print(f"stalled_data_test: skipped: mount namespaces are not permitted here: {reason}")
        sys.exit(77)
    reason = fuse_files.why_not()
    if reason:
        print(f"stalled_data_test: skipped: {reason}")
        sys.exit(77)
    main()
