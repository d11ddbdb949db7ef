"""Runs the program for the scripts of this folder.

Environment: STARLING_PROGRAM (default build/release/starling).
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))
from program import ranks_of  # noqa: E402, pylint: disable=wrong-import-position, unused-import

PROGRAM = os.environ.get("STARLING_PROGRAM", str(ROOT / "build/release/starling"))


def events(command, *args, accepted=(0,), timeout=3600):
    """Runs `starling COMMAND --json` and returns its events.

    If the command fails, ends the script with its errors.
    """
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as folder:
        words = [PROGRAM, command, "--json", *map(str, args), "--run-dir", folder]
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode not in accepted:
        raise SystemExit(f"{pathlib.Path(sys.argv[0]).name}: {' '.join(words)} failed:\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def train(*args):
    """Trains in a new run folder and returns the result event."""
    return events("train", "-q", "--resume", "never", *args)[-1]


def print_table(rows):
    """Prints the rows with the first column aligned left and every further column aligned right."""
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [str(cell).rjust(width) for cell, width in zip(row, widths)]
        print("  ".join([str(row[0]).ljust(widths[0]), *cells[1:]]))


def write_json(path, value):
    if path:
        pathlib.Path(path).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
