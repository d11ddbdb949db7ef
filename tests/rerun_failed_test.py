"""tools/rerun_failed tells tests that are wrong from tests that were disturbed.

Each test makes a folder with a small list of tests for ctest and runs it as CI does.
"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parent.parent / "tools" / "rerun_failed"
# Fails in its first run. Passes in each later run.
ONCE = "test -e {0} || {{ touch {0}; echo the first run fails; exit 1; }}"


class Rerun(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def run_tests(self, **commands):
        """Runs ctest on these shell commands, then the tool. Returns (exit status, output) of the tool."""
        (self.root / "CTestTestfile.cmake").write_text(
            "".join(f"add_test({name} sh -c [=[{command}]=])\n" for name, command in commands.items()))
        report = self.root / "junit.xml"
        subprocess.run(["ctest", "--test-dir", self.root, "--output-on-failure", "--output-junit", report],
                       capture_output=True, timeout=60)
        done = subprocess.run([sys.executable, "-B", TOOL, self.root, report], capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    def unstable(self):
        file = self.root / "unstable-tests"
        return file.read_text().split() if file.exists() else []

    def test_a_test_that_passes_three_times_is_unstable(self):
        status, output = self.run_tests(good="true", disturbed=ONCE.format(self.root / "mark"))
        self.assertEqual(status, 0, output)
        self.assertIn("the first run fails", output)
        self.assertEqual(self.unstable(), ["disturbed"])

    def test_a_test_that_fails_again_is_wrong(self):
        status, output = self.run_tests(good="true", wrong="echo the values differ; exit 1")
        self.assertNotEqual(status, 0)
        self.assertIn("the values differ", output)
        self.assertEqual(self.unstable(), [])

    def test_a_test_that_fails_in_its_third_run_is_wrong(self):
        count = self.root / "count"
        status, output = self.run_tests(rare=f"echo x >>{count}; n=$(wc -l <{count}); test $n -eq 2 -o $n -eq 3")
        self.assertNotEqual(status, 0, output)

    def test_a_report_of_a_sanitizer_is_no_disturbance(self):
        once = ONCE.format(self.root / "mark").replace("the first run fails", "WARNING: ThreadSanitizer: data race")
        status, output = self.run_tests(race=once)
        self.assertNotEqual(status, 0)
        self.assertIn("a sanitizer reported an error in race", output)

    def test_many_failed_tests_are_not_run_again(self):
        status, output = self.run_tests(**{f"t{i}": ONCE.format(self.root / f"mark{i}") for i in range(4)})
        self.assertNotEqual(status, 0)
        self.assertIn("4 tests failed", output)

    def test_a_missing_report_is_an_error(self):
        done = subprocess.run([sys.executable, "-B", TOOL, self.root, self.root / "none.xml"], capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("cannot be read", done.stderr)


if __name__ == "__main__":
    unittest.main()
