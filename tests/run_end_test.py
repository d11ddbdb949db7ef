"""What a run leaves behind, how it ends early, and when it writes checkpoints by itself."""
import collections
import glob
import io
import json
import os
import pathlib
import pickle
import pty
import shlex
import shutil
import signal
import struct
import subprocess
import time
import zipfile

from own_program_test import tensors_of
from program import BUILD, SMALL, STARLING, ProgramTest, environment, events_of, main, ranks_of, recorded_events, result_of, some, wait_for_step

RUN = [*SMALL, "--global-batch", "16"]
ENDLESS = [*RUN, "--steps", "100000000"]
GPT = ["--model", "gpt", "--set", "model.layers=1", "--set", "model.width=16", "--set", "model.heads=2", "--set", "model.tokens=16",
       "--set", "train.gemm=mkl", "--global-batch", "8", "--steps", "5"]
FIT_PROGRAM = str(BUILD / "tests" / "fit_program")
WAYS = (["-n", "2"], ["-n", "2", "--exchange", "local-sgd", "--every", "3"], ["-n", "2", "--exchange", "gossip"],
        ["-n", "2", "--exchange", "central"], ["-n", "2", "--shard", "gradients"], ["-n", "2", "--mesh", "stage=2"],
        ["-n", "2", "--mesh", "tensor=2"], ["-n", "2", "--exchange", "parameter-server"],
        ["-n", "2", "--exchange", "parameter-server", "--staleness", "2"],
        ["-n", "2", "--exchange", "parameter-server", "--staleness", "inf", "--on-failure", "stop"],
        ["-n", "2", "--exchange", "downpour"])


def tensors_of_pt(path):
    """Returns the bytes of each tensor of a .pt file of Starling, by name."""
    with zipfile.ZipFile(path) as archive:
        class Reader(pickle.Unpickler):
            def find_class(self, module, name):
                known = {"OrderedDict": collections.OrderedDict, "_rebuild_tensor_v2": lambda storage, *rest: storage}
                return known.get(name, name)

            def persistent_load(self, pid):
                return archive.read("archive/data/" + pid[2])

        return dict(Reader(io.BytesIO(archive.read("archive/data.pkl"))).load())


def wait_for(condition, what, timeout=120):
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come in {timeout} s")


class Runs(ProgramTest):
    def result(self, run="run"):
        return json.loads(pathlib.Path(self.path(run), "result.json").read_text(encoding="utf-8"))

    def checkpoints(self, run="run"):
        return sorted(int(p.parent.name[5:]) for p in pathlib.Path(self.path(run)).glob("checkpoints/step-*/manifest.json"))

    def endless(self, *args, run="run", step=3):
        """Starts a run that does not end by itself, and waits until it trains."""
        process = self.start("train", "--json", "--run-dir", self.path(run), *ENDLESS, *args)
        wait_for_step(self.path(run), step)
        return process


