"""Gives fuzz targets many inputs, in parts.

  fuzz_campaign.py [--inputs N] [--seconds S] [--part P] [TARGET ...]

tools/fuzz --campaign builds the targets and calls this program. Each target gets N inputs (20,000,000) or S
seconds of a core (3,600), whichever it reaches first. A part takes P seconds (120), or less if its target
needs less. Ctrl-C and SIGTERM end the program after they have ended the running parts, which do not count.
When it is called again, it goes on after the last whole part, also on another machine.

  tests/fuzz/campaign.tsv       What each target has had so far: inputs, seconds of a core, edges.
  docs/reference/fuzzing.md     The same figures, in the table of the targets.
  tests/fuzz/corpus/*.tar.xz    The smallest set of inputs that reaches all edges of a target. It is written
                                when the target has reached its goal, and when the program ends before.
                                tools/fuzz begins with it.
  build/fuzz/campaign           The inputs of targets that have not reached their goal.

ASAN_OPTIONS below lets the fuzzer try several times as many inputs per second. It turns off the detection of
variables that are used after their function has returned. It keeps little freed memory, does not record
where memory was allocated, and does not fill new memory with a pattern.
tools/fuzz without --campaign tries the kept inputs with the usual settings.

Status: 0 if all targets have reached their goal, 1 if a target failed or the program was ended, 2 for an
unknown target. An input that makes a target fail is kept in build/fuzz/artifacts.
"""

import argparse
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "build/fuzz/tests/fuzz"
WORK = ROOT / "build/fuzz/campaign"
ARTIFACTS = ROOT / "build/fuzz/artifacts"
RECORD = ROOT / "tests/fuzz/campaign.tsv"
KEPT = ROOT / "tests/fuzz/corpus"
PAGE = ROOT / "docs/reference/fuzzing.md"
HEAD = "target\tinputs\tseconds\tedges\n"
ASAN_OPTIONS = ("detect_stack_use_after_return=0:quarantine_size_mb=1:malloc_context_size=0:"
                "max_malloc_fill_size=0")
# The timeout is of the wall clock, and a part of low priority may wait for others.
BOUNDS = ["-timeout=60", "-rss_limit_mb=2048", "-max_len=8192", "-print_final_stats=1"]


class TargetFailed(Exception):
    pass


def read_record():
    """Returns target -> [inputs, seconds, edges]."""
    if not RECORD.exists():
        return {}
    rows = [line.split("\t") for line in RECORD.read_text().splitlines()[1:]]
    return {name: [int(inputs), float(seconds), int(edges)] for name, inputs, seconds, edges in rows}


def write_record(record):
    text = HEAD + "".join(f"{name}\t{r[0]}\t{r[1]:.0f}\t{r[2]}\n" for name, r in sorted(record.items()))
    new = RECORD.with_suffix(".new")
    new.write_text(text)
    new.replace(RECORD)
    write_page(record)


def write_page(record):
    """Puts the record into the page's table. A row has the target, what it parses, and the three figures."""
    def row(found):
        inputs, seconds, edges = record.get(found[2], [0, 0, 0])
        return f"{found[1]} {inputs:,} | {seconds:,.0f} | {edges:,} |"
    text = PAGE.read_text("utf-8")
    written = re.sub(r"^(\| `(\w+)` \|[^|\n]*\|) [\d,]+ \| [\d,]+ \| [\d,]+ \|$", row, text, flags=re.M)
    if written != text:
        PAGE.write_text(written, "utf-8")


def plain(info):
    """The same for every user and time, so that equal inputs make equal archives."""
    info.mtime = info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


