"""Shared code of the tests against PyTorch: Starling's programs and temporary folders."""
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
    """Runs a program of Starling. If it fails, raises an error with its output."""
    done = subprocess.run([str(program), *map(str, words)], capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        raise RuntimeError(f"{program} {' '.join(map(str, words))}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class FolderTest(unittest.TestCase):
    """A test with a temporary folder, self.dir."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="starling-python-")
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
