"""plan memory, compare and tour, from the command line to the report, which the tests open in Chromium."""
import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import unittest
import xml.etree.ElementTree as ElementTree

from program import SMALL, STARLING, ProgramTest, main, result_of

CHROMIUMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER = next((b for b in map(shutil.which, CHROMIUMS) if b), None)
VOID = {"meta", "br"}


class Report(html.parser.HTMLParser):
    """Parses a report. Every element must be closed in order, and every picture must be XML."""

    def __init__(self, text):
        super().__init__()
        self.open, self.headings, self.data = [], [], ""
        self.feed(text)
        self.close()
        self.text = text
        self.svgs = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.S)]

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append((tag, dict(attributes)))

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open and self.open[-1][0] == tag, (tag, self.open[-3:])
        self.open.pop()

    def handle_data(self, data):
        tag, attributes = self.open[-1] if self.open else ("", {})
        if tag == "h2":
            self.headings.append(data)
        if tag == "script" and attributes.get("id") == "data":
            self.data += data

    def series(self):
        """Returns, for each short name, the number of charts with a line of that name.

        Faint lines do not count.
        """
        found = {}
        for svg in self.svgs:
            for group in svg.iter("g"):
                if "data-name" in group.attrib and group.find("path") is not None:
                    found[group.attrib["data-name"]] = found.get(group.attrib["data-name"], 0) + 1
        return found


