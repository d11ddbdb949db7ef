"""One run of the program, for the scripts of this folder. STARLING_PROGRAM names another one than build/release/starling."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("STARLING_PROGRAM", str(ROOT / "build/release/starling"))


def events(command, *args, accepted=(0,), timeout=3600):
    """The events that `starling COMMAND --json` prints; ends the script with what the run said where it fails."""
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as folder:
        words = [PROGRAM, command, "--json", *map(str, args), "--run-dir", folder]
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode not in accepted:
        raise SystemExit(f"{pathlib.Path(sys.argv[0]).name}: {' '.join(words)} failed:\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def train(*args):
    """The result of a run that begins afresh."""
    return events("train", "-q", "--resume", "never", *args)[-1]


def print_table(rows):
    """The first column to the left, the others to the right."""
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [str(cell).rjust(width) for cell, width in zip(row, widths)]
        print("  ".join([str(row[0]).ljust(widths[0]), *cells[1:]]))


def write_json(path, value):
    if path:
        pathlib.Path(path).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