class Folder(Runs):
    def test_a_run_leaves_its_weights_its_configuration_and_its_result(self):
        for way in ([], ["-n", "2"], ["-n", "2", "--exchange", "parameter-server"], ["-n", "2", "--exchange", "downpour"],
                    ["-n", "2", "--exchange", "gossip"], ["-n", "2", "--mesh", "stage=2"], ["-n", "2", "--shard", "parameters"]):
            with self.subTest(way=way):
                shutil.rmtree(self.path("run"), ignore_errors=True)
                events, _ = self.train(*RUN, "--steps", 6, *way, "--save", self.path("saved.safetensors"))
                self.assertEqual(tensors_of(self.path("run/model.safetensors")), tensors_of(self.path("saved.safetensors")))
                end = result_of(events)
                kept = self.result()
                for key in ("model", "steps", "test_loss", "test_accuracy", "strategy", "run_id", "wall_s"):
                    self.assertEqual(kept[key], end[key], key)
                shown = subprocess.run([STARLING, "config", "show", "-c", self.path("run/config.toml")], capture_output=True, text=True,
                                       cwd=self.dir, env=environment())
                self.assertEqual(shown.returncode, 0, shown.stderr)
                self.assertRegex(shown.stdout, r"widths += \[784, 64, 10\]")
                self.assertRegex(shown.stdout, r"steps += 6 ")
                self.assertNotIn("# default", shown.stdout)  # the file has every key

    def test_the_configuration_of_the_folder_repeats_the_run(self):
        self.train(*RUN, "--steps", 6, "-n", 2)
        before = tensors_of(self.path("run/model.safetensors"))
        self.run_program("train", "--json", "-c", self.path("run/config.toml"), "--run-dir", self.path("again"))
        self.assertEqual(tensors_of(self.path("again/model.safetensors")), before)
        self.run_program("train", "--json", "-c", self.path("run/config.toml"))
        self.assertTrue(os.path.exists(self.path("run/config.1.toml")))
        self.assertTrue(os.path.exists(self.path("run/result.1.json")))
        self.assertEqual(tensors_of(self.path("run/model.1.safetensors")), before)
        self.assertEqual(tensors_of(self.path("run/model.safetensors")), before)

    def test_a_users_program_leaves_them_too(self):
        for ranks in (1, 2):
            done = subprocess.run([FIT_PROGRAM, "--set", "train.gemm=mkl", "--global-batch", "8", "--steps", "6", "-n", str(ranks), "--run-dir",
                                   self.path("run"), "--resume", "never", "--save", self.path("saved.safetensors")],
                                  capture_output=True, text=True, timeout=240, cwd=self.dir, env=environment())
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(tensors_of(self.path("run/model.safetensors")), tensors_of(self.path("saved.safetensors")))
            self.assertEqual(self.result()["steps"], 6)
            text = pathlib.Path(self.path("run/config.toml")).read_text(encoding="utf-8")
            self.assertNotIn("widths", text)
            self.assertIn("steps = 6\n", text)
            again = subprocess.run([FIT_PROGRAM, "-c", self.path("run/config.toml"), "--run-dir", self.path("again"), "--set",
                                    "run.resume=never"], capture_output=True, text=True, timeout=240, cwd=self.dir, env=environment())
            self.assertEqual(again.returncode, 0, again.stderr)
        _, err = self.run_program("eval", self.path("run"), status=2)
        self.assertRegex(err, r"program of your own.*--init .*run/model.safetensors")

    def test_a_resumed_run_replaces_them(self):
        self.train(*RUN, "--steps", 4, "--set", "checkpoint.every=2")
        self.train(*RUN, "--steps", 8, "--set", "checkpoint.every=2")
        self.assertEqual(self.result()["steps"], 8)
        evaluated, _ = self.run_program("eval", "--json", self.path("run"))
        self.assertEqual(next(e for e in evaluated if e["event"] == "eval")["step"], 8)


