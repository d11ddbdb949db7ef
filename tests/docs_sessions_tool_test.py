"""tools/run_docs_sessions runs the sessions of a page and finds differences.

Each test has a small page of its own.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

from program import main

TOOL = pathlib.Path(__file__).resolve().parent.parent / "tools" / "run_docs_sessions"


class Sessions(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def run_page(self, text, *arguments, **variables):
        """Runs the tool on a page with this text and returns (exit status, output)."""
        (self.root / "page.md").write_text(text, encoding="utf-8")
        done = subprocess.run([sys.executable, "-B", str(TOOL), "--build", str(self.root), *arguments, str(self.root / "page.md")],
                              capture_output=True, text=True, timeout=60, env={**os.environ, **variables})
        return done.returncode, done.stdout + done.stderr

    def passes(self, text, **variables):
        status, output = self.run_page(text, **variables)
        self.assertEqual(status, 0, output)
        return output

    def fails(self, text):
        status, output = self.run_page(text)
        self.assertEqual(status, 1, output)
        return output

    @staticmethod
    def console(*lines, words=""):
        return "\n".join(["```console" + words, *lines, "```", ""])

    def test_passes_what_is_shown_and_counts_commands(self):
        output = self.passes(self.console("$ echo one", "one", "", "$ printf 'a\\nb\\n'", "a", "b"))
        self.assertIn("2 commands", output)

    def test_finds_a_line_that_differs_and_says_where(self):
        output = self.fails("# Page\n\n" + self.console("$ echo one", "two"))
        self.assertIn("page.md:4: $ echo one", output)
        self.assertIn("  | two", output)
        self.assertIn("  | one", output)

    def test_finds_lines_too_many_and_too_few(self):
        self.fails(self.console("$ printf 'a\\nb\\n'", "a"))
        self.fails(self.console("$ printf 'a\\n'", "a", "b"))

    def test_a_command_without_lines_is_held_to_its_status_only(self):
        self.passes(self.console("$ echo anything"))
        self.assertIn("exit status 1, shown is 0", self.fails(self.console("$ false")))

    def test_exit_status(self):
        self.passes(self.console("$ sh -c 'echo no; exit 2'", "no", "[exit status 2]"))
        self.assertIn("exit status 0, shown is 2", self.fails(self.console("$ true", "[exit status 2]")))

    def test_the_shell_may_not_end(self):
        self.assertIn("the shell ended", self.fails(self.console("$ exit 0")))

    def test_dots_stand_for_any_number_of_lines(self):
        for shown in (["...", "c"], ["a", "..."], ["a", "...", "b", "...", "c", "..."], ["..."]):
            self.passes(self.console("$ printf 'a\\nb\\nc\\n'", *shown))
        self.fails(self.console("$ printf 'a\\nb\\nc\\n'", "...", "b"))
        self.fails(self.console("$ printf 'a\\nb\\nc\\n'", "b", "..."))

    def test_dots_within_a_line_stand_for_any_text(self):
        self.passes(self.console("$ echo commit 3fa9c1 by me", "commit ... by me"))
        self.fails(self.console("$ echo commit 3fa9c1 by me", "commit ... by you"))

    def test_numbers_vary_unless_the_block_is_exact(self):
        self.passes(self.console("$ echo 'loss -0.25 after 1,024 steps, 3e-05'", "loss 1.5 after   7 steps, 2"))
        self.fails(self.console("$ echo 'loss 0.25'", "accuracy 0.25"))
        self.passes(self.console("$ echo 'loss 0.250'", "loss 0.25", words=" exact"))
        self.fails(self.console("$ echo 'loss 0.26'", "loss 0.25", words=" exact"))

    def test_continuation_by_backslash_and_by_prompt(self):
        self.passes(self.console("$ echo a \\", "    b", "a b", "$ cat <<END", "> x", "> END", "x"))

    def test_one_shell_a_page(self):
        self.passes(self.console("$ mkdir new && cd new", "$ name=kept") + "Text.\n\n" +
                    self.console("$ basename $PWD; echo $name", "new", "kept"))

    def test_files_with_a_title_are_written(self):
        self.passes("```cpp title=\"src/main.cc\"\nint x;\n```\n\n" + self.console("$ cat src/main.cc", "int x;"))
        self.fails("```cpp title=\"../main.cc\"\nint x;\n```\n\n" + self.console("$ cat ../main.cc", "int x;"))

    def test_blocks_that_are_not_run_need_a_reason(self):
        self.passes(self.console("$ false", words=' norun reason="needs two hosts"') + self.console("$ true"))
        self.assertIn("norun needs reason", self.fails(self.console("$ false", words=" norun")))

    def test_other_blocks_are_not_run(self):
        self.passes("```bash\nfalse\n```\n" + self.console("$ true"))

    def test_a_block_begins_with_a_command(self):
        self.assertIn("page.md:2: a console block begins with a command", self.fails(self.console("false", "$ true")))

    def test_starling_is_that_of_the_build_and_knows_nothing_of_an_outer_run(self):
        (self.root / "starling").write_text("#!/bin/sh\necho ours ${RANK:-alone}\n", encoding="utf-8")
        (self.root / "starling").chmod(0o755)
        self.passes(self.console("$ starling", "ours alone"), RANK="3")

    def test_nobody_is_left_and_the_folder_goes(self):
        mark = f"{os.getpid()}.{time.monotonic_ns()}"
        output = self.passes(self.console(f"$ sleep 1{mark} & setsid sleep 2{mark} >/dev/null 2>&1 &", "$ echo in $PWD", "in ..."))
        self.assertNotIn("kept", output)
        for folder in pathlib.Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    self.assertNotIn(mark.encode(), (folder / "cmdline").read_bytes())
                except OSError:
                    pass

    def test_the_warning_of_a_machine_with_few_cores_is_passed_over(self):
        warning = "warning: 2 ranks of 1 thread on 1 core: the threads share cores. Fewer ranks or threads would be faster"
        self.passes(self.console(f"$ echo '{warning}'; echo begun", "begun"))
        self.fails(self.console("$ echo 'warning: another'; echo begun", "begun"))

    def test_the_time_of_a_page_ends(self):
        output = self.fails("<!-- timeout: 1 -->\n" + self.console("$ echo begun; sleep 50"))
        self.assertIn("the page's time is over", output)
        self.assertIn("begun", output)

    def test_requirements(self):
        self.assertIn("unknown requirement gpus", self.fails("<!-- requires: gpus -->\n" + self.console("$ true")))
        self.passes("<!-- requires: examples -->\n" + self.console("$ ls examples/digits.toml", "examples/digits.toml"))

    def test_names_of_network_namespaces_are_the_page_s_own(self):
        status, output = self.run_page("<!-- requires: namespaces -->\n" + self.console(
            "$ ip netns add node-a", "$ ip netns", "node-a", "$ ip netns exec node-a ip -o link show lo", "1: lo: ..."))
        if status == 77:
            self.skipTest(output)
        self.assertEqual(status, 0, output)
        self.assertNotIn("node-a", subprocess.run(["ip", "netns"], capture_output=True, text=True, check=False).stdout)

    def test_a_page_that_cannot_run_here_is_skipped_with_its_reason(self):
        (self.root / "unshare").write_text("#!/bin/sh\necho not you >&2\nexit 1\n", encoding="utf-8")
        (self.root / "unshare").chmod(0o755)
        status, output = self.run_page("<!-- requires: namespaces -->\n" + self.console("$ false"),
                                       PATH=f"{self.root}:{os.environ['PATH']}")
        self.assertEqual(status, 77, output)
        self.assertIn("page.md ... skipped: network namespaces are not permitted here: not you", output)

    def test_no_session_at_all_is_an_error(self):
        self.assertIn("no page has a console block", self.fails("# Nothing\n"))


if __name__ == "__main__":
    main()
