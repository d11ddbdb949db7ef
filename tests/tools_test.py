"""The checks of tools/ find what they must find and pass correct text.

Each test has a small tree of its own.
"""
import importlib.machinery
import importlib.util
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from program import main

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


class TwoBuilds(Tree):
    """bench/two_builds on programs that print a speed."""

    def program(self, name, *speeds):
        """Writes a program that prints the speed of a step.

        Each run prints the next of `speeds`. After the last one, each run prints the last one again.
        """
        lines = "".join(f'[ "$n" -gt {i + 1} ] || {{ echo "speed 1,{speed:03}"; exit 0; }}\n' for i, speed in enumerate(speeds[:-1]))
        self.write(name, f'#!/bin/sh\necho speed 7\necho run >>"$0.runs"\nn=$(wc -l <"$0.runs")\n{lines}echo "speed 1,{speeds[-1]:03}"\n')
        (self.root / name).chmod(0o755)
        return str(self.root / name)

    def compare(self, old, new, *options):
        words = [sys.executable, str(TOOLS.parent / "bench/two_builds"), old, new, "--metric", "speed ([0-9,]+)", *options, "--", "x"]
        done = subprocess.run(words, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def test_compares_with_the_mean_of_both_runs_of_the_old_build(self):
        status, output = self.compare(self.program("old", 0, 200, 0), self.program("new", 210), "--rounds", "1", "--higher")
        self.assertEqual(status, 0, output)
        self.assertRegex(output, r"new against old +1\.100 +1\.100 +1\.100")
        self.assertRegex(output, r"old against old +1\.200 ")

    def test_fails_below_the_ratio_that_is_asked(self):
        old, new = self.program("old", 100), self.program("new", 0)
        self.assertEqual(self.compare(old, new, "--rounds", "2", "--higher", "--at-least", "0.97")[0], 1)
        self.assertEqual(self.compare(old, new, "--rounds", "2", "--at-least", "0.97")[0], 0)

    def test_says_what_failed(self):
        status, output = self.compare(self.program("old", 1), "/bin/false", "--rounds", "1")
        self.assertEqual(status, 2)
        self.assertIn("/bin/false x ended with 1", output)
        self.assertEqual(self.compare("/bin/true", "/bin/true", "--rounds", "1")[0], 2)
        for old, metric, text in (("nosuch", "speed (.*)", "nosuch cannot be started: No such file"),
                                  (self.program("other", 1), "speed .*", "--metric needs a group"),
                                  (self.program("third", 1), "(speed", "--metric is no regular expression"),
                                  (self.program("fourth", 1), "(speed)", "matches 'speed' in the output")):
            status, output = self.compare(old, "/bin/true", "--metric", metric)
            self.assertEqual(status, 2, output)
            self.assertIn(text, output)


# A file in each layer that uses the arrows of LAYERS.
USES = {"net": "base", "comm": "net", "nn": "comm", "testing": "comm", "run": "nn"}


class SourceGroups(Tree):
    """tools/source_groups.py: files of a group do not change each other's names."""

    def groups(self, **files):
        for name, text in files.items():
            self.write(f"{name}.cc", text)
        words = [sys.executable, str(TOOLS / "source_groups.py"), "5", *(f"{name}.cc" for name in files)]
        done = subprocess.run(words, capture_output=True, text=True, cwd=self.root, check=True)
        return [line.replace(".cc", "").split("|") for line in done.stdout.splitlines()]

    @staticmethod
    def unnamed(text):
        return f"namespace {{\n{text}\n}}  // namespace\n"

    def test_files_share_a_group_if_their_names_differ(self):
        self.assertEqual(self.groups(a=self.unnamed("int f() {}"), b=self.unnamed("int g() {}"), c="int h() { return 1; }\n"), [["a", "b", "c"]])

    def test_equal_names_are_kept_apart(self):
        self.assertEqual(self.groups(a=self.unnamed("int f() {}"), b=self.unnamed("int f(int) {}")), [["a"], ["b"]])

    def test_what_another_file_uses_is_kept_apart(self):
        uses = {"function": "int h() { return f(1); }\n", "constant": "int h() { return kSteps; }\n", "type": "Net h() { return {}; }\n"}
        declares = {"function": "int f(int) {}", "constant": "constexpr int kSteps = 6;", "type": "struct Net {\n};"}
        for what, text in uses.items():
            for order in (("a", "b"), ("b", "a")):
                files = {"a": self.unnamed(declares[what]), "b": text}
                self.assertEqual(len(self.groups(**{name: files[name] for name in order})), 2, what)

    def test_words_of_comments_and_of_other_namespaces_do_not_count(self):
        self.assertEqual(self.groups(a=self.unnamed("int f() {}"), b="// As f() and kSteps.\nint g() { return other::f(); }\n"), [["a", "b"]])


class CheckLayers(Tree):
    def setUp(self):
        super().setUp()
        self.write("cmake/layers.cmake", LAYERS)
        for layer, used in USES.items():
            torch = "#include <ATen/ATen.h>\n" if layer in ("nn", "run") else ""
            self.write(f"starling/{layer}/uses.cc", f'#include "starling/{used}/{used}.h"\n{torch}')

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

    def test_refuses_an_arrow_that_nobody_uses(self):
        self.write("starling/comm/uses.cc", "int x;\n")
        self.assertIn("cmake/layers.cmake:3: comm declares net but includes nothing of it", self.check()[1])
        self.write("starling/comm/a_test.cc", '#include "starling/net/x.h"\n')  # a test does not count
        self.assertIn("cmake/layers.cmake:3: comm declares net but includes nothing of it", self.check()[1])

    def test_refuses_a_header_name_that_occurs_in_two_layers(self):
        self.write("starling/net/options.h", "#pragma once\n")
        self.assertEqual(self.check()[0], 0, self.check()[1])
        self.write("starling/net/tcp/options.h", "#pragma once\n")  # a name may occur twice within a layer
        self.assertEqual(self.check()[0], 0, self.check()[1])
        self.write("starling/comm/options.h", "#pragma once\n")
        self.assertIn("another layer has a header of the same name: starling/comm/options.h", self.check()[1])

    def test_refuses_a_header_of_a_program_with_the_name_of_one_of_a_layer(self):
        self.write("starling/net/options.h", "#pragma once\n")
        self.write("apps/program/options.h", "#pragma once\n")
        self.assertIn("starling/net/options.h:1: another layer has a header of the same name: apps/program/options.h",
                      self.check()[1])

    def test_compares_the_table_of_layers_with_the_arrows(self):
        layers = re.findall(r"starling_layer\((\w+)\s*([^)]*)\)", LAYERS)
        deps = {name: ", ".join(re.findall(r"\w+", words.partition("DEPS")[2])) for name, words in layers}
        rows = "".join(f"| `{name}` | contents | {deps[name] or '–'} |\n" for name in deps)
        self.write("docs/design/layers.md", rows)
        self.assertEqual(self.check()[0], 0, self.check()[1])
        self.write("docs/design/layers.md", rows.replace(f"| `comm` | contents | {deps['comm']} |", "| `comm` | contents | net, base |"))
        self.assertIn("comm may include: net", self.check()[1])
        self.write("docs/design/layers.md", rows.replace("| `comm` |", "| comm |"))
        self.assertIn("docs/design/layers.md:1: the table has no row for comm", self.check()[1])

    def test_holds_folders_of_a_layer_to_their_arrows(self):
        self.write("starling/net/tcp/a.cc", '#include "starling/net/store/x.h"\n#include "starling/net/endpoint.h"\n')
        self.assertIn("starling/net/tcp/a.cc:1: net/tcp includes starling/net/store/x.h", self.check()[1])
        self.write("cmake/layers.cmake", LAYERS + "starling_rooms(net tcp->store)\n")
        self.assertEqual(self.check()[0], 0, self.check()[1])
        self.write("cmake/layers.cmake", LAYERS + "starling_rooms(net tcp->store\n  store->ucx)\n")
        self.assertIn("nothing in net uses the arrow store->ucx", self.check()[1])

    def test_refuses_torch_in_a_torch_free_layer_and_its_tests(self):
        self.write("starling/net/a_test.cc", "#include <ATen/ATen.h>\n")
        self.assertIn("a_test.cc:1: net is torch-free but includes ATen/ATen.h", self.check()[1])

    def test_holds_the_list_of_files_without_torch(self):
        self.write("starling/nn/a.cc", '#include "starling/nn/a.h"\n')
        self.write("starling/nn/a.h", "#pragma once\n#include <vector>\n")
        self.assertIn("starling/nn/a.cc:1: needs no torch; add a to starling_torch_free(nn ...)", self.check()[1])
        self.write("cmake/layers.cmake", "starling_torch_free(nn\n  a)\n" + LAYERS)
        self.assertEqual(self.check()[0], 0, self.check()[1])
        self.write("starling/nn/a.h", "#pragma once\n#include <torch/types.h>\n")
        self.assertIn("cmake/layers.cmake:1: starling_torch_free names starling/nn/a.cc, which includes torch", self.check()[1])
        self.write("cmake/layers.cmake", "starling_torch_free(nn b)\n" + LAYERS)
        self.assertIn("starling_torch_free names starling/nn/b.cc, which is no file", self.check()[1])

    def test_refuses_testing_outside_tests(self):
        self.write("starling/nn/a.cc", '#include "starling/testing/run_ranks.h"\n')
        self.assertEqual(self.check()[0], 1)

    def test_refuses_run_and_apps_from_below(self):
        self.write("starling/nn/a.cc",
                   '#include <torch/nn.h>\n#include "starling/run/r.h"\n#include "apps/x.h"\n#include "starling/starling.h"\n')
        self.assertEqual(self.check()[1].count("starling/nn/a.cc:"), 3)

    def test_run_keeps_to_its_arrows_and_apps_to_all_but_testing(self):
        self.write("cmake/layers.cmake", LAYERS + "starling_layer(launch DEPS net)\n")
        self.write("starling/launch/uses.cc", '#include "starling/net/net.h"\n')
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


class CheckBuildTime(Tree):
    NINJA = ("rule cc\n  command = cc -o $out -c $in\n"
             "build CMakeFiles/starling_nn.dir/a.o: cc a.cc\nbuild CMakeFiles/starling_nn_cold.dir/b.o: cc b.cc\n"
             "build CMakeFiles/nn_test.dir/c.o: cc c.cc\n"
             "build starling: phony CMakeFiles/starling_nn.dir/a.o CMakeFiles/starling_nn_cold.dir/b.o\n")

    def check(self, *milliseconds):
        self.write("build.ninja", self.NINJA)
        names = ["starling_nn.dir/a.o", "starling_nn.dir/a.o", "starling_nn_cold.dir/b.o", "nn_test.dir/c.o"]
        lines = [f"1000\t{1000 + ms}\t0\tCMakeFiles/{name}\t0\n" for name, ms in zip(names, milliseconds)]
        self.write(".ninja_log", "# ninja log v5\n" + "".join(lines))
        return self.run_tool("check_build_time", str(self.root))

    def test_limit(self):
        status, output = self.check(900_000, 300_000, 350_000, 900_000)
        self.assertEqual(status, 0, output)
        self.assertRegex(output, r"nn +650.0 s +2 files")
        status, output = self.check(900_000, 300_000, 351_000, 900_000)
        self.assertEqual(status, 1, output)
        self.assertIn("takes 651 s to compile; the limit is 650 s", output)

    def test_incomplete_build(self):
        status, output = self.check(1000, 1000)
        self.assertEqual(status, 1)
        self.assertIn("1 of 2 objects are not in", output)


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


class Mutate(Tree):
    """A project of one function. Its test program fails if the sum is wrong."""
    CMAKE = """cmake_minimum_required(VERSION 3.25)
project(Small LANGUAGES CXX)
enable_testing()
add_executable(sum_test starling/base/sum.cc)
add_test(NAME Sum.OfTwo COMMAND sum_test)
set_tests_properties(Sum.OfTwo PROPERTIES TIMEOUT 5)
"""
    SUM = """int sum(int a, int b) { return a + b; }
int unused() { return 1; }
int main() { return sum(2, 1) == 3 && sum(1, 1) == 2 ? 0 : 1; }
"""

    def setUp(self):
        super().setUp()
        self.write("CMakeLists.txt", self.CMAKE)
        self.write("CMakePresets.json", '{"version": 6, "configurePresets": [{"name": "release", "generator": "Ninja"}]}')
        self.write("starling/base/sum.cc", self.SUM)
        self.write(".gitignore", "build/\n")
        git = ["git", "-C", str(self.root), "-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-qm", "all"], check=True)

    def mutate(self, *lines, options=()):
        self.write("list.txt", "# a comment\n\n" + "\n".join(lines) + "\n")
        return self.run_tool("mutate", "--root", str(self.root), "--list", str(self.root / "list.txt"), *options)

    def test_a_bug_is_caught_by_a_failing_or_endless_test(self):
        status, output = self.mutate(r"starling/base/sum.cc | s/a + b/a - b/ | sum_test | ^Sum\.",
                                     r"starling/base/sum.cc | s/return a + b;/for (volatile int i = a;; i = b) continue;/ | sum_test | ^Sum\.",
                                     options=("--write", str(self.root / "page.md")))
        self.assertEqual(status, 0, output)
        self.assertIn("2 bugs, 2 caught", output)
        page = (self.root / "page.md").read_text()
        self.assertIn("| base | 2 | 2 | 2 |", page)
        self.assertIn("| `starling/base/sum.cc` | 3 | Sum.OfTwo |", page)
        self.assertEqual((self.root / "starling/base/sum.cc").read_text(), self.SUM)

    def test_the_expression_of_every_planted_bug_still_changes_its_file(self):
        lines = (TOOLS / "mutations.txt").read_text(encoding="utf-8").splitlines()
        bugs = [line.split(" | ") for line in lines if line and not line.startswith("#")]
        self.assertGreater(len(bugs), 60)
        for file, expression, _, _ in bugs:
            with self.subTest(file=file, expression=expression):
                path = TOOLS.parent / file
                changed = subprocess.run(["sed", expression, str(path)], capture_output=True, check=True).stdout
                self.assertNotEqual(changed, path.read_bytes())

    def test_a_bug_that_no_test_catches_is_named(self):
        status, output = self.mutate(r"starling/base/sum.cc | s/return 1/return 2/ | sum_test | ^Sum\.",
                                     r"starling/base/sum.cc | s/a + b/a * b/ | sum_test | ^Sum\.")
        self.assertEqual(status, 1)
        self.assertIn("2 bugs, 1 caught", output)
        self.assertIn("MISSED: starling/base/sum.cc | s/return 1/return 2/", output)

    def test_what_cannot_be_tried_is_no_success(self):
        for line, reason in ((r"starling/base/sum.cc | s/nothing of this/x/ | sum_test | ^Sum\.", "changes nothing"),
                             (r"starling/base/gone.cc | s/a/b/ | sum_test | ^Sum\.", "no such file"),
                             (r"starling/base/sum.cc | s/a + b/a +/ | sum_test | ^Sum\.", "does not build"),
                             (r"starling/base/sum.cc | s/a + b/a - b/ | other_test | ^Sum\.", "no such target"),
                             (r"starling/base/sum.cc | s/a + b/a - b/ | sum_test | ^Difference\.", "no test of this name")):
            status, output = self.mutate(line)
            self.assertEqual(status, 1, output)
            self.assertIn(reason, output)

    def test_the_list_can_be_planted(self):
        status, output = self.run_tool("mutate", "--check")
        self.assertEqual(status, 0, output)
        status, output = self.mutate(r"starling/base/sum.cc | s/gone/x/ | sum_test | ^Sum\.", options=("--check",))
        self.assertEqual(status, 1)
        self.assertIn("line 3: starling/base/sum.cc: the expression changes nothing", output)