class Eval(Runs):
    def test_a_run_folder_is_enough(self):
        for way in ([], ["-n", "2", "--exchange", "downpour"], ["--precision", "fp64"]):
            with self.subTest(way=way):
                shutil.rmtree(self.path("run"), ignore_errors=True)
                events, _ = self.train(*RUN, "--steps", 20, "--seed", 5, *way)
                evaluated, _ = self.run_program("eval", "--json", self.path("run"))
                end = result_of(evaluated)
                self.assertAlmostEqual(end["test_loss"], result_of(events)["test_loss"], places=5)
                self.assertAlmostEqual(end["test_accuracy"], result_of(events)["test_accuracy"], places=6)
                self.assertEqual((end["steps"], end["samples"]), (20, 128))

    def test_flags_override_the_data(self):
        self.train(*RUN, "--steps", 5)
        end = result_of(self.run_program("eval", "--json", self.path("run"), "--set", "data.test_samples=32", "-n", 2)[0])
        self.assertEqual(end["samples"], 32)

    def test_the_weights_of_a_pt_file(self):
        self.train(*RUN, "--steps", 20, "--save", self.path("saved.pt"))
        self.assertEqual(tensors_of_pt(self.path("saved.pt")), tensors_of(self.path("run/model.safetensors")))
        evaluated = [result_of(self.run_program("eval", "--json", *args)[0])["test_loss"] for args in
                     ([self.path("run")], [self.path("run"), "--init", self.path("saved.pt")], [*SMALL, "--init", self.path("saved.pt")])]
        self.assertEqual(evaluated, evaluated[:1] * 3)
        for ranks in (1, 2):
            first = []
            for file in ("saved.pt", "run/model.safetensors"):
                events, _ = self.run_program("train", "--json", *RUN, "-n", ranks, "--steps", 2, "--init", self.path(file), "--save",
                                             self.path("again.pt"), "--run-dir", self.path(f"{ranks}-{file[:3]}"))
                first.append(([e["loss"] for e in events if e["event"] == "step"], tensors_of_pt(self.path("again.pt"))))
            self.assertEqual(first[0], first[1])
        with open(self.path("saved.pt"), "r+b") as file:
            file.truncate(os.path.getsize(self.path("saved.pt")) - 1)
        _, err = self.run_program("eval", *SMALL, "--init", self.path("saved.pt"), status=3)
        self.assertIn("saved.pt: truncated: the zip archive has no directory at its end", err)

    def test_a_text_model_of_a_pt_file(self):
        pathlib.Path(self.path("text.txt")).write_text("abcdefghij ü" * 300, encoding="utf-8")
        self.train(*GPT, "--data", "text:" + self.path("text.txt"), "--save", self.path("gpt.pt"))
        texts = []
        for more in ([], ["--init", self.path("gpt.pt")]):
            done = subprocess.run([STARLING, "sample", self.path("run"), "--prompt", "a", "--length", "20", *more], capture_output=True,
                                  text=True, timeout=240, cwd=self.dir, env=environment())
            self.assertEqual(done.returncode, 0, done.stderr)
            texts.append(done.stdout)
        self.assertEqual(texts[0], texts[1])

    def test_an_interrupted_run_is_evaluated_by_its_checkpoint(self):
        self.train(*RUN, "--steps", 6, "--set", "checkpoint.every=3")
        os.remove(self.path("run/model.safetensors"))
        for folder, step in (("run", 6), ("run/checkpoints/step-000003", 3)):
            evaluated, _ = self.run_program("eval", "--json", self.path(folder))
            self.assertEqual(result_of(evaluated)["steps"], step)

    def test_without_weights_it_is_refused(self):
        events, err = self.run_program("eval", "--json", *SMALL, status=2)
        self.assertRegex(err, r"error: RUN_DIR: there are no weights: name a run folder, or .*--init")
        self.assertEqual(events[-1]["code"], "config")
        os.mkdir(self.path("empty"))
        for folder in ("empty", "missing"):
            _, err = self.run_program("eval", self.path(folder), status=2)
            self.assertIn(self.path(folder), err)


