"""Runs the program of this wheel with the arguments of this process."""
import os
import pathlib
import sys

from starling import program


def main():
    if not pathlib.Path(program()).exists():
        sys.exit("starling: error: this installation has the Python packages only; install the wheel of `make wheel` "
                 "for the program")
    # The program finds libtorch by a path relative to its own.
    torch = pathlib.Path(__file__).resolve().parent.parent / "torch"
    if not (torch / "lib" / "libtorch_cpu.so").exists():
        sys.exit(f"starling: error: no libtorch in {torch}; install torch 2.15 into the environment of this wheel")
    os.execv(program(), [program(), *sys.argv[1:]])


if __name__ == "__main__":
    main()
