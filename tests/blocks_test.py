"""Plain libtorch modules in pipelines, under ZeRO 3 and on a tensor axis: blocks and layers by name."""
import os
import pathlib
import shutil
import signal
import subprocess

from nest_test import difference
from own_program_test import tensors_of
from program import BUILD, COPIES, ProgramTest, environment, events_of, main, ranks_of, recorded_events, result_of, some, wait_for_checkpoint

PROGRAM = str(BUILD / "tests" / "blocks_program")
STEPS = 5
STAGES = ["--mesh", "stage=2", "--micro-batches", 2]
ZERO = ["--shard", "parameters"]


class Blocks(ProgramTest):
    def words(self, args):
        return [PROGRAM, *map(str, [*COPIES, "--set", "train.gemm=mkl", "--run-dir", self.path("run"), *args])]

    def blocks(self, *args, status=0, keep=False):
        """Runs the program, in a new run folder unless `keep`. Returns (stdout, stderr)."""
        if not keep:
            shutil.rmtree(self.path("run"), ignore_errors=True)
        done = self.completed(self.words(args))
        self.assertEqual(done.returncode, status, f"{args}\nstdout: {done.stdout[-3000:]}\nstderr: {done.stderr[-3000:]}")
        return done.stdout, done.stderr

    def plain(self, *model, steps=STEPS):
        self.blocks("--", *model, "--plain", steps, self.path("plain"))
        return tensors_of(self.path("plain"))

    def same(self, name, expected):
        trained = tensors_of(self.path(name))
        self.assertEqual(set(trained), set(expected))
        for key, value in expected.items():
            self.assertLessEqual(difference(trained[key], value), 1e-10, key)

    def compare(self, model, ways):
        """Trains by each of the ways (ranks, flags), and compares the results with a plain loop.

        The weights of the ranks and of the file are compared with those of the plain loop. The loss of the
        test data is compared with that of one process.
        """
        weights = self.plain("--model", *model)
        steps = ["--json", "--steps", STEPS]
        loss = result_of(events_of(self.blocks(*steps, "--", "--model", *model)[0]))["test_loss"]
        for ranks, way in ways:
            with self.subTest(model=model, ranks=ranks, way=way):
                out, _ = self.blocks(*steps, "-n", ranks, *way, "--save", self.path("saved.safetensors"), "--", "--model", *model, "--trained",
                                     self.path("own"))
                self.assertAlmostEqual(result_of(events_of(out))["test_loss"], loss, delta=1e-9)
                for rank in range(ranks):
                    self.same(f"own.{rank}", weights)
                self.same("saved.safetensors", weights)

    def begun_by(self, model, savers, ways):
        """Saves weights by each of the savers (ranks, flags), and trains them further by each of the ways."""
        for ranks, way in savers:
            self.blocks("--steps", 2, "-n", ranks, *way, "--save", self.path("first.safetensors"), "--", "--model", *model)
            trained = []
            for more, other in ways:
                self.blocks("--steps", 3, "-n", more, *other, "--init", self.path("first.safetensors"), "--save",
                            self.path("then.safetensors"), "--", "--model", *model)
                trained.append(tensors_of(self.path("then.safetensors")))
            for (_, other), weights in zip(ways[1:], trained[1:]):
                self.assertEqual(set(weights), set(trained[0]))
                for key, value in trained[0].items():
                    self.assertLessEqual(difference(weights[key], value), 1e-10, (way, other, key))

    def refused(self, message, *args, ranks=2):
        _, err = self.blocks("--steps", 2, "-n", ranks, *args, status=2)
        self.assertIn(message, err)

    def killed_and_resumed(self, *args, model):
        """Kills the processes of a run after a checkpoint and resumes the run.

        Compares the resumed run with an undisturbed one.
        """
        way = ["--steps", 300, "--set", "checkpoint.every=10", *args]
        own = ["--", "--model", *model]
        self.blocks(*way, "--save", self.path("whole.safetensors"), *own)
        for _ in range(10):
            shutil.rmtree(self.path("run"), ignore_errors=True)
            process = subprocess.Popen(self.words([*way, *own]), stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.dir,
                                       env=environment())
            self.addCleanup(self.end, process)
            step = wait_for_checkpoint(self.path("run"), 0)
            try:
                ranks = ranks_of(process.pid).values()
            except OSError:
                ranks = []
            process.kill()
            for pid in ranks:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
            process.communicate()
            if process.returncode == -signal.SIGKILL and step < 300:
                break
        else:
            raise AssertionError("ten runs ended before they could be killed")
        self.blocks(*way, "--save", self.path("resumed.safetensors"), *own, keep=True)
        started = [e for e in recorded_events(self.path("run")) if "first_step" in e][-1]
        self.assertGreaterEqual(started["first_step"], step)
        self.assertEqual(tensors_of(self.path("resumed.safetensors")), tensors_of(self.path("whole.safetensors")))