class Sample(Runs):
    def sample(self, *args, status=0):
        return self.run_program("sample", "--json", self.path("run"), *args, status=status)

    def test_a_text_model_continues_a_prompt(self):
        alphabet = "abcdefghij ü"
        pathlib.Path(self.path("text.txt")).write_text(alphabet * 300, encoding="utf-8")
        self.train(*GPT, "--steps", 150, "--lr", 0.01, "--data", "text:" + self.path("text.txt"))
        os.remove(self.path("text.txt"))  # the weights name the characters of the model
        first = result_of(self.sample("--prompt", "abc", "--length", 40, "--seed", 3)[0])
        self.assertEqual((first["prompt"], len(first["text"])), ("abc", 40))
        self.assertLessEqual(set(first["text"]), set(alphabet))
        self.assertEqual(result_of(self.sample("--prompt", "abc", "--length", 40, "--seed", 3)[0]), first)
        self.assertNotEqual(result_of(self.sample("--prompt", "abc", "--length", 40, "--seed", 4, "--temperature", 5)[0])["text"], first["text"])
        # The model has learned the only order that there is.
        for likeliest in (["--temperature", 0], ["--top-k", 1]):
            text = result_of(self.sample("--prompt", "abc", "--length", 30, *likeliest)[0])["text"]
            self.assertIn(text[:9], (alphabet * 2)[3:12])
        plain = subprocess.run([STARLING, "sample", self.path("run"), "--prompt", "abc", "--length", "5", "--temperature", "0"], capture_output=True,
                               text=True, cwd=self.dir, env=environment())
        self.assertEqual(plain.stdout[:3], "abc")
        self.assertEqual(len(plain.stdout), 9)
        _, err = self.sample("--prompt", "a?", status=2)
        self.assertRegex(err, r'--prompt: the model does not know the character "\?"')
        _, err = self.sample("--prompt", "", status=2)
        self.assertIn("--prompt", err)

    def test_llama_continues_a_prompt(self):
        alphabet = "abcdefghij ü"
        pathlib.Path(self.path("text.txt")).write_text(alphabet * 300, encoding="utf-8")
        llama = ["llama" if word == "gpt" else word for word in GPT]
        self.train(*llama, "--set", "model.kv_heads=1", "--steps", 150, "--lr", 0.01, "--data", "text:" + self.path("text.txt"))
        text = result_of(self.sample("--prompt", "abc", "--length", 30, "--temperature", 0)[0])["text"]
        self.assertIn(text[:9], (alphabet * 2)[3:12])

    def test_other_models_are_refused(self):
        self.train(*RUN, "--steps", 2)
        _, err = self.sample("--prompt", "a", status=2)
        self.assertRegex(err, "mlp is no model of text")


