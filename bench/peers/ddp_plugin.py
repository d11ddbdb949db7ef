#!/usr/bin/env python3
"""Compares PyTorch's DistributedDataParallel (DDP) on Starling's plug-in (python/) and on Gloo.

  bench/peers/ddp_plugin.py [mlp resnet18 gpt] [--rounds 5] [--steps 30] [--ranks 2] [--json FILE]

All sides run bench/pytorch/WORK.py --mode tuned with one thread per rank. The sides:
  starling   init_process_group("starling")
  gloo       init_process_group("gloo")
  meet       the plug-in, but the ranks only reduce one element per step
  ddp alone  Gloo, but a communication hook skips the reduction, which no backend can beat
  limit      ranks that do not communicate
  loop       starling.DistributedOptimizer by all-reduce, on the plug-in
  loop meet  the loop with its reduction left out, but the ranks reduce one element per step

By default the plug-in sets DDP_DISABLE_COMM_MEM=0, so that DDP's buckets lie in the plug-in's memory. With
DDP_DISABLE_COMM_MEM=1 in the environment the buckets stay ordinary tensors.

Sides alternate. Every second round runs them in reverse order. The samples/s of a run come from the median
step after the first three steps and count the samples of all ranks. Each ratio compares two runs of one
round. The command prints the load of the machine before and after the runs, because other load distorts the
comparison.

Environment: STARLING_PYTHON, a Python with torch. Default: build/venv-python/bin/python, which
tools/test_python makes.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("STARLING_PYTHON", str(ROOT / "build" / "venv-python" / "bin" / "python"))
SIDES = {"starling": ["--backend", "starling"], "gloo": ["--backend", "gloo"], "meet": ["--backend", "starling", "--reduction", "meet"],
         "ddp alone": ["--reduction", "none"], "limit": ["--limit"], "loop": ["--backend", "starling", "--loop", "starling"],
         "loop meet": ["--backend", "starling", "--loop", "starling", "--reduction", "meet"]}


def measure(work, side, args):
    """Runs one side once and returns its result line."""
    env = dict(os.environ, PYTHONPATH=str(ROOT / "build" / "python" / "site"), OMP_NUM_THREADS="1")
    words = [PYTHON, str(ROOT / "bench" / "pytorch" / f"{work}.py"), "--mode", "tuned", "--steps", str(args.steps),
             "--ranks", str(args.ranks), "--precision", args.precision, *SIDES[side]]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}: status {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def spread(values):
    return f"{min(values):9.1f} {statistics.median(values):9.1f} {max(values):9.1f}"


def compare(work, args):
    runs = {side: [] for side in SIDES}
    for n in range(args.rounds):
        for side in list(SIDES)[::1 if n % 2 == 0 else -1]:
            runs[side].append(measure(work, side, args))
    rates = {side: [r["samples_per_s"] for r in results] for side, results in runs.items()}
    pairs = [(side, "gloo") for side in ("starling", "meet", "ddp alone", "loop")] + [("loop", "loop meet"), ("loop", "limit")]
    ratios = {f"{side} / {peer}": [ours / theirs for ours, theirs in zip(rates[side], rates[peer])] for side, peer in pairs}
    print(f"{work}: {args.ranks} ranks, precision {runs['gloo'][0]['precision']}, {args.rounds} rounds of {args.steps} steps")
    print(f"  {'samples/s':16s} {'least':>9s} {'median':>9s} {'greatest':>9s}")
    for side, values in rates.items():
        print(f"  {side:16s} {spread(values)}")
    for side, values in ratios.items():
        print(f"  {side:16s} {min(values):9.2f} {statistics.median(values):9.2f} {max(values):9.2f}", flush=True)
    return {"work": work, "samples_per_s": rates, "ratios": ratios, "steps": args.steps, "ranks": args.ranks}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", default=["mlp"], choices=["mlp", "resnet18", "gpt"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--precision", default="medium", choices=["highest", "high", "medium"], help="precision of fp32 matrix products, for all sides")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    subprocess.run([str(ROOT / "tools" / "build_plugin"), PYTHON], check=True)
    print(f"load {os.getloadavg()}")
    results = [compare(work, args) for work in args.works]
    print(f"load {os.getloadavg()}")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
