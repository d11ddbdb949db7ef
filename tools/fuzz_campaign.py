"""fuzz_campaign.py [--inputs N] [--seconds S] [--part P] [TARGET ...] runs fuzz targets for a long time, in parts.

tools/fuzz --campaign builds the targets and calls it. Each target gets N inputs (20,000,000) or S seconds of a
core (3,600), whichever it reaches first. A part takes P seconds (120). The program may be ended at any time: when it
is called again, it goes on.

  tests/fuzz/campaign.tsv       What each target has had so far: inputs, seconds of a core, edges.
  tests/fuzz/corpus/*.tar.xz    The inputs that were kept: the smallest set that reaches all edges. Written when a
                                target is done. tools/fuzz begins with them.

Status: 0 if all targets are done, 1 if an input made a target fail. The input is in build/fuzz/artifacts.
"""

import argparse
import os
import pathlib
import re
import shutil
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
HEAD = "target\tinputs\tseconds\tedges\n"
BOUNDS = ["-timeout=10", "-rss_limit_mb=2048", "-max_len=8192", "-print_final_stats=1"]


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


def run_part(target, seconds):
    """Runs one part. Returns (inputs, seconds of a core, edges), or None if an input made the target fail."""
    log = WORK / f"{target}.log"
    with open(log, "wb") as out:
        process = subprocess.Popen([PROGRAMS / f"{target}_fuzz", f"-max_total_time={seconds}", *BOUNDS,
                                    f"-artifact_prefix={ARTIFACTS}/{target}-", WORK / target],
                                   stdout=out, stderr=out, cwd=WORK)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    text = log.read_text(errors="replace")
    if process.returncode != 0:
        print("\n".join(text.splitlines()[-40:]))
        return None
    inputs = re.search(r"number_of_executed_units: *(\d+)", text)
    edges = re.findall(r"cov: (\d+)", text)
    return int(inputs[1]) if inputs else 0, usage.ru_utime + usage.ru_stime, int(edges[-1]) if edges else 0


def keep(target):
    """Writes the smallest set of inputs that reaches all edges."""
    small = WORK / f"{target}-small"
    shutil.rmtree(small, ignore_errors=True)
    small.mkdir()
    subprocess.run([PROGRAMS / f"{target}_fuzz", "-merge=1", "-max_len=8192", small, WORK / target], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=WORK)
    KEPT.mkdir(exist_ok=True)

    def plain(info):
        info.mtime = info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(KEPT / f"{target}.tar.xz", "w:xz") as archive:
        for path in sorted(small.iterdir()):
            archive.add(path, path.name, filter=plain)


class Campaign:
    def __init__(self, options):
        self.options = options
        self.lock = threading.Lock()
        self.record = read_record()
        self.waiting = list(options.targets)
        self.failed = []

    def share(self, target):
        """Returns how much of its goal the target has reached. 1 or more: it is done."""
        inputs, seconds, _ = self.record.get(target, [0, 0, 0])
        return max(inputs / self.options.inputs, seconds / self.options.seconds)

    def next(self):
        with self.lock:
            self.waiting.sort(key=self.share)
            return self.waiting.pop(0) if self.waiting else None

    def add(self, target, result):
        with self.lock:
            row = self.record.setdefault(target, [0, 0.0, 0])
            row[0] += result[0]
            row[1] += result[1]
            row[2] = max(row[2], result[2])
            write_record(self.record)
            print(f"fuzz: {target:<12} {row[0]:>12,} inputs {row[1]:>6.0f} s {row[2]:>6} edges", flush=True)

    def work(self):
        while (target := self.next()) is not None:
            if self.share(target) < 1:
                result = run_part(target, self.options.part)
                if result is None:
                    self.failed.append(target)
                    continue
                self.add(target, result)
            if self.share(target) < 1:
                with self.lock:
                    self.waiting.append(target)
            elif not (KEPT / f"{target}.tar.xz").exists():
                keep(target)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=20_000_000)
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--part", type=int, default=120)
    parser.add_argument("targets", nargs="*")
    options = parser.parse_args()
    options.targets = options.targets or sorted(p.name[:-5] for p in PROGRAMS.glob("*_fuzz"))
    WORK.mkdir(parents=True, exist_ok=True)
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    subprocess.run([PROGRAMS / "make_seeds", WORK], check=True)
    for target in options.targets:
        (WORK / target).mkdir(exist_ok=True)
        if (archive := KEPT / f"{target}.tar.xz").exists():
            with tarfile.open(archive) as kept:
                kept.extractall(WORK / target)
    campaign = Campaign(options)
    threads = [threading.Thread(target=campaign.work) for _ in range(os.cpu_count() or 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for target in campaign.failed:
        print(f"fuzz: {target} FAILED; repeat it: build/fuzz/tests/fuzz/{target}_fuzz {ARTIFACTS}/{target}-…")
    return 1 if campaign.failed else 0


if __name__ == "__main__":
    sys.exit(main())