class Interruption(Runs):
    def test_the_state_is_saved_nothing_is_tested_and_the_status_tells(self):
        for way, number in (([], signal.SIGTERM), ([], signal.SIGINT), (["-n", "2"], signal.SIGTERM), (["-n", "2"], signal.SIGINT),
                            (["-n", "2", "--exchange", "downpour"], signal.SIGTERM),
                            (["-n", "2", "--exchange", "ad-psgd"], signal.SIGTERM),
                            (["-n", "2", "--exchange", "parameter-server"], signal.SIGTERM), (["-n", "2", "--mesh", "stage=2"], signal.SIGTERM)):
            with self.subTest(way=way, number=number):
                shutil.rmtree(self.path("run"), ignore_errors=True)
                process = self.endless(*way, "--set", "data.samples=1600000")  # one epoch is longer than the run
                process.send_signal(number)
                _, out, err = self.ended(process)
                self.assertEqual(process.returncode, 128 + number, err)
                events = events_of(out)
                end = result_of(events)
                self.assertTrue(end["interrupted"])
                self.assertEqual([e for e in events if e["event"] == "eval"], [])
                self.assertEqual(self.checkpoints(), [end["steps"]])
                self.assertFalse(os.path.exists(self.path("run/model.safetensors")))
                self.assertTrue(self.result()["interrupted"])
                words = shlex.split(end["resume"])
                self.assertEqual(words[words.index("--run-dir") + 1], self.path("run"))
                self.assertNotIn("error", err)

    def test_the_command_resumes(self):
        process = self.endless("-n", "2")
        process.terminate()
        _, out, _ = self.ended(process)
        end = result_of(events_of(out))
        command = end["resume"].replace("100000000", str(end["steps"] + 5))
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=240, cwd=self.dir, env=environment())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(result_of(events_of(done.stdout))["first_step"], end["steps"])

    def test_a_signal_to_one_rank_interrupts_all(self):
        for way in ([], ["--exchange", "parameter-server", "--staleness", "2"]):
            shutil.rmtree(self.path("run"), ignore_errors=True)
            process = self.endless("-n", "2", *way)
            os.kill(ranks_of(process.pid)[1], signal.SIGTERM)
            _, out, err = self.ended(process)
            self.assertEqual(process.returncode, 143, err)
            self.assertTrue(result_of(events_of(out))["interrupted"])

    def test_the_status_is_that_of_the_signal_to_a_rank(self):
        for number in (signal.SIGINT, signal.SIGHUP):
            for rank in (0, 1):
                shutil.rmtree(self.path("run"), ignore_errors=True)
                process = self.endless("-n", "2")
                os.kill(ranks_of(process.pid)[rank], number)
                _, out, err = self.ended(process)
                self.assertEqual(process.returncode, 128 + number, err)
                self.assertTrue(result_of(events_of(out))["interrupted"])
                self.assertNotIn("error", err)

    def test_a_users_program_ends_with_the_status(self):
        for ranks in (1, 2):
            shutil.rmtree(self.path("run"), ignore_errors=True)
            process = subprocess.Popen([FIT_PROGRAM, "--global-batch", "8", "--steps", "100000000", "-n", str(ranks), "--run-dir", self.path("run")],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.dir, env=environment())
            self.addCleanup(self.end, process)
            wait_for_step(self.path("run"), 3)
            process.send_signal(signal.SIGINT)
            _, out, err = self.ended(process)
            self.assertEqual(process.returncode, 130, err)
            self.assertIn("This command resumes the run:", out)

    def test_an_evaluation_is_broken_off(self):
        # The evaluation of 10 million samples takes minutes, and that of one epoch is the first.
        process = self.start("train", "--json", "--run-dir", self.path("run"), *ENDLESS, "--set", "data.samples=160", "--set",
                             "data.test_samples=3000000", "--set", "train.eval_batch=16")
        wait_for_step(self.path("run"), 10)
        process.terminate()
        _, out, err = self.ended(process)
        self.assertEqual(process.returncode, 143, err)
        events = events_of(out)
        self.assertEqual([e for e in events if e["event"] == "eval"], [])
        self.assertEqual(self.checkpoints(), [result_of(events)["steps"]])


