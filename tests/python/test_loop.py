"""starling.DistributedOptimizer in real processes: loop_ranks.py has the checks that each rank makes."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest

from peer import STARLING
from test_c10d import Ranks

RANKS = pathlib.Path(__file__).with_name("loop_ranks.py")
ALL = ["one_process", "sharded", "gradients_are_freed", "two_optimizers", "local_sgd", "gossip", "admm", "codecs", "resume", "autocast", "other_collectives",
       "waiting_lets_others_run", "errors"]


class Loops(Ranks):
    def test_one_rank(self):
        self.ended(self.start([RANKS, "one_process", "sharded", "gradients_are_freed", "two_optimizers", "local_sgd", "admm", "codecs", "resume", "errors"], 1))

    def test_two_ranks(self):
        self.ended(self.start([RANKS, *ALL], 2))

    def test_three_ranks(self):
        self.ended(self.start([RANKS, "one_process", "sharded", "gradients_are_freed", "local_sgd", "gossip", "admm", "resume"], 3))

    def test_beside_a_group_of_gloo(self):
        self.ended(self.start([RANKS, "two_optimizers", "other_collectives"], 2, first="gloo"))

    def test_a_killed_rank_is_named(self):
        outputs = self.ended(self.start([RANKS, "killed"], 2), [0, -signal.SIGKILL])
        self.assertIn("named the lost rank", outputs[0])

    def test_models_of_torchvision_and_transformers(self):
        self.ended(self.start([RANKS, "models", "gpt_is_that_of_one_process"], 2), timeout=500)


class Starts(Ranks):
    """The ways in which a program's ranks are started."""
    PROGRAM = """
import torch, starling
starling.init()
model = torch.nn.Linear(2, 1)
optimizer = starling.DistributedOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1), exchange="gossip")
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
print(f"rank {starling.rank()} of {starling.world_size()} made {optimizer.steps} steps", flush=True)
"""

    def output_of(self, *words):
        (self.dir / "train.py").write_text(self.PROGRAM)
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        done = subprocess.run([*map(str, words), "train.py"], cwd=self.dir, env=environment, capture_output=True, text=True, timeout=200)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_alone(self):
        self.assertEqual(self.output_of(sys.executable), "rank 0 of 1 made 3 steps\n")

    def test_torchrun(self):
        output = self.output_of(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
        # Both ranks write to one pipe, and the lines of one may stand within those of the other.
        self.assertEqual(sorted(re.findall(r"rank . of 2 made 3 steps", output)), ["rank 0 of 2 made 3 steps", "rank 1 of 2 made 3 steps"])

    @unittest.skipUnless(STARLING.exists(), "the program is not built")
    def test_starling_launch(self):
        output = self.output_of(STARLING, "launch", "-n", 2, sys.executable)  # has the lines of rank 0
        self.assertEqual(output, "rank 0 of 2 made 3 steps\n")

    def test_without_init_the_error_says_what_to_call(self):
        program = self.PROGRAM.replace("starling.init()", "").replace("import torch, starling", "import torch, starling, sys")
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
        self.assertIn("call starling.init() before DistributedOptimizer", done.stderr)


if __name__ == "__main__":
    unittest.main()