class Campaign:
    def __init__(self, options):
        self.options = options
        self.lock = threading.Lock()
        self.record = read_record()
        self.waiting = list(options.targets)
        self.failed = []
        self.stopping = False
        self.running = set()
        self.begun = set()  # targets whose kept inputs are not the newest

    def prepare(self):
        """Puts the first inputs of each target into its folder."""
        for target in self.options.targets:
            folder, archive = WORK / target, KEPT / f"{target}.tar.xz"
            if not folder.exists() and not archive.exists():
                self.record.pop(target, None)
            folder.mkdir(parents=True, exist_ok=True)
            if archive.exists():
                with tarfile.open(archive) as kept:
                    for item in kept:
                        if item.isfile() and "/" not in item.name:
                            (folder / item.name).write_bytes(kept.extractfile(item).read())
        subprocess.run([PROGRAMS / "make_seeds", WORK], check=True)

    def stop(self, *_):
        """Ends the running parts. They do not count."""
        self.stopping = True
        for process in list(self.running):
            process.kill()

    def execute(self, log, words):
        """Runs a program to its end. Returns its output and the seconds of a core that it took."""
        with open(log, "wb") as out:
            # In a session of its own, so that Ctrl-C reaches this program alone.
            process = subprocess.Popen(words, stdout=out, stderr=out, cwd=WORK, start_new_session=True,
                                       env={**os.environ, "ASAN_OPTIONS": ASAN_OPTIONS})
            self.running.add(process)
            if self.stopping:
                process.kill()
            _, status, usage = os.wait4(process.pid, 0)
        self.running.discard(process)
        process.returncode = os.waitstatus_to_exitcode(status)
        text = log.read_text(errors="replace")
        if process.returncode != 0:
            raise TargetFailed("\n".join([*text.splitlines()[-40:], f"ended with {process.returncode}"]))
        return text, usage.ru_utime + usage.ru_stime

    def share(self, target):
        """Returns how much of its goal the target has reached. 1 or more: all of it."""
        inputs, seconds, _ = self.record.get(target, [0, 0, 0])
        return max(inputs / self.options.inputs, seconds / self.options.seconds)

    def run_part(self, target):
        """Runs one part and adds it to the record."""
        first = sum(1 for _ in (WORK / target).iterdir())  # what the fuzzer repeats is not counted
        done = self.record.get(target, [0, 0.0])
        runs = first + self.options.inputs - done[0] + 1
        seconds = min(self.options.part, int(self.options.seconds - done[1]) + 1)
        text, seconds = self.execute(WORK / f"{target}.log", [
            PROGRAMS / f"{target}_fuzz", f"-max_total_time={seconds}", f"-runs={runs}", *BOUNDS,
            f"-artifact_prefix={ARTIFACTS}/{target}-", WORK / target])
        inputs = re.search(r"number_of_executed_units: *(\d+)", text)
        edges = re.findall(r"cov: (\d+)", text)
        with self.lock:
            row = self.record.setdefault(target, [0, 0.0, 0])
            row[0] += max(int(inputs[1]) - first, 0) if inputs else 0
            row[1] += seconds
            row[2] = max(row[2], int(edges[-1]) if edges else 0)
            write_record(self.record)
            print(f"fuzz: {target:<12} {row[0]:>12,} inputs {row[1]:>6.0f} s {row[2]:>6} edges", flush=True)

    def keep(self, target):
        """Writes the smallest set of inputs that reaches all edges."""
        small = WORK / f"{target}-small"
        shutil.rmtree(small, ignore_errors=True)
        small.mkdir()
        self.execute(WORK / f"{target}-merge.log",
                     [PROGRAMS / f"{target}_fuzz", "-merge=1", "-max_len=8192", small, WORK / target])
        KEPT.mkdir(exist_ok=True)
        new = KEPT / f"{target}.tar.xz.new"
        with tarfile.open(new, "w:xz") as archive:
            for path in sorted(small.iterdir()):
                archive.add(path, path.name, filter=plain)
        new.replace(KEPT / f"{target}.tar.xz")

    def is_kept(self, target):
        """Returns whether the kept inputs are those after the last part of this machine."""
        archive, log = KEPT / f"{target}.tar.xz", WORK / f"{target}.log"
        return archive.exists() and (not log.exists() or log.stat().st_mtime <= archive.stat().st_mtime)

    def keep_begun(self):
        """Keeps the inputs of targets that have had parts since they were kept last."""
        self.stopping = False
        for target in sorted(self.begun):
            print(f"fuzz: keeps the inputs of {target}", flush=True)
            try:
                self.keep(target)
            except (TargetFailed, OSError, ValueError) as error:
                print(f"fuzz: the inputs of {target} could not be kept: {error}", flush=True)

    def work(self):
        while not self.stopping:
            with self.lock:
                self.waiting.sort(key=self.share, reverse=True)  # one target after another reaches its goal
                if not self.waiting:
                    return
                target = self.waiting.pop(0)
            try:
                if self.share(target) >= 1:
                    if not self.is_kept(target):
                        self.keep(target)
                    continue
                self.begun.add(target)
                self.run_part(target)
                if self.share(target) >= 1:
                    self.keep(target)
                    self.begun.discard(target)
                else:
                    with self.lock:
                        self.waiting.append(target)
            except (TargetFailed, OSError, ValueError) as error:
                if not self.stopping:
                    self.failed.append(target)
                    print(f"{error}\nfuzz: {target} FAILED; repeat it: build/fuzz/tests/fuzz/{target}_fuzz "
                          f"{ARTIFACTS}/{target}-…", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=20_000_000)
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--part", type=int, default=120)
    parser.add_argument("targets", nargs="*")
    options = parser.parse_args()
    known = sorted(p.name[:-5] for p in PROGRAMS.glob("*_fuzz"))
    for target in options.targets:
        if target not in known:
            parser.error(f"no target is called '{target}'; there are {', '.join(known)}")
    options.targets = options.targets or known
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    campaign = Campaign(options)
    campaign.prepare()
    signal.signal(signal.SIGINT, campaign.stop)
    signal.signal(signal.SIGTERM, campaign.stop)
    threads = [threading.Thread(target=campaign.work) for _ in range(os.cpu_count() or 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(1)  # signals are handled between waits
    ended = campaign.stopping
    campaign.keep_begun()
    if ended:
        print("fuzz: ended; `tools/fuzz --campaign` goes on after the last whole part")
    return 1 if campaign.failed or ended else 0


if __name__ == "__main__":
    sys.exit(main())