class OneProcess(Blocks):
    """fp64: the weights after some steps are those of a plain libtorch loop."""
    TWO = [(2, STAGES), (2, ZERO)]
    FOUR = [(4, ["--mesh", "stage=4", "--micro-batches", 4]), (4, ["--mesh", "replica=2,stage=2", "--micro-batches", 2]), (4, ZERO)]

    def test_the_children_of_a_sequential(self):
        self.compare(["sequential"], some([(1, []), *self.TWO, *self.FOUR, (1, ["--threads-mode", "layer", "--threads", 2, "--micro-batches", 2])], 4))

    def test_parts_of_a_batch(self):
        self.compare(["deep"], [(2, [*ZERO, "--accumulate", 2])])

    def test_a_sequential_within_a_module(self):
        """The first layer is frozen."""
        self.compare(["inner"], self.TWO)

    def test_a_list_of_modules(self):
        self.compare(["deep"], some([*self.TWO, *self.FOUR], 3))

    def test_blocks_by_name(self):
        self.compare(["text"], self.TWO)
        self.compare(["mixed"], [*self.TWO, (4, ZERO)])

    def test_a_pattern_that_matches_several_layers(self):
        self.compare(["sequential", "--blocks", "[01234],[5678]"], [(2, STAGES)])


class OwnOptimizer(Blocks):
    """An optimizer of the program trains the part of the model that each rank holds."""
    PLAN = ["--cut", "layers.*.fc1=column,layers.*.fc2=row"]
    TENSOR = ["--mesh", "tensor=2"]
    FOUR = [(4, ["--mesh", "replica=2,stage=2", "--micro-batches", 2]), (4, ["--mesh", "replica=2,stage=2", "--micro-batches", 2, "--shard", "gradients"])]

    def test_stages(self):
        for number, own in enumerate((["--adam"], ["--groups"])):
            ways = [(2, STAGES), *self.FOUR]
            self.compare(["deep", *own], some(ways[number:] + ways[:number], 2))
        self.compare(["sequential", "--own"], [(2, STAGES)])

    def test_sharded_parameters(self):
        ways = [(2, ZERO), (4, [*ZERO, "--set", "train.bucket_mb=0.000001"])]
        self.compare(["deep", "--adam"], some(ways, 1))
        self.compare(["deep", "--groups"], some(ways[::-1], 1))
        self.compare(["deep", *self.PLAN, "--adam"], [(4, ["--mesh", "replica=2,tensor=2", *ZERO])])

    def test_divided_layers(self):
        ways = [(2, self.TENSOR), (4, ["--mesh", "replica=2,tensor=2"]), (4, ["--mesh", "stage=2,tensor=2", "--micro-batches", 2])]
        self.compare(["deep", *self.PLAN, "--adam"], some(ways, 1))
        self.compare(["deep", *self.PLAN, "--groups"], some(ways[1:] + ways[:1], 2))

    def test_a_killed_run_resumes_to_the_same_bits(self):
        for way, plan in some(((STAGES, []), (self.TENSOR, self.PLAN), (ZERO, [])), 2):
            self.killed_and_resumed("-n", 2, *way, model=["deep", *plan, "--adam"])

    def test_refusals(self):
        self.refused("it cannot train sharded layers", *self.TENSOR, "--", "--model", "deep", *self.PLAN, "--own")
        self.refused('no parameter is left that matches "layer.*"; the first parameter is "embed.weight"', *STAGES, "--", "--model", "deep",
                     "--groups", "--no-match")
        self.refused("servers make the updates of a program's own optimizer for whole models", *STAGES, "--exchange", "parameter-server", "--",
                     "--model", "deep", "--adam")


