"""plan memory, compare and tour: from the command line to the page, which is parsed and, where a Chromium is, opened."""
import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree

from program import SMALL, STARLING, ProgramTest, main, result_of

CHROMIUMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
VOID = {"meta", "br"}


class Page(html.parser.HTMLParser):
    """Every element is closed in order; its pictures are XML."""

    def __init__(self, text):
        super().__init__()
        self.open, self.headings, self.data = [], [], ""
        self.feed(text)
        self.close()
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
        """name -> number of charts that have a line of it."""
        found = {}
        for svg in self.svgs:
            for group in svg.iter("g"):
                if "data-run" in group.attrib and group.find("path") is not None:
                    found[group.attrib["data-name"]] = found.get(group.attrib["data-name"], 0) + 1
        return found


class Compare(ProgramTest):
    def page(self, folder):
        text = pathlib.Path(folder, "index.html").read_text(encoding="utf-8")
        page = Page(text)
        self.assertEqual(page.open, [])
        self.open_in_browser(os.path.join(folder, "index.html"))
        return page

    def open_in_browser(self, path):
        browser = next((b for b in map(shutil.which, CHROMIUMS) if b), None)
        if not browser:
            return  # the page was parsed; that is the test, a browser only sees more
        done = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom",
                               "file://" + os.path.abspath(path)], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        self.assertIn("<h1>", done.stdout)
        self.assertNotIn("Uncaught", done.stderr)

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

    def test_runs_are_compared_on_a_table_and_a_page(self):
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
        self.assertEqual(events[-1]["page"], folder + "/index.html")
        self.assertEqual(rows["one rank"]["bytes"], 0)
        self.assertEqual(rows["one rank"]["speed_up"], 1)
        self.assertLess(rows["late"]["bytes"], rows["all-reduce"]["bytes"] / 4)
        self.assertLess(rows["codec=1bit"]["bytes"], rows["all-reduce"]["bytes"] / 8)
        self.assertGreater(rows["parameter-server:staleness=inf"]["bytes_balance"], 1.2)  # the server's link
        self.assertLess(rows["all-reduce"]["bytes_balance"], 1.1)
        self.assertGreater(rows["all-reduce"]["samples_to_target"], 0)
        # The same weights, samples and order: the first loss of what makes the update of one process is its loss.
        first = self.first_losses(folder)
        for name in ("01-all-reduce", "03-codec-1bit", "04-shard-gradients", "05-mesh-stage-2-micro-batches-4"):
            self.assertAlmostEqual(first[name], first["00-one-rank"], places=4)
        self.check_page(self.page(folder), rows)

    def first_losses(self, folder):
        losses = {}
        for path in pathlib.Path(folder).glob("*/events.jsonl"):
            events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            losses[path.parent.name] = next(e["loss"] for e in events if e["event"] == "step")
        return losses

    def check_page(self, page, rows):
        self.assertEqual([r["run"] for r in json.loads(page.data)["runs"]], list(rows))
        series = page.series()
        self.assertEqual(series["one rank"], 3)  # time, samples, accuracy: alone it sends no bytes
        self.assertEqual(series["late"], 4)
        self.assertEqual([series[f"{name}, formula"] for name in ("star", "tree", "ring")], [1, 1, 1])
        kinds = [svg.attrib.get("class") for svg in page.svgs]
        self.assertEqual([kinds.count(kind) for kind in ("lines", "timeline", "bars", "pairs")], [5, 1, 1, 1])
        timeline = next(svg for svg in page.svgs if svg.attrib.get("class") == "timeline")
        for panel in timeline.iter("g"):  # two stages, four micro-batches
            self.assertEqual(sum(r.attrib["class"] == "c1" for r in panel.iter("rect")), 8, panel.attrib)
        layers = next(svg for svg in page.svgs if svg.attrib.get("class") == "pairs")
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
        page = self.page(folder)
        self.assertEqual(len(page.headings), 2)  # the picture and the theory
        self.assertIn("gossip", page.headings[0])
        _, err = self.run_program("tour", "--only", "nothing", status=2)
        self.assertIn("--only", err)


if __name__ == "__main__":
    main()
