"""The checks of tools/ find what they are for and pass what is right; each on a small tree of its own."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parent.parent / "tools"
LAYERS = """starling_layer(base      LIBS Threads::Threads)
starling_layer(net       DEPS base)
starling_layer(comm      DEPS net)
starling_layer(nn TORCH  DEPS comm)
starling_layer(testing   DEPS comm)
starling_layer(run TORCH DEPS nn)
"""


class Tree(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        subprocess.run(["git", "init", "-q", str(self.root)], check=True)

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def run_tool(self, name, *arguments):
        done = subprocess.run([sys.executable, str(TOOLS / name), *arguments], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr


class CheckLayers(Tree):
    def setUp(self):
        super().setUp()
        self.write("cmake/layers.cmake", LAYERS)

    def check(self):
        return self.run_tool("check_layers", str(self.root))

    def test_passes_arrows_and_their_arrows(self):
        self.write("starling/comm/a.cc", '#include "starling/net/x.h"\n#include "starling/base/y.h"\n')
        self.write("starling/nn/b.cc", "#include <torch/nn.h>\n")
        self.write("starling/comm/a_test.cc", '#include "starling/testing/run_ranks.h"\n')
        self.assertEqual(self.check()[0], 0, self.check()[1])

    def test_refuses_an_include_against_an_arrow(self):
        self.write("starling/net/a.cc", '#include <vector>\n#include "starling/comm/x.h"\n')
        status, output = self.check()
        self.assertEqual(status, 1)
        self.assertIn("starling/net/a.cc:2: net includes starling/comm/x.h; it may include: base", output)

    def test_refuses_torch_in_a_torch_free_layer_and_its_tests(self):
        self.write("starling/net/a_test.cc", "#include <ATen/ATen.h>\n")
        self.assertIn("a_test.cc:1: net is torch-free but includes ATen/ATen.h", self.check()[1])

    def test_refuses_testing_outside_tests(self):
        self.write("starling/nn/a.cc", '#include "starling/testing/run_ranks.h"\n')
        self.assertEqual(self.check()[0], 1)

    def test_refuses_run_and_apps_from_below(self):
        self.write("starling/nn/a.cc", '#include "starling/run/r.h"\n#include "apps/x.h"\n#include "starling/starling.h"\n')
        self.assertEqual(self.check()[1].count("starling/nn/a.cc:"), 3)

    def test_run_keeps_to_its_arrows_and_apps_to_all_but_testing(self):
        self.write("cmake/layers.cmake", LAYERS + "starling_layer(launch DEPS net)\n")
        self.write("apps/main.cc", '#include "starling/launch/x.h"\n#include "starling/testing/run_ranks.h"\n')
        self.write("starling/run/a.cc", '#include "starling/nn/x.h"\n#include "starling/launch/x.h"\n')
        output = self.check()[1]
        self.assertIn("apps/main.cc:2: apps includes starling/testing/run_ranks.h", output)
        self.assertIn("starling/run/a.cc:2: run includes starling/launch/x.h", output)
        self.assertEqual(output.count("includes"), 2)

    def test_refuses_a_folder_that_is_no_layer(self):
        self.write("starling/lost/a.cc", "int x;\n")
        self.assertIn("starling/lost is no layer", self.check()[1])

    def test_finds_a_cycle(self):
        self.write("cmake/layers.cmake", LAYERS.replace("base      LIBS Threads::Threads", "base DEPS comm"))
        self.assertIn("cycle: base -> comm -> net -> base", self.check()[1])

    def test_refuses_the_environment_and_standard_output(self):
        self.write("starling/net/a.cc", 'void f() {\n  std::getenv("HOME");\n  printf("x");\n}\n')
        output = self.check()[1]
        self.assertIn("a.cc:2: getenv", output)
        self.assertIn("a.cc:3: net writes to standard output", output)

    def test_comments_literals_and_standard_error_are_free(self):
        self.write("starling/net/a.cc", '// getenv("X") printf("x")\nauto s = "getenv(";\n'
                   'void f() { std::fprintf(stderr, "x"); std::snprintf(b, 3, "x"); }\n/* #include "starling/run/x.h"\n*/\n')
        self.assertEqual(self.check()[0], 0, self.check()[1])


class CheckSizes(Tree):
    def check(self):
        return self.run_tool("check_sizes", str(self.root))

    def test_passes_a_small_file_and_reports_the_median(self):
        self.write("a.cc", "namespace x {\nint f() {\n  return 1;\n}\nstruct S {\n  S() : a_{1}, b_(2) {}\n  int a_, b_;\n};\n}\n")
        status, output = self.check()
        self.assertEqual(status, 0, output)
        self.assertIn("1 files, median 9 lines, longest 9; 2 functions, median 2", output)

    def test_refuses_long_functions_by_their_first_line(self):
        body = "  f(\"{\");  // {\n" * 60
        self.write("a.cc", "class A {\n  int g() const\n  {\n" + body + "  }\n};\n")
        self.assertIn("a.cc:2: a function of 63 lines", self.check()[1])

    def test_a_long_class_or_table_is_no_function(self):
        self.write("a.cc", "class A : public B<int()> {\n" + "  int f() { return 1; }\n" * 70 + "};\n"
                   + "const int kTable[] = {\n" + "  1,\n" * 70 + "};\n")
        self.assertEqual(self.check()[0], 0, self.check()[1])

    def test_long_files(self):
        self.write("a.cc", "int x;\n" * 601)
        self.write("b_test.cc", "int x;\n" * 800)
        output = self.check()[1]
        self.assertIn("a.cc:600: 601 lines", output)
        self.assertNotIn("b_test.cc", output)

    def test_words_in_names_of_ours_only(self):
        self.write("net_util.cc", "int x;\n")
        self.write("a.cc", "class TaskManager {};\nasio::io_context io;\nint string_helper(int n);\nf(io.context());\n")
        output = self.check()[1]
        self.assertIn("net_util.cc:1: the name of the file holds the word 'util'", output)
        self.assertIn("a.cc:1: TaskManager", output)
        self.assertIn("a.cc:3: string_helper", output)
        self.assertEqual(output.count("a.cc:"), 2)

    def test_marks(self):
        self.write("a.cc", "int x;  // TO" + "DO later\n")
        self.assertIn("a.cc:1: TO" + "DO", self.check()[1])


class CheckSkips(Tree):
    REPORT = ('<testsuite><testcase name="N.Veth" status="{}">{}<system-out>/a.cc:3: Skipped\n{}\n</system-out></testcase>'
              '</testsuite>')

    def check(self, status, element, reason):
        self.write("allowed", "# comment\nnetwork namespaces are not permitted\n")
        self.write("r.xml", self.REPORT.format(status, element, reason))
        return self.run_tool("check_skips", str(self.root / "allowed"), str(self.root / "r.xml"))

    def test_reasons(self):
        skipped = '<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>'
        self.assertEqual(self.check("notrun", skipped, "network namespaces are not permitted here")[0], 0)
        status, output = self.check("notrun", skipped, "not today")
        self.assertEqual(status, 1)
        self.assertIn("N.Veth: not today", output)
        self.assertEqual(self.check("run", "", "not today")[0], 0)


class CheckFormat(Tree):
    def check(self, *arguments):
        return subprocess.run(["bash", str(self.root / "tools/check_format"), *arguments], capture_output=True, text=True)

    def test_finds_and_fixes(self):
        self.write("tools/check_format", (TOOLS / "check_format").read_text())
        self.write(".clang-format", "BasedOnStyle: Google\n")
        self.write("a.cc", "int  x ;\n")
        done = self.check()
        if "no clang-format" in done.stderr:
            self.skipTest("clang-format is not installed")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(self.check("--fix").returncode, 0)
        self.assertEqual((self.root / "a.cc").read_text(), "int x;\n")
        self.assertEqual(self.check().returncode, 0)


if __name__ == "__main__":
    unittest.main()