class Resumed(Blocks):
    def test_a_killed_run_resumes_to_the_same_bits(self):
        self.killed_and_resumed("-n", 2, *STAGES, model=["sequential"])
        self.killed_and_resumed("-n", 2, *ZERO, model=["deep"])

    def test_weights_of_one_way_begin_another(self):
        self.begun_by(["deep"], [(2, STAGES), (2, ZERO)], [(1, []), (2, ZERO), (2, STAGES)])


class Refused(Blocks):
    def test_a_run_that_another_model_cannot_continue_stays_as_it_is(self):
        kept = ["result.json", "config.toml", "model.safetensors", "checkpoints/step-000002/model.safetensors"]
        self.blocks("--steps", 2, "--set", "checkpoint.every=2", "-n", 2, "--", "--model", "deep")
        before = {name: pathlib.Path(self.path("run"), name).read_bytes() for name in kept}
        _, err = self.blocks("--steps", 4, "--set", "checkpoint.every=2", "-n", 2, "--", "--model", "sequential", status=5, keep=True)
        self.assertIn("another model", err)
        self.assertNotIn("did not begin", err)  # nobody waited: the message says all
        self.assertEqual({name: pathlib.Path(self.path("run"), name).read_bytes() for name in kept}, before)

    def test_modules_without_a_list(self):
        self.refused("has no Sequential or ModuleList among its children, from which its blocks would follow: name the submodules in the "
                     'order of forward(), FitOptions::blocks({"first", "second", "third"}), or fill Model::blocks', *STAGES, "--",
                     "--model", "mixed-plain")

    def test_names(self):
        for blocks, message in (("embed,layer.*,head", '"layer.*" matches no submodule; the submodules are "embed", "layers.*", "head"'),
                                ("embed,layers.*,layers.1,head", '"layers.1" matches the module layers.1, but an earlier pattern matches layers.1'),
                                ("embed,layers,head", 'the block layers is a list of modules, which has no forward function; write "layers.*"'),
                                ("embed,layers.*", "the parameter head.weight belongs to no block")):
            with self.subTest(blocks=blocks):
                # A run that does not cut the model checks the names, too.
                for ranks, way in ((2, ZERO), (1, [])):
                    self.refused(message, *way, "--", "--model", "deep", "--blocks", blocks, ranks=ranks)

    def test_forward_functions(self):
        self.refused('LayerImpl, whose forward function is not known. Name the class, FitOptions::block<Class>("layers.0")', *STAGES, "--",
                     "--model", "deep-unknown")
        self.refused('"layers.*" is given for another class: the block layers.0 is a', *STAGES, "--", "--model", "deep-other")
        self.refused('"blocks.*" matches no block that has no function yet; the blocks are embed, layers.0, layers.1, layers.2, head', *STAGES,
                     "--", "--model", "deep-unused")

    def test_a_layer_that_is_registered_twice(self):
        for way in (STAGES, ZERO):
            self.refused('"1.weight" and "3.weight" are one parameter; register a layer once', *way, "--", "--model", "twice")
        self.refused("the layers 1 and 3 are one module, which cannot be sharded", "--mesh", "tensor=2", "--", "--model", "twice", "--cut",
                     "3=gathered")

    def test_parts_of_a_batch_in_a_pipeline(self):
        self.refused("a pipeline computes its batch in parts already: use --micro-batches instead of --accumulate", *STAGES, "--accumulate", 2,
                     "--", "--model", "sequential")

    def test_a_parameter_of_no_block(self):
        self.refused("the parameter scale belongs to no block", *ZERO, "--", "--model", "scaled")

    def test_blocks_of_the_factory(self):
        self.refused("the factory fills Model::blocks, and the options name blocks, too", *STAGES, "--", "--model", "filled")

    def test_blocks_that_compute_something_else(self):
        self.refused("the blocks together do not compute what forward() computes: forward() computes Relu after Addmm of first.bias, "
                     "where the block second computes T of second.weight", *STAGES, "--", "--model", "mixed-plain", "--blocks",
                     "first,second,third")
        self.refused("the block second fails on what the block third returns: ", *ZERO, "--",
                     "--model", "mixed-plain", "--blocks", "first,third,second")
        self.refused("the block third computes with the parameter second.weight, which belongs to another block", *ZERO, "--", "--model",
                     "mixed-foreign")


