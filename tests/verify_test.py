"""`starling verify`: every step's update in fp64 equals that of one process to 1e-10, by tensor norm."""
from program import ProgramTest, distance, main, some

MODELS = {
    "mlp": ["--model", "mlp", "--set", "model.widths=[784,48,10]", "--data", "digits"],
    "lenet5": ["--model", "lenet5", "--data", "digits"],
    "resnet18": ["--model", "resnet18", "--data", "digits", "--set", "model.batch_norm=sync"],
    "gpt": ["--model", "gpt", "--data", "grammar", "--optimizer", "adamw", "--lr", "0.001", "--set", "model.layers=2", "--set",
            "model.width=32", "--set", "model.heads=2", "--set", "model.tokens=16"],
    "llama": ["--model", "llama", "--data", "grammar", "--set", "model.layers=2", "--set", "model.width=32", "--set", "model.heads=4",
              "--set", "model.kv_heads=2", "--set", "model.tokens=16"],
}


class Verify(ProgramTest):
    def check(self, model, ranks, steps, *args):
        events, _ = self.run_program("verify", "--json", *MODELS[model], "-n", ranks, "--global-batch", 12, "--set",
                                     "data.samples=256", "--set", "data.test_samples=16", "--set", f"verify.steps={steps}", *args)
        self.assertTrue(events[-1]["passed"])
        self.assertLess(events[-1]["largest"], 1e-10)
        self.assertGreater(len(events[-1]["tensors"]), 3)

    def test_mlp(self):
        for ranks in (2, 3, 4):
            self.check("mlp", ranks, 5)

    def test_lenet5(self):
        for ranks in (2, 3, 4):
            self.check("lenet5", ranks, 3)

    def test_resnet18_with_synced_batch_norm(self):
        self.check("resnet18", 2, 2)

    def test_gpt(self):
        for ranks in some((3, 4, 2), 2):
            self.check("gpt", ranks, 5)

    def test_llama(self):
        tied, parts = ("--set", "model.tied=true"), ("--micro-batches", 2)
        cases = [(3,), (4, "--shard", "gradients", *tied), (2, "--hybrid", "model.layers.0.mlp.down_proj"), (1,), (2, "--shard", "optimizer"),
                 (4, "--shard", "optimizer", *tied), (4, "--mesh", "stage=4", *parts, *tied), (2, "--shard", "gradients"), (2,),
                 (4, "--mesh", "replica=2,tensor=2", "--shard", "gradients", *tied), (4,), (2, "--mesh", "stage=2", *parts),
                 (4, "--shard", "parameters", *tied), (2, "--shard", "parameters"), (2, "--mesh", "tensor=2"),
                 (4, "--mesh", "stage=2,tensor=2", *parts)]
        for ranks, *way in some(cases, 6):
            with self.subTest(ranks=ranks, way=way):
                self.check("llama", ranks, 3, *way)

    def test_clipping_replicas_and_adam(self):
        self.check("mlp", 2, 5, "--set", "optimizer.clip_norm=0.1")
        # Buckets are rebuilt after the first step.
        self.check("gpt", 2, 3, "--set", "optimizer.clip_norm=0.1")
        self.check("mlp", 2, 5, "--set", "optimizer.share=replicated", "--optimizer", "adam", "--lr", "0.001")

    def test_shards(self):
        self.check("lenet5", 2, 3, "--shard", "optimizer", "--set", "optimizer.nesterov=true")
        self.check("mlp", 3, 5, "--shard", "gradients", "--optimizer", "adam", "--lr", "0.001")
        self.check("gpt", 3, 3, "--shard", "parameters", "--set", "optimizer.clip_norm=0.1")
        self.check("mlp", 3, 3, "--shard", "gradients", "--accumulate", 2, "--set", "optimizer.clip_value=0.01")

    def test_rates_of_tensors(self):
        lars = ("--optimizer", "lars", "--lr", 5, "--set", "optimizer.weight_decay=0.01")
        lamb = ("--optimizer", "lamb", "--lr", "0.01", "--set", "optimizer.exempt_vectors=true", "--set", "optimizer.weight_decay=0.1")
        self.check("lenet5", 3, 3, *lars)
        self.check("gpt", 4, 3, "--mesh", "replica=2,tensor=2", *lamb)
        self.check("gpt", 4, 3, "--mesh", "replica=2,tensor=2", "--shard", "gradients", *lars)
        self.check("mlp", 2, 3, "--mesh", "stage=2", "--micro-batches", 2, *lamb)
        self.check("gpt", 4, 3, "--mesh", "stage=2,tensor=2", "--micro-batches", 2, *lars)
        exempt = ("--set", "optimizer.exempt_vectors=true", "--set", "optimizer.weight_decay=0.1")
        self.check("mlp", 2, 3, *exempt)
        self.check("gpt", 2, 3, "--threads", 2, "--threads-mode", "batch", *exempt)
        self.check("mlp", 1, 3, "--threads", 2, "--threads-mode", "layer", "--micro-batches", 2, *exempt)

    def test_averaged_weights(self):
        average, exempt = ("--set", "optimizer.ema_decay=0.9"), ("--set", "optimizer.exempt_vectors=true", "--set", "optimizer.weight_decay=0.1")
        cases = [("gpt", 4, "--mesh", "replica=2,tensor=2", "--shard", "gradients"), ("mlp", 3), ("gpt", 3, "--shard", "parameters", *exempt),
                 ("mlp", 2, "--mesh", "stage=2", "--micro-batches", 2), ("lenet5", 2, "--shard", "optimizer", "--set", "optimizer.nesterov=true"),
                 ("mlp", 2, "--optimizer", "lamb", "--lr", "0.01", *exempt), ("mlp", 1, "--threads", 2, "--threads-mode", "layer", "--micro-batches", 2),
                 ("mlp", 2, "--set", "optimizer.share=replicated", "--set", "optimizer.clip_norm=0.1")]
        for model, ranks, *way in some(cases, 4):
            with self.subTest(model=model, ranks=ranks, way=way):
                self.check(model, ranks, 3, *way, *average)

    def test_parts_of_a_batch(self):
        parts, clip = ("--accumulate", 3), ("--set", "optimizer.clip_norm=0.1")
        cases = [("lenet5", 4, *parts, "--exchange", "parameter-server", "--servers", 2), ("gpt", 2, *parts, *clip),
                 ("mlp", 2, "--accumulate", 2, "--threads", 2, "--threads-mode", "batch"), ("gpt", 3, *parts, "--shard", "optimizer", *clip),
                 ("gpt", 3, *parts, "--shard", "gradients", *clip), ("lenet5", 2, *parts, "--set", "optimizer.clip_value=0.01"),
                 ("gpt", 3, *parts, "--shard", "parameters", *clip), ("gpt", 4, *parts, "--mesh", "replica=2,tensor=2"),
                 ("mlp", 3, *parts, "--exchange", "central")]
        for model, ranks, *way in some(cases, 5):
            with self.subTest(model=model, ranks=ranks, way=way):
                self.check(model, ranks, 3, *way)

    def test_meshes_of_replicas_and_stages(self):
        pipelines = ("--mesh", "replica=2,stage=2", "--micro-batches", 2)
        self.check("gpt", 4, 3, *pipelines, "--set", "optimizer.clip_norm=0.1")
        self.check("lenet5", 4, 3, *pipelines, "--schedule", "interleaved", "--shard", "gradients")
        self.check("mlp", 4, 3, *pipelines, "--exchange", "parameter-server", "--servers", 2)

    def test_tensor_axis(self):
        self.check("gpt", 2, 3, "--mesh", "tensor=2", "--set", "optimizer.clip_norm=0.1")
        self.check("lenet5", 2, 3, "--mesh", "tensor=2")
        self.check("mlp", 4, 3, "--mesh", "replica=2,tensor=2", "--shard", "gradients")
        self.check("gpt", 4, 3, "--mesh", "stage=2,tensor=2", "--micro-batches", 2, "--set", "optimizer.clip_norm=0.1")
        self.check("gpt", 2, 2, "--mesh", "tensor=2", "--set", "comm.shared_memory=false")

    def test_hybrid(self):
        self.check("lenet5", 2, 3, "--hybrid", "auto")
        self.check("mlp", 3, 3, "--hybrid", "fc1", "--set", "optimizer.clip_norm=0.1")

    def test_fifty_steps_end_where_those_of_one_process_do(self):
        def weights(name, *args):
            file = self.path(name + ".safetensors")
            self.run_program("train", "-q", "--run-dir", self.path(name), "--save", file, *MODELS["mlp"], "--precision", "fp64", "--steps", 50,
                             "--lr", 0.05, "--global-batch", 12, "--set", "data.samples=256", "--set", "data.test_samples=16",
                             "--set", "train.hash_every=0", *args)
            return file
        one = weights("one")
        for name, words in (("servers", ["-n", 2, "--exchange", "parameter-server"]), ("stages", ["-n", 4, "--mesh", "replica=2,stage=2", "--micro-batches", 2]),
                            ("slices", ["-n", 4, "--mesh", "replica=2,tensor=2"])):
            self.assertLess(distance(one, weights(name, *words)), 1e-10, name)

    def test_local_batch_norm_is_refused(self):
        _, err = self.run_program("verify", *MODELS["resnet18"][:4], "-n", 2, "--global-batch", 4, status=2)
        self.assertIn("batch_norm=sync", err)
        _, err = self.run_program("verify", *MODELS["resnet18"], "-n", 2, "--global-batch", 4, "--accumulate", 2, status=2)
        self.assertIn("statistics from each part of the batch", err)

    def test_threads_without_locks_are_refused(self):
        words = ["verify", *MODELS["mlp"], "--global-batch", 8, "--threads-mode", "hogwild", "--threads", 2]
        for more in (["-n", 1], ["-n", 2, "--exchange", "local-sgd"]):
            _, err = self.run_program(*words, *more, status=2)
            self.assertIn("verify with --threads-mode op and an exchange such as all-reduce", err)


if __name__ == "__main__":
    main()
