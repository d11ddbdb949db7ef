"""Python packages of a benchmark, in a virtual environment of its own. pip checks their hashes."""
import hashlib
import os
import subprocess
import sys
import venv

from training_run import ROOT


def enter_environment(name):
    """Starts this script again with the packages of tools/requirements/bench-NAME.txt, and with one thread.

    The packages are installed into build/venv-NAME. They are installed again if the file has changed.
    """
    inside = "STARLING_BENCH_" + name.upper()
    if os.environ.get(inside):
        return
    folder = ROOT / f"build/venv-{name}"
    python, requirements = folder / "bin/python", ROOT / f"tools/requirements/bench-{name}.txt"
    if not python.exists():
        venv.create(folder, with_pip=True)
    stamp = folder / f".starling-{hashlib.sha256(requirements.read_bytes()).hexdigest()[:16]}"
    if not stamp.exists():
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps",
                        "--require-hashes", "-r", requirements], check=True)
        stamp.touch()
    threads = {variable: "1" for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    os.execve(python, [str(python), *sys.argv], {**os.environ, **threads, inside: "1"})