class SupplyChain(Tree):
    """tools/sbom, and the lists of packages that other tools install."""

    def setUp(self):
        super().setUp()
        loader = importlib.machinery.SourceFileLoader("sbom", str(TOOLS / "sbom"))
        self.sbom = importlib.util.module_from_spec(importlib.util.spec_from_loader("sbom", loader))
        sys.dont_write_bytecode = True
        loader.exec_module(self.sbom)
        self.sbom.ROOT = self.root

    def test_missing_headers_of_fmt_are_an_error_unless_libtorch_is_the_users(self):
        for cache in ("", "STARLING_TORCH:PATH=\nSTARLING_TORCH_FREE:BOOL=OFF\n"):
            self.write("CMakeCache.txt", cache)
            with self.assertRaisesRegex(SystemExit, "have no fmt"):
                self.sbom.fmt_of_torch(self.root)
        self.write("CMakeCache.txt", "STARLING_TORCH:PATH=/opt/libtorch\n")
        self.assertEqual(self.sbom.fmt_of_torch(self.root), [])

    def test_plugins_and_the_module_for_python_are_examined(self):
        for name in ("starling", "lib/starling/libstarling_nccl.so", "python/starling_c10d/_C.cpython-311.so"):
            self.write(name, "")
        found = [str(p.relative_to(self.root)) for p in self.sbom.programs_of(self.root)]
        self.assertEqual(found, ["starling", "lib/starling/libstarling_nccl.so", "python/starling_c10d/_C.cpython-311.so"])

    def test_nccl_gets_the_version_of_its_wheel(self):
        self.write("site-packages/nvidia_nccl_cu13-2.30.7.dist-info/METADATA", "")
        self.write("site-packages/nvidia/nccl/lib/libnccl.so.2", "")
        found = self.sbom.nccl_of(str(self.root / "site-packages/nvidia/nccl/lib/libnccl.so.2"))
        self.assertEqual([c["purl"] for c in found], ["pkg:pypi/nvidia-nccl-cu13@2.30.7"])
        self.write("other/lib/libnccl.so.2", "")
        with self.assertRaisesRegex(SystemExit, "no wheel nvidia-nccl-cu13"):
            self.sbom.nccl_of(str(self.root / "other/lib/libnccl.so.2"))

    # The text of a script, such as a command to copy, is examined like its code.
    def test_pip_installs_only_what_has_a_hash(self):
        for path in [*TOOLS.iterdir(), *(TOOLS.parent / "bench").rglob("*")]:
            if not path.is_file():
                continue
            text = path.read_text(errors="replace")
            for call in re.finditer(r"\bpip(\"|) ?,? ?(\"|)(install|download)\b", text):
                command = text[call.start():call.start() + 300]
                with self.subTest(path=path.name, command=command):
                    self.assertTrue("--require-hashes" in command or "--no-index" in command)
        lists = [*(TOOLS / "requirements").glob("*.txt"), *(TOOLS.parent / "bench").rglob("requirements/*.txt")]
        self.assertGreater(len(lists), 5)
        for path in lists:
            for block in re.split(r"\n(?=[A-Za-z])", path.read_text()):
                if "==" in block:
                    self.assertIn("--hash=sha256:", block)


if __name__ == "__main__":
    main()