class Tensor(Blocks):
    PLAN = "layers.*.fc1=column,layers.*.fc2=row"
    TWO, FOUR = ["--mesh", "tensor=2"], ["--mesh", "tensor=4"]

    def test_the_update_is_that_of_one_process(self):
        ways = [(2, self.TWO), (4, self.FOUR), (4, ["--mesh", "replica=2,tensor=2"])]
        more = [(3, ["--mesh", "tensor=3"]), (4, ["--mesh", "replica=2,tensor=2", *ZERO]), (4, ["--mesh", "stage=2,tensor=2", "--micro-batches", 2])]
        self.compare(["deep", "--cut", self.PLAN], some([*ways, *more], 3))
        self.compare(["deep", "--cut", "embed=gathered,layers.0.fc2=row,head=gathered," + self.PLAN], [(2, self.TWO)])
        self.compare(["sequential", "--cut", "0=column,2=row,5=gathered,8=row"], ways[:2])

    def test_parts_of_a_batch(self):
        self.compare(["deep", "--cut", self.PLAN], [(2, [*self.TWO, "--accumulate", 3]), (4, ["--mesh", "replica=2,tensor=2", "--accumulate", 2])])

    def test_tensors_of_three_dimensions(self):
        self.compare(["text", "--cut", self.PLAN + ",head=gathered"], [(2, self.TWO), (4, self.FOUR)])

    def test_a_module_that_calls_functions_with_the_weights_of_its_layers(self):
        self.compare(["functional", "--cut", "first=column,second=row,third=gathered"], [(2, self.TWO), (4, ["--mesh", "replica=2,tensor=2"])])

    def test_each_rank_holds_its_part(self):
        out, _ = self.blocks("--json", "--steps", 2, "-n", 2, *self.TWO, "--", "--model", "deep", "--cut", self.PLAN)
        strategy = result_of(events_of(out))["strategy"]
        # Of the 3 · (10 · 20 + 20 + 20 · 10) parameters of these layers that are sharded, a rank holds one
        # half.
        self.assertEqual(strategy["whole_parameters"] - strategy["held_parameters"], 3 * 420 / 2)

    def test_a_killed_run_resumes_to_the_same_bits(self):
        self.killed_and_resumed("-n", 2, *self.TWO, model=["deep", "--cut", self.PLAN])

    def test_weights_of_one_mesh_begin_another(self):
        self.begun_by(["deep", "--cut", self.PLAN], [(2, self.TWO)], [(1, []), (4, self.FOUR), (2, STAGES)])

    def test_refusals(self):
        for plan, message in (("", "name its torch::nn::Linear layers in FitOptions::tensor_plan()"),
                              ("fc9=row", '"fc9" matches no fully connected layer that an earlier pattern leaves; the layers are embed, '
                                          "layers.0.fc1, layers.0.fc2"),
                              ("head=column", "] instead of [8, 5]; a layer by columns is followed by"),
                              ("layers.*.fc1=column", "the sharded model cannot be computed"),
                              ("embed=column", "the sharded model cannot be computed"),
                              ("layers.0.fc1=column,layers.0.fc2=column", "the layer layers.0.fc2 takes 20 features and gets 10")):
            with self.subTest(plan=plan):
                self.refused(message, *self.TWO, "--", "--model", "deep", "--cut", plan)

    def test_different_random_numbers(self):
        self.refused("the parts of the sharded model draw different numbers of random numbers", *self.TWO, "--", "--model", "noisy", "--cut",
                     "first=column,second=row")

    def test_a_parameter_between_divided_layers(self):
        """Its outputs are those of one process, but each rank sees a part of its gradient."""
        self.refused("the sharded model computes another gradient of 1.weight, which lies between sharded layers", *self.TWO, "--", "--model",
                     "sloped", "--cut", "0=column,2=row")
        self.compare(["sloped", "--cut", "0=gathered,2=row"], [(2, self.TWO)])


if __name__ == "__main__":
    main()
