"""What CI gives to ctest and reads from it: no test is left out, and no failure hides.

Most tests make a folder with a small list of tests for ctest and run it as CI does.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from program import main

TOOLS = pathlib.Path(__file__).resolve().parent.parent / "tools"
# Fails in its first run. Passes in each later run.
ONCE = "test -e {0} || {{ touch {0}; echo the first run fails; exit 1; }}"


class Ctest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.log, self.report = self.root / "log", self.root / "junit.xml"

    def ctest(self, properties="", **commands):
        """Runs ctest on these shell commands. Returns its exit status."""
        (self.root / "CTestTestfile.cmake").write_text("".join(
            f"add_test({name} sh -c [=[{command}]=])\n{f'set_tests_properties({name} PROPERTIES {properties})' if properties else ''}\n"
            for name, command in commands.items()))
        done = subprocess.run(["ctest", "--test-dir", self.root, "--output-on-failure", "--repeat", "until-pass:2", "--output-junit",
                               self.report], capture_output=True, text=True, timeout=60)
        self.log.write_text(done.stdout)
        return done.returncode

    def tool(self, name, *arguments):
        done = subprocess.run([sys.executable, "-B", TOOLS / name, *arguments], capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    def test_a_test_that_passes_the_second_time_is_named(self):
        self.assertEqual(self.ctest(good="true", disturbed=ONCE.format(self.root / "mark")), 0)
        status, output = self.tool("second_chances", self.log)
        self.assertEqual((status, output), (0, "second_chances: disturbed failed once (Failed) and then passed\n"))

    def test_a_test_that_fails_twice_fails(self):
        self.assertNotEqual(self.ctest(good="true", wrong="echo the values differ; exit 1"), 0)
        self.assertEqual(self.tool("second_chances", self.log), (0, ""))

    def test_a_report_of_a_sanitizer_is_no_disturbance(self):
        once = ONCE.format(self.root / "mark").replace("the first run fails", "WARNING: ThreadSanitizer: data race")
        self.assertEqual(self.ctest(race=once), 0)
        status, output = self.tool("second_chances", self.log)
        self.assertEqual(status, 1)
        self.assertIn("race failed once", output)
        self.assertIn("a sanitizer reported an error", output)

    def test_a_report_of_a_rank_that_is_cut_to_its_last_lines_is_found(self):
        once = ONCE.format(self.root / "mark").replace("the first run fails", "SUMMARY: ThreadSanitizer: data race a.cc:7 in f")
        self.assertEqual(self.ctest(race=once), 0)
        self.assertEqual(self.tool("second_chances", self.log)[0], 1)

    def test_a_crash_is_not_forgiven(self):
        once = ONCE.format(self.root / "mark")
        for signal in ("SEGV", "ABRT"):
            with self.subTest(signal=signal):
                (self.root / "mark").unlink(missing_ok=True)
                self.assertEqual(self.ctest(crash=once.replace("exit 1", f"kill -{signal} $$")), 0)
                status, output = self.tool("second_chances", self.log)
                self.assertEqual(status, 1, self.log.read_text())
                self.assertIn("crash crashed", output)

    def test_a_skip_in_the_second_run_does_not_hide_a_failure(self):
        once = ONCE.format(self.root / "mark")
        self.assertEqual(self.ctest("SKIP_RETURN_CODE 77", odd=f"{once}; exit 77"), 0)
        status, output = self.tool("second_chances", self.log)
        self.assertEqual(status, 1, self.log.read_text())
        self.assertIn("odd failed once (Failed) and was then skipped", output)

    def test_a_skip_does_not_hide_a_failure_of_the_same_suite(self):
        """ctest calls an entry with SKIP_REGULAR_EXPRESSION skipped, also if its status is 1.

        No suite has one.
        """
        both = 'echo "[  SKIPPED ] A.B"; echo "[  FAILED  ] A.C"; exit 1'
        self.assertEqual(self.ctest('SKIP_REGULAR_EXPRESSION "SKIPPED"', suite=both), 0)
        self.assertNotEqual(self.ctest(suite=both), 0)
        entries = (pathlib.Path(os.environ["STARLING_BUILD"]) / "CTestTestfile.cmake").read_text()
        suites = re.findall(r"^set_tests_properties\(\[=\[(\w+\.\*)\]=\] (.*)", entries, re.MULTILINE)
        self.assertGreater(len(suites), 50)
        self.assertEqual([name for name, properties in suites if "SKIP" in properties], [])
        files = re.findall(r"^set_tests_properties\(\[=\[(\w+_test\.\w+\.\w+)\]=\] (.*)", entries, re.MULTILINE)
        self.assertGreater(len(files), 300)
        self.assertEqual([name for name, properties in files if "SKIP_REGULAR_EXPRESSION" in properties], [])

    def test_a_skipped_test_inside_a_suite_needs_an_allowed_reason(self):
        allowed, suites = self.root / "allowed", self.root / "suites" / "x_test"
        allowed.write_text("this machine has no fpu\n")
        suites.mkdir(parents=True)
        self.assertEqual(self.ctest(suite="true"), 0)

        def check(reason):
            (suites / "A.xml").write_text(f"""<?xml version="1.0"?><testsuites><testsuite name="A">
              <testcase name="B" classname="A" result="completed" />
              <testcase name="C" classname="A" result="skipped"><skipped message="a_test.cc:7&#x0A;{reason}" /></testcase>
              </testsuite></testsuites>""")
            return self.tool("check_skips", allowed, self.report, *sorted(self.root.glob("suites/*/*.xml")))

        self.assertEqual(check("this machine has no fpu")[0], 0)
        status, output = check("not today")
        self.assertEqual(status, 1)
        self.assertIn("not allowed: A.C: not today", output)


class ListTests(unittest.TestCase):
    # Prints the tests that unittest finds in the files of this folder.
    FOUND = """
import importlib, os, pathlib, unittest
def each(suite):
    for part in suite:
        yield from each(part) if isinstance(part, unittest.TestSuite) else [part]
for file in sorted(pathlib.Path.cwd().glob("*_test.py")):
    for test in each(unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(file.stem))):
        print(test.id().replace(".", " ", 1))
"""

    def test_every_test_that_unittest_finds_is_listed(self):
        tests = pathlib.Path(__file__).resolve().parent
        done = subprocess.run([sys.executable, TOOLS / "list_tests", *tests.glob("*_test.py")], capture_output=True, text=True, check=True)
        listed = [line.rsplit(" ", 1)[0] for line in done.stdout.splitlines()]
        done = subprocess.run([sys.executable, "-B", "-c", self.FOUND], capture_output=True, text=True, cwd=tests)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(len(listed), 400)
        self.assertEqual(sorted(listed), sorted(done.stdout.splitlines()))

    def test_every_file_of_tests_is_in_the_build(self):
        tests = pathlib.Path(__file__).resolve().parent
        words = re.findall(r"\w+", (tests.parent / "cmake/checks.cmake").read_text())
        self.assertEqual([file.name for file in tests.glob("*_test.py") if file.stem.removesuffix("_test") not in words], [])

    def test_a_test_of_four_ranks_reserves_two_processors(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "a_test.py"
            file.write_text("class A(B):\n  def test_x(self):\n    self.train('-n', 4)\n  def test_y(self):\n    self.train('-n', 2)\n")
            done = subprocess.run([sys.executable, TOOLS / "list_tests", file], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout, "a_test A.test_x 2\na_test A.test_y 1\n")


if __name__ == "__main__":
    main()
