"""What the tests against PyTorch share: our programs, and temporary folders."""
import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("STARLING_BUILD", ROOT / "build" / "release"))
MODEL_IO = BUILD / "tests" / "model_io"
STARLING = BUILD / "starling"


def call(program, *words, timeout=300):
    """Runs one of our programs; raises with what it wrote when it fails."""
    done = subprocess.run([str(program), *map(str, words)], capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        raise RuntimeError(f"{program} {' '.join(map(str, words))}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class FolderTest(unittest.TestCase):
    """A test with a folder of its own, self.dir."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="starling-python-")
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
