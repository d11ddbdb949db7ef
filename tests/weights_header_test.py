"""starling/weights/weights_file.h works alone.

A program that has only this header reads and writes both formats.
"""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from program import main

HEADER = pathlib.Path(__file__).resolve().parent.parent / "starling/weights/weights_file.h"
PROGRAM = r"""
#include "weights_file.h"

#include <cstdio>

namespace weights = starling::weights;

int main(int argc, char** argv) {
  const std::vector<float> bias = {1.5F, -2, 3};
  const std::vector<int64_t> steps = {7};
  const std::vector<weights::Source> sources = {
      {"fc.bias", weights::Dtype::kF32, {3}, [&] { return bias.data(); }},
      {"steps", weights::Dtype::kI64, {}, [&] { return steps.data(); }}};
  for (int i = 1; i < argc; ++i) {
    weights::write_file(argv[i], sources);
    weights::File file(argv[i]);
    const weights::Tensor* tensor = file.find("fc.bias");
    float last = 0;
    file.read(*tensor, 2, 1, &last);
    std::printf("%d %zu %g\n", file.format() == weights::Format::kPt, file.tensors().size(), last);
  }
  try {
    weights::File("none.pt");
  } catch (const weights::FileError& error) {
    std::puts(error.what());
  }
}
"""


class Alone(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="starling-header-")
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def compile(self, *files):
        compiler = os.environ.get("STARLING_CXX", "g++")
        return subprocess.run([compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-I.", *files, "-o", "main"], cwd=self.dir,
                              capture_output=True, text=True, timeout=100)

    def test_it_compiles_without_a_warning_and_runs(self):
        shutil.copy(HEADER, self.dir)
        (self.dir / "main.cc").write_text(PROGRAM)
        done = self.compile("main.cc")
        self.assertEqual(done.returncode, 0, done.stderr)
        done = subprocess.run(["./main", "a.pt", "b.safetensors"], cwd=self.dir, capture_output=True, text=True, timeout=20)
        self.assertEqual(done.stdout.splitlines(), ["1 2 3", "0 2 3", "none.pt: cannot open: No such file or directory"], done.stderr)

    def test_two_copies_in_two_files_and_both_in_one(self):
        for folder in ("one", "two"):
            (self.dir / folder).mkdir()
            shutil.copy(HEADER, self.dir / folder)
        both = '#include "one/weights_file.h"\n#include "two/weights_file.h"\n'
        (self.dir / "main.cc").write_text(both + 'void write();\nint main() {\n  write();\n  starling::weights::File file("a.pt");\n'
                                          '  return static_cast<int>(file.find("a")->shape[0]) - 2;\n}\n')
        (self.dir / "write.cc").write_text('#include "two/weights_file.h"\nnamespace weights = starling::weights;\nvoid write() {\n'
                                           '  const float values[2] = {};\n'
                                           '  weights::write_file("a.pt", {{"a", weights::Dtype::kF32, {2}, [&] { return values; }}});\n}\n')
        done = self.compile("main.cc", "write.cc")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(subprocess.run(["./main"], cwd=self.dir, timeout=20).returncode, 0)

    def test_it_includes_the_standard_library_only(self):
        for line in HEADER.read_text().splitlines():
            if line.startswith("#include"):
                self.assertRegex(line, r"^#include <([a-z_0-9]+>|unistd\.h>  // fsync)$")


if __name__ == "__main__":
    main()
