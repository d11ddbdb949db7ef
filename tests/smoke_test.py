"""Trains a few steps in every way, with real processes. Each run must end with a finite loss.

CI also runs this test under ASan and UBSan. A rank then fails at the first bad access, overflow or leak.
"""
import math

from program import SMALL, ProgramTest, main, result_of

GPT = ["--model", "gpt", "--data", "grammar", "--set", "model.layers=2", "--set", "model.width=32", "--set", "model.heads=2", "--set",
       "model.tokens=16", "--set", "model.dropout=0.1", "--optimizer", "adamw", "--lr", 0.001]


class Smoke(ProgramTest):
    def runs(self, *args, ranks=2):
        words = [*args, "--set", "data.samples=256", "--set", "data.test_samples=32", "--steps", 6, "--global-batch", 12, "--resume",
                 "never", "-n", ranks]
        if "--model" not in args:
            words = [*SMALL, *words]
        with self.subTest(words=args):
            events, _ = self.train(*words)
            result = result_of(events)
            self.assertEqual(result["steps"], 6)
            self.assertTrue(math.isfinite(result["train_loss"]))

    def test_exchanges(self):
        self.runs("--exchange", "all-reduce", "--set", "checkpoint.every=3", ranks=3)
        for name in ("central", "local-sgd", "parallel-sgd", "admm", "gossip", "ad-psgd"):
            self.runs("--exchange", name, *([] if name in ("gossip", "ad-psgd", "central") else ["--every", 2]))
        self.runs("--exchange", "parameter-server", "--servers", 2, "--staleness", 1)
        self.runs("--exchange", "downpour", "--set", "exchange.push_every=2")
        self.runs("--exchange", "async-easgd", "--every", 2)

    def test_codecs(self):
        for codec in ("fp16", "int8", "1bit", "threshold", "lowrank:rank=2", "prune:keep=0.05",
                      "random-k", "qsgd", "terngrad", "signsgd", "dgc:warmup=4", "prune+int8:keep=0.05",
                      "lowrank+fp16"):
            self.runs("--codec", codec)
        for codec in ("1bit", "prune:keep=0.05", "signsgd", "lowrank:rank=2"):
            self.runs("--shard", "gradients", "--codec", codec, ranks=3)

    def test_divided_models(self):
        self.runs(*GPT, "--shard", "parameters")
        for activations in ("none", "int8", "calibrated-int8"):
            self.runs(*GPT, "--mesh", "stage=2", "--micro-batches", 4, "--set", f"pipeline.activations={activations}")
        self.runs("--threads", 2, "--threads-mode", "layer", "--micro-batches", 4, ranks=1)
        self.runs("--threads", 2, "--threads-mode", "batch", ranks=1)
        hogwild = ["--threads", 2, "--threads-mode", "hogwild", "--set", "train.thread_updates=3"]
        self.runs(*hogwild, ranks=1)
        self.runs(*hogwild, "--set", "train.hogwild=sparse", "--exchange", "local-sgd", "--every", 2)

    def test_models_and_transports(self):
        self.runs(*GPT, "--precision", "bf16")
        llama = ["--model", "llama", "--data", "grammar", "--set", "model.layers=2", "--set", "model.width=32", "--set", "model.heads=2",
                 "--set", "model.kv_heads=1", "--set", "model.tokens=16"]
        self.runs(*llama)
        self.runs(*llama, "--precision", "bf16")
        self.runs("--model", "lenet5", "--data", "digits", "--conv", "im2col")
        self.runs("--set", "comm.shared_memory=false", ranks=3)


if __name__ == "__main__":
    main()
