"""A file of measured runs, so that a script can be stopped and started again."""
import pathlib
import re
import subprocess
import sys
import threading

from training_run import PROGRAM


def commit():
    """Returns the commit of the measured program, as `starling --version` names it."""
    shown = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"^commit +(\S+)", shown, re.M)[1]


class Record:
    """The runs of a file, one per line, with columns divided by tabs.

    The columns are those of the key, those of the values, and the commit. All are text. Without a file the
    runs are only in memory. Threads may share a record.
    """

    def __init__(self, path, keys, values):
        self.path, self.keys, self.values = path and pathlib.Path(path), keys, values
        self.lock, self.runs, self.commits, self.commit = threading.Lock(), {}, set(), commit()
        if not self.path:
            return
        columns = [*keys, *values, "commit"]
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        if not lines:
            self.path.write_text("\t".join(columns) + "\n", encoding="utf-8")
        elif lines[0].split("\t") != columns:
            raise SystemExit(f"{script()}: {path}: the first line does not name the columns {' '.join(columns)}; give another file")
        for number, line in enumerate(lines[1:], 2):
            words = line.split("\t")
            if len(words) != len(columns):
                raise SystemExit(f"{script()}: {path}:{number} has {len(words)} columns instead of {len(columns)}; delete the line")
            self.runs[tuple(words[:len(keys)])] = dict(zip(values, words[len(keys):]))
            self.commits.add(words[-1])

    def find(self, *key):
        """Returns the values of a run, or None."""
        return self.runs.get(tuple(map(str, key)))

    def add(self, key, **values):
        """Adds a run and writes it to the file."""
        words = {name: str(values[name]) for name in self.values}
        with self.lock:
            self.runs[tuple(map(str, key))] = words
            self.commits.add(self.commit)
            if self.path:
                with self.path.open("a", encoding="utf-8") as out:
                    print(*key, *words.values(), self.commit, sep="\t", file=out)


def script():
    return pathlib.Path(sys.argv[0]).name
