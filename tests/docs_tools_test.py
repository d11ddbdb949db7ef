"""tools/check_docs, the filter for Doxygen and the pages of the site.

Each test has a small tree of its own.
"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parent.parent / "tools"
sys.path.insert(0, str(TOOLS))
import cpp_reference  # noqa: E402
import site_pages  # noqa: E402

from program import main

SCHEMA = '{.key = "optimizer.lr", .flags = "--lr"},\n{.key = "train.ranks", .flags = "-n,--ranks"},\n'


class Tree(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        subprocess.run(["git", "init", "-q", str(self.root)], check=True)

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text, encoding="utf-8")


class CheckDocs(Tree):
    def setUp(self):
        super().setUp()
        self.write("starling/spec/schema_table.cc", SCHEMA)
        self.write("apps/main.cc", 'void f() { app.add_flag("--json", x); app.add("--set"); int group_count = 0; }\nclass ServerTable {};\n'
                   'const int kBytes = 1; set("staleness_" + n); auto y = train.loss;\n')

    def check(self):
        done = subprocess.run([sys.executable, str(TOOLS / "check_docs"), str(self.root)], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def passes(self, path, text):
        self.write(path, text)
        status, output = self.check()
        self.assertEqual(status, 0, output)

    def finds(self, path, text, *problems):
        """Expects that tools/check_docs finds exactly these problems in the text."""
        self.write(path, text)
        status, output = self.check()
        self.assertEqual(status, 1, output)
        found = [line for line in output.splitlines() if not line.startswith("check_docs:")]
        self.assertEqual(len(found), len(problems), output)
        for line, problem in zip(found, problems):
            self.assertIn(problem, line)

    def test_links_and_anchors(self):
        self.write("docs/other.md", "# A `code` title: two\n\n## Part\n\n<a id=\"here\"></a>\n")
        self.passes("docs/a.md", "# A\n\n[1](other.md) [2](other.md#a-code-title-two) [3](#a) [4](../apps/main.cc)\n"
                    "[5](https://example.org/x) [`6`](other.md#here)\n\n```text\n[7](nowhere.md)\n```\n\n`[8](nowhere.md)`\n")
        self.finds("docs/a.md", "[1](nowhere.md)\n[2](other.md#nowhere) ![3](no.svg)\n\n[4]: no.svg\n<img src=\"no.png\">\n",
                   "docs/a.md:1: the link nowhere.md", "a.md:2: docs/other.md has no heading or anchor #nowhere", "a.md:2: the link no.svg",
                   "a.md:4: the link no.svg", "a.md:5: the link no.png")

    def test_lengths(self):
        wide = "word " * 23
        self.passes("docs/a.md", f"| {wide} |\n|---|\n\n```text\n{wide}\n```\n" + "x" * 110 + "\n")
        self.finds("docs/a.md", "x" * 111 + "\n", "docs/a.md:1: 111 columns")
        self.write("docs/a.md", "")
        self.passes("README.md", "x\n" * 90)
        self.finds("README.md", "x\n" * 91, "README.md:91: 91 lines; at most 90")

    def test_every_line_of_readme_is_narrow(self):
        def page(columns):
            fence = "`" * 3
            return (f"| {'x' * (columns - 4)} |\n|---|\n\n<p {'x' * (columns - 4)}>\n\n"
                    f"[a]: https://{'x' * (columns - 13)}\n\n{fence}text\n{'x' * columns}\n{fence}\n")

        self.passes("docs/a.md", page(111))
        self.passes("README.md", page(110))
        wide = [f"README.md:{line}: 111 columns; at most 110" for line in (1, 4, 6, 9)]
        self.finds("README.md", page(111), *wide)

    def test_the_words_of_the_evidence(self):
        words = "seed " + "document"
        self.passes("docs/evidence.md", f"What the {words}s ask.\n")
        self.finds("tools/x.sh", f"# the Seed\n# {words.split()[1]}s\n", "tools/x.sh:1: \"" + words)

    def test_keys(self):
        self.passes("docs/a.md", "`optimizer.lr`, `train.json`, `train.fit()`, `x.train.loss`\n\n```console\n$ x --set train.ranks=2\n```\n\n"
                    "```toml\n[train]\nranks = 2\n[other]\nx = 1\n```\n\ntrain.nothing in prose\n")
        self.finds("docs/a.md", "`optimizer.rate`\n\n```console\n$ x --set nothing.at_all=2\n```\n\n```toml\n[train]\nrank = 2\n```\n",
                   "a.md:1: there is no configuration key optimizer.rate", "a.md:4: there is no configuration key nothing.at_all",
                   "a.md:9: there is no configuration key train.rank")
        self.write("docs/a.md", "")
        self.passes("starling/x.cc", "// optimizer.lr is a rate, train.loss is an expression.\nf(R\"js(train.curve --x)js\", \"--set train.KEY=1\");\n")
        self.finds("starling/x.cc", '// See optimizer.rate.\nfail("set train.rank");\n', "x.cc:1: there is no configuration key optimizer.rate",
                   "x.cc:2: there is no configuration key train.rank")

    def test_flags(self):
        self.passes("docs/a.md", "`--lr` and `--json`\n\n```console\n$ mpiexec --bind-to none starling --ranks 2\n$ srun \\\n    --exclusive\n```\n")
        self.finds("docs/a.md", "`--rate`\n\n```console\n$ mpiexec --bind-to none starling --bind-to 2\n```\n",
                   "a.md:1: no program of ours has the flag --rate", "a.md:4: no program of ours has the flag --bind-to")
        self.write("docs/a.md", "")
        self.finds("starling/x.cc", '// Set by --rate.\nfail("give --rates");\n', "x.cc:1: no program", "x.cc:2: no program")

    def test_names(self):
        self.passes("docs/a.md", "`group_count`, `ServerTable`, `kBytes`, `staleness_<n>`, `staleness_3`, `x_k`, `n_push`; mean_old in prose\n")
        self.finds("docs/a.md", "`group_number` `OldTable` `kOld` `STARLING_OLD`\n", "named group_number", "named OldTable", "named kOld",
                   "named STARLING_OLD")
        self.write("docs/a.md", "")
        self.passes("starling/x.cc", "// group_count and ServerTables; f(/*strict_mode=*/true)\n")
        self.finds("starling/x.cc", "// group_number of an OldTable\n", "x.cc:1: nothing in the code is named group_number", "named OldTable")

    def test_files(self):
        self.passes("starling/x.cc", "// See apps/main.cc, main.cc, spec/schema_table.cc, <torch/nn.h>, docs/PAGE.md and starling/spec.\n")
        self.finds("starling/x.cc", "// See apps/old.cc and old.h.\n// starling/old/x\nfail(\"see docs/old.md\");\n", "x.cc:1: the file apps/old.cc",
                   "x.cc:1: the file old.h", "x.cc:2: starling/old/x does not exist", "x.cc:3: the file docs/old.md")
        self.write("docs/a.md", "# Title\n\n## Part\n")
        self.passes("starling/x.cc", "// docs/a.md#part\n")
        self.finds("starling/x.cc", "// docs/a.md#old\n", "x.cc:1: docs/a.md has no heading or anchor #old")

    def test_fields_of_events(self):
        self.write("starling/telemetry/to_json.cc", 'out["step"] = 1;\nall.push_back({{"rank", 1},\n  {"wait_s", 2}});\n')
        self.passes("docs/reference/run-folder.md", "| `step` | `rank` | `wait_s` |\n")
        self.finds("docs/reference/run-folder.md", "| `step` |\n", "to_json.cc:2: docs/reference/run-folder.md does not describe `rank`",
                   "to_json.cc:3: docs/reference/run-folder.md does not describe `wait_s`")

    def test_flags_beside_names_of_other_frameworks(self):
        self.write("docs/reference/configuration.md", "| Key | Type | Default | Flag | Meaning |\n|---|---|---|---|---|\n"
                   "| `exchange.name` | one of all-reduce, gossip | `\"all-reduce\"` | `--exchange NAME` | How ranks agree. |\n"
                   "| `exchange.codec` | a text | `\"none\"` | `--codec NAME` | NAME is none, fp16 or prune, or prune+fp16. |\n"
                   "| `train.tune` | true or false | `false` | `--tune` | Measures. |\n"
                   "| `train.ranks` | an integer | `1` | `-n, --ranks N` | Processes. |\n"
                   "| `train.layout` | one of a, b | `\"a\"` |  | Layout. |\n")
        self.write("starling/spec/schema_table.cc", "".join(f'{{.key = "{key}", .flags = "{flags}"}},\n' for key, flags in (
            ("exchange.name", "--exchange"), ("exchange.codec", "--codec"), ("train.tune", "--tune"), ("train.ranks", "-n,--ranks"),
            ("train.layout", ""))))
        page, head = "docs/reference/other-frameworks.md", "| Starling | X |\n|---|---|\n"
        good = "| `--exchange all-reduce` | |\n| `--exchange gossip -n 4`, `--ranks N` | `--tune 3` |\n"
        self.passes(page, head + good + "| `--codec prune+fp16:keep=0.5 --tune --set train.layout=b` | |\n\n| Other |\n|---|\n| text |\n")
        self.finds(page, head + good.replace("gossip", "gosip"), f"{page}:4: --exchange does not take the value gosip",
                   f"{page}:1: no row has --exchange gossip")
        self.finds(page, head + good + "| `--codec int8` | |\n| `--codec` | |\n| `--tune on` | |\n| none | |\n",
                   "5: --codec does not take the value int8", "6: --codec needs a value", "7: the configuration has no flag on",
                   "8: the first cell of the row names no flag")
        self.finds(page, head + good + "| `--set train.layout=c` | |\n| `--json` | |\n", "5: train.layout does not take the value c",
                   "6: the configuration has no flag --json")
        self.finds(page, good, f"{page}:1: no row has --exchange all-reduce", f"{page}:1: no row has --exchange gossip")

    def test_fences(self):
        fence = "`" * 3
        self.passes("docs/a.md", f"Text.\n\n{fence}cpp\nx\n{fence}\n\n- a\n  {fence}\n  x\n  {fence}\n\n`{fence}md\n{fence}\nx\n{fence}\n`{fence}\n"
                    f"\n{fence} `x` {fence}\n\n~~~\n{fence}\n~~~\n")
        self.finds("docs/a.md", f"Text.\n\n{fence}cpp\nx\n{fence}\n{fence}\nx\n", "docs/a.md:6: the block that begins here has no closing fence")
        self.finds("docs/a.md", f"Text.\n\n{fence}cpp\nx y. {fence}\n\nText.\n\n{fence}cpp\nz\n{fence}\n",
                   "docs/a.md:4: a fence inside the block of line 3", "docs/a.md:8: a fence inside the block of line 3")
        self.finds("docs/a.md", f"Text.\n\nx y. {fence}\n", "docs/a.md:3: a fence must stand alone in its line")

    def test_strategy_statistics(self):
        table = "### Strategy statistics\n\nAbout `x`.\n\n| Name | Meaning |\n|---|---|\n"
        self.write("starling/parallel/a.cc", 'StrategyStats A::strategy_stats() {\n  StrategyStats stats = {{"rounds", 1}, {"rho", 2}};  // {"no", 1}\n'
                   '  if (x_) { stats["loss"] = 1; }\n  stats["layers/" + layer] = 2;\n  return stats;\n}\nint f() { return g({"other", 1}); }\n')
        self.write("starling/parallel/b.h", 'struct B {\n  StrategyStats strategy_stats() override { return {{"every", n()}}; }\n'
                   '  StrategyStats of_a() override { return a_->strategy_stats(); }\n};\n')
        self.write("starling/parallel/c.cc", 'void C::tell(StrategyStats& stats) const {\n  const auto say = [&](const std::string& what, int n) {\n'
                   '    stats[what + "_bytes"] = n;\n  };\n  say("push", 1);\n  say("pull", 2);\n}\n')
        self.write("starling/server/server_stats.cc", 'std::map<std::string, double> server_stats(const std::vector<ServerTableStats>& shards) {\n'
                   '  std::map<std::string, double> out;\n  const auto raise = [&](const char* name, double v) { out[name] = v; };\n'
                   '  raise("max", 1);\n  out[fmt::format("pushes_{}_{}", w, s)] += 1;\n  return out;\n}\n')
        self.write("starling/train/d.cc", 'void f() { result.strategy["step_bytes"] = 1; }\n')
        self.write("starling/parallel/a_test.cc", 'StrategyStats f() { return {{"of_a_test", 1}}; }\n')
        names = ["`rounds`, `rho`", "`loss`", "`layers/<layer>`", "`every`", "`push_bytes`, `pull_bytes`", "`max`, `pushes_<worker>_<shard>`",
                 "`step_bytes`"]
        rows = [f"| {name} | `meaning` |\n" for name in names]
        page = "docs/reference/run-folder.md"
        self.passes(page, table + "".join(rows) + "\n## Other\n\n| `table` |\n")
        self.finds(page, table + rows[0] + rows[3] + rows[6], *[f"{path}: {page} does not describe the statistic {name}" for path, name in (
            ("a.cc:3", "loss"), ("a.cc:4", "layers/*"), ("c.cc:3", "push_bytes"), ("c.cc:3", "pull_bytes"), ("server_stats.cc:3", "max"),
            ("server_stats.cc:5", "pushes_*_*"))])
        self.finds(page, table + "".join(rows) + "| `steps`, `pushes_<worker>` | |\n", f"{page}:14: no strategy reports the statistic steps",
                   f"{page}:14: no strategy reports the statistic pushes_<worker>")

    def test_comments_of_scripts(self):
        self.passes("tools/a.py", '"""See apps/main.cc and --lr."""\ntext = "apps/old.cc --rate"\n\n\ndef group_names():\n'
                    '    """Returns optimizer.lr and group_names of NAME_test.py."""\n    return "# old.cc"  # main.cc\n')
        self.finds("tools/a.py", '"""See apps/old.cc."""\n\n\ndef f():\n    """Reads optimizer.rate."""\n    return 1  # --rate\n# group_number\n',
                   "tools/a.py:1: the file apps/old.cc", "tools/a.py:5: there is no configuration key optimizer.rate",
                   "tools/a.py:6: no program of ours has the flag --rate", "tools/a.py:7: nothing in the code is named group_number")
        self.write("tools/a.py", "")
        for path, first in (("tools/run", "#!/usr/bin/env bash"), ("tools/run.sh", ""), ("Makefile", "a:"), ("cmake/a.cmake", ""), ("CMakeLists.txt", "")):
            self.passes(path, f"{first}\necho '# old.cc' \"# old.h\" x#old.md $#  # main.cc\n")
            self.finds(path, f"{first}\n# See old.cc.\necho 'x' \"y\"  # --rate\n", f"{path}:2: the file old.cc",
                       f"{path}:3: no program of ours has the flag --rate")
            self.write(path, "")
        self.passes("tools/b", "#!/bin/data\n# old.cc\n")

    def test_lengths_of_comments(self):
        wide = "x" * 110
        self.passes("tools/a.py", f'"""Text.\n\n{wide}\n"""\ntext = "{wide}"  # {wide}\n')
        self.finds("tools/a.py", f'"""Text.\n\nx{wide}\n"""\n    # {wide}\n', "a.py:3: a comment of 111 columns; at most 110",
                   "a.py:5: a comment of 116 columns")
        self.write("tools/a.py", "")
        self.finds("Makefile", f"a:\n\t@echo {wide}  # x\n# {wide}\n", "Makefile:3: a comment of 112 columns")

    def test_allowed_names_shrink(self):
        self.write("tools/check_docs_names.txt", "# comment\n--theirs another program\nOtherName another project\n")
        self.passes("docs/a.md", "`--theirs` of `OtherName`\n")
        self.finds("docs/a.md", "`--theirs`\n", "check_docs_names.txt:3: nothing cites OtherName; delete the line")


class DoxygenFilter(Tree):
    def filter(self, text):
        self.write("x.h", text)
        done = subprocess.run([sys.executable, str(TOOLS / "doxygen_filter"), str(self.root / "x.h")], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.count("\n"), text.count("\n"))
        return done.stdout.split("\n")

    def test_the_block_at_the_top_is_the_file(self):
        self.assertEqual(self.filter("// What it is.\n// More.\n#pragma once\n"), ["/// @file", "/// What it is.", "/// More.", ""])

    def test_a_block_above_a_declaration_and_no_other(self):
        out = self.filter("int x;\n// Loose.\n\n// Two\n// lines.\nint f();\n}  // namespace\n// Above nothing.\n#include <x>\n")
        self.assertEqual(out[1:8], ["// Loose.", "", "/// Two", "/// lines.", "int f();", "}  // namespace", "// Above nothing."])

    def test_comments_behind_fields_and_their_continuation(self):
        out = self.filter("struct S {\n  int a = 0;  // first\n              // more\n  // Of b.\n  int b;\n};\nenum class E {\n  kA,  // one\n  kB   // two\n};\n")
        self.assertEqual(out[1:5], ["  int a = 0;  /**< first", "               * more */", "  /// Of b.", "  int b;"])
        self.assertEqual(out[7:9], ["  kA,  /**< one */", "  kB   /**< two */"])

    def test_bodies_stay(self):
        out = self.filter("inline int f() {\n  // Why.\n  int x = 1;  // one\n  return x;\n}\n// Of g.\nint g();\n")
        self.assertEqual(out[1:3], ["  // Why.", "  int x = 1;  // one"])
        self.assertEqual(out[5], "/// Of g.")

    def test_labels_code_and_special_characters(self):
        out = self.filter("// Does <it> in #3.\n// Errors: none. `<kept>`\n//\n//   int x;\n//     y;\nint f();\n")
        self.assertEqual(out[:5], [r"/// Does \<it\> in \#3.", "/// <p><b>Errors:</b> none. `<kept>`", "///", "///     int x;", "///       y;"])


class CppReference(Tree):
    SAID = ["a.h:3: warning: Member f() const (function) of class starling::A is not documented.",
            "a.h:4: warning: Member ~A()=default (function) of class starling::A is not documented.",
            "a.h:5: warning: Member A(A &&) noexcept (function) of class starling::A is not documented.",
            "b.h:9: warning: Compound starling::B is not documented."]

    def warnings(self, known, said):
        self.write(cpp_reference.UNDOCUMENTED, "# comment\n" + known)
        return cpp_reference.warnings_of(self.root, said)

    def test_what_lacks_a_comment_and_what_the_language_says(self):
        self.assertEqual(self.warnings("", self.SAID), ["a.h:3: starling::A::f() const has no comment", "b.h:9: starling::B has no comment"])

    def test_known_ones_pass_and_the_list_shrinks(self):
        known = "a.h starling::A::f() const\nb.h starling::B\n"
        self.assertEqual(self.warnings(known, self.SAID), [])
        self.assertEqual(len(self.warnings(known, self.SAID[:3])), 1)
        self.assertIn("b.h starling::B has a comment or no longer exists", self.warnings(known, self.SAID[:3])[0])
        cpp_reference.drop_documented(self.root, self.SAID[:3])
        self.assertEqual((self.root / cpp_reference.UNDOCUMENTED).read_text(), "# comment\na.h starling::A::f() const\n")

    def test_every_other_line_is_a_problem(self):
        self.assertEqual(self.warnings("", ["sh: doxygen_filter: not found"]), ["sh: doxygen_filter: not found"])

    def test_declarations_as_they_are_written(self):
        self.write("a.h", "class A {\n public:\n  A(int a,\n    int b)\n      : a_(a) {}\n  template <class T>\n  T f() const { return 1; }\n"
                   "  int x = 3;  // said\n  std::vector<int> y{1, 2};\n  virtual void g() = 0;\n};\n")
        source = cpp_reference.Source(self.root / "a.h")
        self.assertEqual(source.declaration(3), "A(int a,\n  int b);")
        self.assertEqual(source.declaration(7), "template <class T>\nT f() const;")
        self.assertEqual(source.declaration(8), "int x = 3;")
        self.assertEqual(source.declaration(9), "std::vector<int> y{1, 2};")
        self.assertEqual(source.declaration(10), "virtual void g() = 0;")


class SitePages(Tree):
    def pages(self, files, headers=None):
        for path, text in files.items():
            self.write(path, text)
        site = site_pages.Site(self.root, list(files), self.root / "pages", headers or {})
        site.write_all()
        return site

    def page(self, path):
        return (self.root / "pages" / path).read_text(encoding="utf-8")

    def test_links_lead_to_pages_sources_folders_and_headers(self):
        text = ("# A\n\n[`b`](../how-to/b.md#part) [c](../../starling/c.cc) [d](../../starling/d.h#L3) [e](../../starling/) "
                "[f](../../CHANGES.md) [g](#a)\n[h](https://example.org/) <img src=\"../p.svg\">\n\n```text\n[i](../../starling/c.cc)\n```\n")
        self.pages({"docs/tutorial/a.md": text, "docs/how-to/b.md": "# B\n", "docs/p.svg": "<svg/>", "starling/c.cc": "int `c`;\n",
                    "starling/d.h": "", "CHANGES.md": "# Changes\n"}, {"starling/d.h": "reference/cpp/d.md"})
        page = self.page("tutorial/a.md")
        for link in ("[`b`](../how-to/b.md#part)", "[c](../source/starling/c.cc.md)", "[d](../reference/cpp/d.md)", "[e](../source/starling/index.md)",
                     "[f](../project/CHANGES.md)", "[g](#a)", "[h](https://example.org/)", "src=\"../p.svg\"", "[i](../../starling/c.cc)"):
            self.assertIn(link, page)
        self.assertIn("````cpp\nint `c`;\n````", self.page("source/starling/c.cc.md"))
        self.assertIn("c.cc", self.page("source/starling/index.md"))

    def test_navigation_follows_folders_positions_and_titles(self):
        site = self.pages({"docs/index.md": "# Manual\n", "docs/tutorial/z.md": "<!-- nav: 1 -->\n# Zebra\n", "docs/tutorial/b.md": "# Bear\n",
                           "docs/tutorial/a.md": "# Cat\n", "docs/tutorial/index.md": "# Lessons\n", "docs/loose.md": "# Loose\n"})
        self.assertEqual(site_pages.json.loads(site.navigation()),
                         [{"Home": "index.md"}, {"Tutorial": ["tutorial/index.md", {"Zebra": "tutorial/z.md"}, {"Bear": "tutorial/b.md"},
                                                                {"Cat": "tutorial/a.md"}]},
                          {"More": ["loose.md"]}])

    def test_lists_and_fences_as_github_reads_them(self):
        self.assertEqual(site_pages.for_site("Text:\n- a\n  more\n  - b\n\n  ```console exact\n  $ x\n    y\n  ```\n- c\n\nEnd."),
                         "Text:\n\n- a\n    more\n    - b\n\n    ```console\n    $ x\n      y\n    ```\n- c\n\nEnd.")
        self.assertEqual(site_pages.for_site("1. a\n2. b\n\n   c\n\n```cpp title=\"x.cc\"\n- no list\n  x\n```"),
                         "1. a\n2. b\n\n    c\n\n```cpp title=\"x.cc\"\n- no list\n  x\n```")


if __name__ == "__main__":
    main()