class Requests(Runs):
    def test_sigusr1_writes_a_checkpoint_and_the_run_goes_on(self):
        for way in ([], *WAYS):
            with self.subTest(way=way):
                shutil.rmtree(self.path("run"), ignore_errors=True)
                process = self.endless(*way)
                for _ in range(2):  # the second request is heard, too
                    before = self.checkpoints()
                    process.send_signal(signal.SIGUSR1)
                    saved = wait_for(lambda: [s for s in self.checkpoints() if s not in before], "the checkpoint")[-1]
                    wait_for_step(self.path("run"), saved + 2)
                process.terminate()
                _, out, err = self.ended(process)
                self.assertEqual(process.returncode, 143, err)
                end = result_of(events_of(out))
                self.assertGreater(end["steps"], saved)
                self.assertEqual(self.checkpoints()[-1], end["steps"])

    def test_sigusr2_ends_the_run_in_order(self):
        for way in ([], ["-n", "2"], ["-n", "2", "--exchange", "downpour"]):
            with self.subTest(way=way):
                shutil.rmtree(self.path("run"), ignore_errors=True)
                process = self.endless(*way, "--set", "data.samples=1600000")
                process.send_signal(signal.SIGUSR2)
                _, out, err = self.ended(process)
                self.assertEqual(process.returncode, 0, err)
                events = events_of(out)
                self.assertEqual([e["step"] for e in events if e["event"] == "eval"], [result_of(events)["steps"]])
                self.assertEqual((result_of(events)["stopped"], result_of(events)["interrupted"]), (True, False))

    def test_checkpoints_come_by_time(self):
        for way in some(([], *WAYS), 4):
            with self.subTest(way=way):
                shutil.rmtree(self.path("run"), ignore_errors=True)
                events, _ = self.train(*RUN, *way, "--steps", 60, "--set", "checkpoint.minutes=1e-7", "--set", "checkpoint.keep=100")
                self.assertGreater(len(self.checkpoints()), 1)
                self.assertEqual(self.checkpoints()[-1], 60)  # a run that writes checkpoints has one of its last step
                self.assertFalse([e for e in events if "is skipped" in e.get("text", "")])
                resumed, _ = self.train(*RUN, *way, "--steps", 64)
                self.assertEqual(result_of(resumed)["first_step"], 60)

    def test_a_synchronous_run_with_checkpoints_by_time_has_the_bits_of_one_without(self):
        for way in some((["-n", "2"], ["-n", "2", "--exchange", "parameter-server"], [], ["-n", "2", "--mesh", "stage=2"]), 2):
            weights = []
            for minutes in ("1e-7", "0"):
                run = self.path(f"run-{len(way)}-{minutes}")
                shutil.rmtree(run, ignore_errors=True)
                self.run_program("train", "--json", "--run-dir", run, *RUN, *way, "--steps", 40, "--set", f"checkpoint.minutes={minutes}")
                weights.append(tensors_of(run + "/model.safetensors"))
                self.assertEqual(os.path.exists(run + "/checkpoints"), minutes != "0")
            self.assertEqual(weights[0], weights[1], way)

    def test_runs_that_cannot_meet_write_none_by_time(self):
        for way in (["-n", "2", "--exchange", "parameter-server", "--backup", "1"],
                    ["-n", "2", "--exchange", "downpour", "--set", "exchange.push_every=2", "--set", "exchange.fetch_every=2"]):
            shutil.rmtree(self.path("run"), ignore_errors=True)
            self.train(*RUN, *way, "--steps", 30, "--set", "checkpoint.minutes=1e-7")
            self.assertEqual(self.checkpoints(), [])


class Made(Runs):
    def test_existing_files_are_not_replaced(self):
        for source, name in (("digits", "t10k-labels-idx1-ubyte"), ("grammar", "grammar.txt")):
            folder = self.path(source)
            words = ["data", "make", folder, "--data", source, "--set", "data.samples=20", "--set", "data.test_samples=10"]
            os.mkdir(folder)
            mine = pathlib.Path(folder, name)
            mine.write_text("mine", encoding="utf-8")
            _, err = self.run_program(*words, status=2)
            self.assertIn(str(mine), err)
            self.assertIn("--force", err)
            self.assertEqual(mine.read_text(encoding="utf-8"), "mine")
            self.assertEqual(os.listdir(folder), [name])
            self.run_program(*words, "--force")
            self.assertNotEqual(mine.read_bytes(), b"mine")
            _, err = self.run_program(*words, status=2)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(crc):
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records_of(path):
    """Returns the records of a TFRecord file whose checksums are right."""
    data = pathlib.Path(path).read_bytes()
    records = []
    while data:
        length, head = struct.unpack_from("<QI", data)
        assert head == masked(crc32c(data[:8]))
        body = data[12:12 + length]
        assert struct.unpack_from("<I", data, 12 + length)[0] == masked(crc32c(body))
        records.append(body)
        data = data[16 + length:]
    return records


def fields_of(message):
    """Returns the fields of a protocol buffer as (number, value)."""
    fields, at = [], 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
    while at < len(message):
        key = varint()
        if key & 7 == 0:
            value = varint()
        elif key & 7 == 1:
            value = struct.unpack_from("<d", message, at)[0]
            at += 8
        elif key & 7 == 5:
            value = struct.unpack_from("<f", message, at)[0]
            at += 4
        else:
            length = varint()
            value = message[at:at + length]
            at += length
        fields.append((key >> 3, value))
    return fields