class Compare(ProgramTest):
    def report(self, folder):
        text = pathlib.Path(folder, "index.html").read_text(encoding="utf-8")
        report = Report(text)
        self.assertEqual(report.open, [])
        if BROWSER:  # without a browser, test_chromium_opens_a_page_without_an_error_of_its_script is skipped
            self.assertIn("<h1>", self.open_in_browser(folder))
        return report

    def open_in_browser(self, folder):
        """Returns the report as Chromium's scripts leave it. An error in a script fails the test."""
        done = subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom",
                               "file://" + os.path.abspath(os.path.join(folder, "index.html"))], capture_output=True, text=True,
                              timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        self.assertNotIn("Uncaught", done.stderr)
        return done.stdout

    @unittest.skipUnless(BROWSER, "Chromium is not installed here")
    def test_chromium_opens_a_page_without_an_error_of_its_script(self):
        folder = self.path("compared")
        self.run_program("compare", *SMALL, "--runs", "all-reduce", "-n", 2, "--global-batch", 16, "--budget", "samples=128",
                         "--json", "--run-dir", folder)
        shown = self.open_in_browser(folder)
        self.assertIn("<h1>", shown)
        written = pathlib.Path(folder, "index.html").read_text(encoding="utf-8")
        self.assertEqual(len(re.findall("<svg", shown)), len(re.findall("<svg", written)))
        # open_in_browser() detects an error in a script.
        broken = self.path("broken")
        os.mkdir(broken)
        text = written.replace("</body>", "<script>nothing.of_this_name();</script></body>")
        self.assertIn("of_this_name", text)
        pathlib.Path(broken, "index.html").write_text(text, encoding="utf-8")
        with self.assertRaises(AssertionError):
            self.open_in_browser(broken)

    def test_a_budget_of_seconds_takes_nothing_of_a_recipe_that_depends_on_the_length(self):
        folder = self.path("compared")
        words = ["--model", "mlp", "--data", "digits", "--set", "model.widths=[784,16,10]", "--set", "data.samples=128", "--set",
                 "data.test_samples=64", "-n", 2, "--budget", "seconds=0.5"]
        self.run_program("compare", *words, "--runs", "all-reduce", "--json", "--run-dir", folder)
        configurations = list(pathlib.Path(folder).glob("*/config.toml"))
        self.assertEqual(len(configurations), 2)
        for file in configurations:
            text = file.read_text(encoding="utf-8")
            self.assertRegex(text, r'(?m)^name += "constant"')
            self.assertRegex(text, r"(?m)^warmup_share += 0\.0")
        _, err = self.run_program("compare", *words, "--runs", "all-reduce", "--set", "schedule.warmup_share=0.1", status=2)
        self.assertIn("schedule.warmup_share", err)

    def test_plan_memory_is_what_a_run_then_counts(self):
        words = [*SMALL, "-n", 2, "--shard", "gradients", "--optimizer", "adam"]
        planned, _ = self.run_program("plan", "memory", "--json", *words)
        self.assertEqual(planned[0]["shard"], "gradients")
        row = next(e for e in planned[1:] if e["shard"] == "gradients")
        strategy = result_of(self.train(*words, "--steps", 2, "--global-batch", 16)[0])["strategy"]
        self.assertEqual(row["bytes_a_rank"], strategy["formula_bytes"])
        self.run_program("plan", "memory", "--params", "1e12", "--mesh", "stage=50,replica=16")
        _, err = self.run_program("plan", "memory", "--params", "1e9", "-n", 3, "--mesh", "stage=2", status=2)
        self.assertIn("3", err)

    def test_runs_are_compared_in_a_table_and_a_report(self):
        folder = self.path("compared")
        with open(self.path("runs.toml"), "w", encoding="utf-8") as f:
            f.write('[train]\nranks = 2\nglobal_batch = 32\n[runs.late]\nexchange = { name = "local-sgd", every = 16 }\n')
        runs = "all-reduce; late; codec=1bit; shard=gradients; mesh=stage=2:micro-batches=4; parameter-server:staleness=inf"
        events, err = self.run_program(
            "compare", "-c", self.path("runs.toml"), *SMALL, "--lr", 0.1, "--runs", runs, "--budget", "samples=1024",
            "--target-accuracy", 0.3, "--run-dir", folder, "--json")
        self.assertIn("1/7 one rank", err)
        rows = {e["run"]: e for e in events if e["event"] == "compared"}
        self.assertEqual(len(rows), 7)
        self.assertNotIn("error", json.dumps(rows))
        self.assertEqual(events[-1]["report"], folder + "/index.html")
        self.assertEqual(rows["one rank"]["bytes"], 0)
        self.assertEqual(rows["one rank"]["speed_up"], 1)
        self.assertLess(rows["late"]["bytes"], rows["all-reduce"]["bytes"] / 4)
        self.assertLess(rows["codec=1bit"]["bytes"], rows["all-reduce"]["bytes"] / 8)
        # The server's link carries more bytes than the link of a worker.
        self.assertGreater(rows["parameter-server:staleness=inf"]["bytes_balance"], 1.2)
        self.assertLess(rows["all-reduce"]["bytes_balance"], 1.1)
        self.assertGreater(rows["all-reduce"]["samples_to_target"], 0)
        # All runs begin with equal weights, samples and order. Runs with the update of one process have its
        # first loss.
        self.check_local_cores(folder)
        first = self.first_losses(folder)
        for name in ("01-all-reduce", "03-codec-1bit", "04-shard-gradients", "05-mesh-stage-2-micro-batches-4"):
            self.assertAlmostEqual(first[name], first["00-one-rank"], places=4)
        self.check_report(self.report(folder), rows)

    def check_local_cores(self, folder):
        """Checks the number of a run's processes, servers included, and of the cores that they may use."""
        for name, processes in (("00-one-rank", 1), ("01-all-reduce", 2), ("06-parameter-server-staleness-inf", 3)):
            with open(pathlib.Path(folder, name, "events.jsonl"), encoding="utf-8") as events:
                start = next(e for e in map(json.loads, events) if e["event"] == "run")
            self.assertEqual(start["local_processes"], processes)
            self.assertEqual(start["local_cores"], len(os.sched_getaffinity(0)))

    def first_losses(self, folder):
        losses = {}
        for path in pathlib.Path(folder).glob("*/events.jsonl"):
            events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            losses[path.parent.name] = next(e["loss"] for e in events if e["event"] == "step")
        return losses

    def check_report(self, report, rows):
        self.assertEqual([r["run"] for r in json.loads(report.data)["runs"]], list(rows))
        runs = {r["run"]: r for r in json.loads(report.data)["runs"]}
        self.assertEqual(runs["codec=1bit"]["name"], "1bit")
        self.assertEqual(len(runs["codec=1bit"]["curve"]["average"]), 32)
        series = report.series()
        self.assertEqual(series["1bit"], 4)
        # The charts show time, samples and accuracy. One rank has no chart of bytes, because it sends none.
        self.assertEqual(series["one rank"], 3)
        self.assertIn("Without a line: one rank.", report.text)
        self.assertIn(">bytes sent by all ranks and servers (logarithmic)<", report.text)
        self.assertEqual(series["late"], 4)
        self.assertEqual([series[f"{name}, formula"] for name in ("star", "tree", "ring")], [1, 1, 1])
        kinds = [svg.attrib.get("class") for svg in report.svgs]
        self.assertEqual([kinds.count(kind) for kind in ("lines", "timeline", "bars", "pairs")], [5, 1, 1, 1])
        timeline = next(svg for svg in report.svgs if svg.attrib.get("class") == "timeline")
        for panel in timeline.iter("g"):  # two stages, four micro-batches
            self.assertEqual(sum(r.attrib["class"] == "c1" for r in panel.iter("rect")), 8, panel.attrib)
        layers = next(svg for svg in report.svgs if svg.attrib.get("class") == "pairs")
        self.assertEqual([g.attrib["data-first"] for g in layers.iter("g")], [str(4 * 784 * 64), str(4 * 640)])

    def test_seconds_end_a_run_and_a_failure_is_told(self):
        events, err = self.run_program(
            "compare", *SMALL, "--runs", "gossip,all-reduce:init=nowhere.safetensors", "-n", 2, "--global-batch", 16,
            "--budget", "seconds=0.2", "--json", "--run-dir", self.path("compared"), status=1)
        rows = {e["run"]: e for e in events if e["event"] == "compared"}
        self.assertGreaterEqual(rows["gossip"]["seconds"], 0.2)
        self.assertIn("nowhere.safetensors", rows["all-reduce:init=nowhere.safetensors"]["error"])
        self.assertIn("failed", err)

    def test_what_cannot_be_compared_is_refused_before_anything_runs(self):
        for words, reason in ((["--runs", "gosip", "--budget", "samples=64"], "did you mean gossip"),
                              (["--runs", "gossip:codec=int8", "--budget", "samples=64"], "run gossip:codec=int8"),
                              (["--runs", "gossip", "--budget", "minutes=1"], "samples=N or seconds=S"),
                              (["--runs", "gossip", "--budget", "samples=1"], "less than one step"),
                              (["--runs", "gossip", "--budget", "seconds=1", "--lr-schedule", "cosine"], "samples=N"),
                              (["--runs", "gossip"], "--budget")):
            with self.subTest(words=words):
                _, err = self.run_program("compare", *SMALL, "-n", 2, *words, status=2)
                self.assertIn(reason, err)
        self.assertFalse(os.path.exists(self.path("runs")))

    def test_the_tour_shows_every_picture(self):
        done = subprocess.run([STARLING, "tour", "--dry-run"], capture_output=True, text=True, timeout=60, check=True)
        for word in ("all-reduce", "staleness=0", "staleness=3", "staleness=inf", "parallel-sgd", "admm", "gossip",
                     "downpour:servers=2:mesh=replica=2,stage=2",
                     "schedule=naive", "schedule=1f1b", "shard=parameters", "codec=1bit"):
            self.assertIn(word, done.stdout)
        folder = self.path("tour")
        events, _ = self.run_program("tour", "--quick", "--only", "gossip", "-n", 2, "-q", "--json", "--run-dir", folder)
        rows = [e for e in events if e["event"] == "compared"]
        self.assertNotIn("error", json.dumps(rows))
        self.assertEqual(len(rows), 3)
        report = self.report(folder)
        self.assertEqual(len(report.headings), 2)  # the headings of the picture and of the theory
        self.assertIn("gossip", report.headings[0])
        _, err = self.run_program("tour", "--only", "nothing", status=2)
        self.assertIn("--only", err)


if __name__ == "__main__":
    main()