def scalars_of(folder):
    """Returns {tag: {step: value}} and the times of the event files in a folder."""
    scalars, times = {}, []
    for path in sorted(glob.glob(os.path.join(folder, "*tfevents*"))):
        records = [dict(fields_of(r)) for r in records_of(path)]
        assert records[0][3] == b"brain.Event:2"
        for event in records[1:]:
            times.append(event[1])
            for _, value in fields_of(event[5]):
                fields = dict(fields_of(value))
                scalars.setdefault(fields[1].decode(), {})[event[2]] = fields[2]
    return scalars, times


class Events(Runs):
    def test_events_have_a_time_and_the_id_of_the_run(self):
        before = time.time()
        for way in ([], ["-n", "2"]):
            shutil.rmtree(self.path("run"), ignore_errors=True)
            printed, _ = self.train(*RUN, "--steps", 5, *way)
            for events in (printed, recorded_events(self.path("run"))):
                self.assertEqual(len({e["run_id"] for e in events}), 1)
                times = [e["time"] for e in events]
                self.assertEqual(times, sorted(times))
                self.assertTrue(before <= times[0] and times[-1] <= time.time(), times)
            self.assertEqual({e["run_id"] for e in printed}, {e["run_id"] for e in recorded_events(self.path("run"))})
        self.assertNotEqual(self.train(*RUN, "--steps", 6)[0][0]["run_id"], printed[0]["run_id"])
        events, _ = self.run_program("train", "--json", "--lr", "x", status=2)
        self.assertGreaterEqual(events[-1]["time"], before)

    def test_tensorboard_files_have_the_numbers_of_the_events(self):
        for way in ([], ["-n", "2"]):
            shutil.rmtree(self.path("run"), ignore_errors=True)
            events, _ = self.train(*RUN, "--steps", 7, "--tensorboard", *way, "--set", "checkpoint.every=4")
            scalars, times = scalars_of(self.path("run/tensorboard"))
            steps = [e for e in events if e["event"] == "step"]
            for name in ("loss", "lr", "epoch", "samples_per_s"):
                self.assertEqual(set(scalars["train/" + name]), set(range(1, 8)))
                for e in steps:
                    self.assertAlmostEqual(scalars["train/" + name][e["step"]] / e[name], 1, places=5)
            for name in ("step_s", "compute_s", "exposed_comm_s", "data_wait_s"):
                self.assertEqual(set(scalars["time/" + name]), set(range(1, 8)))
            evaluation = next(e for e in events if e["event"] == "eval")
            self.assertAlmostEqual(scalars["test/loss"][7], evaluation["loss"], places=5)
            self.assertAlmostEqual(scalars["test/accuracy"][7], evaluation["accuracy"], places=5)
            self.assertEqual(set(scalars["time/checkpoint_s"]), {4, 7})
            self.assertTrue(all(abs(t - time.time()) < 600 for t in times))
            # A resumed run adds a file.
            self.train(*RUN, "--steps", 9, "--tensorboard", *way)
            self.assertEqual(set(scalars_of(self.path("run/tensorboard"))[0]["train/loss"]), set(range(1, 10)))
        shutil.rmtree(self.path("run"))
        self.train(*RUN, "--steps", 2)
        self.assertFalse(os.path.exists(self.path("run/tensorboard")))

    def test_an_evaluation_shows_its_progress_on_a_terminal(self):
        leader, follower = pty.openpty()
        process = subprocess.Popen([STARLING, "train", "--run-dir", self.path("run"), *RUN, "--steps", "2", "--set", "train.eval_batch=16"],
                                   stdout=follower, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd=self.dir, env=environment(TERM="xterm"))
        self.addCleanup(self.end, process)
        os.close(follower)
        shown = b""
        try:
            while True:
                shown += os.read(leader, 65536)
        except OSError:  # the other side is closed
            pass
        os.close(leader)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        self.assertRegex(shown.decode(), r"testing at step 2  12 %  16/128 samples")
        self.assertRegex(shown.decode(), r"testing at step 2  100 %  128/128 samples")


if __name__ == "__main__":
    main()
