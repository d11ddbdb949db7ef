"""`starling data serve`: training gives the same bits as training from files.

If a rank dies, each batch is still used once.
"""
import json
import os
import pathlib
import re
import signal
import stat
import time

from program import SMALL, ProgramTest, environment, main, recorded_events, wait_for_step

NO_DATA = [w for pair in zip(SMALL[::2], SMALL[1::2]) if pair[0] != "--data" and "samples" not in pair[1] for w in pair]


class ServedData(ProgramTest):
    def serve(self, *args):
        process = self.start("data", "serve", "--json", *SMALL, *args, piped=True)
        serving = json.loads(process.stdout.readline())
        self.assertEqual(serving["event"], "serving")
        return process, serving["address"]

    def stop(self, process):
        process.send_signal(signal.SIGTERM)
        _, out, err = self.ended(process)
        self.assertEqual(process.returncode, 0, err)
        return json.loads(out.splitlines()[-1]), err

    def line_of(self, process, pattern):
        """Returns stderr up to the line that `pattern` matches, and the number in that line.

        The wait ends with the test's timeout.
        """
        before = ""
        for line in process.stderr:
            found = re.search(pattern, line)
            if found:
                return before, int(found[1])
            before += line
        raise AssertionError(f"ended without {pattern}: {before}")

    def weights(self, name, *args):
        path = self.path(name + ".safetensors")
        self.run_program("train", "-q", "--run-dir", self.path("run-" + name), "--save", path, *NO_DATA, "--steps", 8,
                         "--global-batch", 32, "-n", 2, "--set", "data.augment=true", *args)
        with open(path, "rb") as f:
            return f.read()

    def test_served_and_local_data_give_equal_weights(self):
        server, address = self.serve()
        local = self.weights("local", "--data", "digits", "--set", "data.samples=512", "--set", "data.test_samples=128")
        self.assertEqual(self.weights("served", "--data", f"served:{address}"), local)
        served, _ = self.stop(server)
        self.assertGreaterEqual(served["samples"], 8 * 32)
        self.assertEqual(served["tickets"], 0)  # ranks in lockstep ask for samples by index, without tickets
        self.run_program("train", *NO_DATA, "--data", f"served:{address}", "--steps", 1, status=2)

    def test_served_and_local_text_give_equal_weights(self):
        text = pathlib.Path(self.path("text.txt"))
        text.write_text("".join(f"line {i * i} of a text: ä\n" for i in range(600)), encoding="utf-8")
        server, address = self.serve("--data", f"text:{text}", "--set", "data.samples=0", "--set", "data.test_samples=0")
        model = ["--model", "gpt", "--set", "model.layers=1", "--set", "model.width=16", "--set", "model.heads=2", "--set",
                 "model.tokens=16"]
        weights = {}
        for name, data in (("local", f"text:{text}"), ("served", f"served:{address}")):
            path = self.path(name + ".safetensors")
            self.run_program("train", "-q", "--run-dir", self.path("run-" + name), "--save", path, *model, "--data", data, "--steps", 6,
                             "--global-batch", 8, "-n", 2)
            weights[name] = pathlib.Path(path).read_bytes()
        self.assertEqual(weights["served"], weights["local"])
        served, _ = self.stop(server)
        self.assertGreater(served["bytes"], 2 * 4 * len(text.read_text(encoding="utf-8")))  # two ranks hold the text

    def test_a_killed_rank_leaves_its_batches_to_the_others(self):
        server, address = self.serve()
        processes = []
        # Ranks 0 and 1 are workers, rank 2 is the parameter server. No launcher ends all of them.
        for rank in range(3):
            env = environment(RANK=rank, WORLD_SIZE=3, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=3, MASTER_ADDR="127.0.0.1",
                              MASTER_PORT=29641, TORCHELASTIC_RUN_ID=f"served-{os.getpid()}")
            processes.append(self.start("train", "--run-dir", self.path("run"), *NO_DATA, "--exchange", "parameter-server",
                                        "--staleness", 3, "--steps", 100000, "--global-batch", 16, "--data",
                                        f"served:{address}", env=env))
        wait_for_step(self.path("run"), 8)  # so rank 1, which is at most 3 steps behind, has tickets
        processes[1].kill()
        processes[1].wait(30)
        told, returned = self.line_of(server, r"its (\d+) tickets go to other workers")
        # The server gives out returned tickets before new ones. The loader of the other worker has up to 20
        # tickets.
        last = max(e["step"] for e in recorded_events(self.path("run")) if e.get("event") == "step")
        wait_for_step(self.path("run"), last + returned + 20)
        processes[0].terminate()
        self.ended(processes[0])
        self.ended(processes[2])
        served, err = self.stop(server)
        self.assertEqual((told + err).count("tickets go to other workers"), 1)  # tickets of one worker only
        self.assertGreater(returned, 0)
        self.assertEqual(served["given_again"], returned)
        self.assertEqual(served["late"], 0)
        self.assertLessEqual(served["settled"], served["tickets"] - served["given_again"])

    def test_a_named_key_is_private_and_must_be_the_right_one(self):
        key, wrong = self.path("data.key"), self.path("wrong.key")
        server, address = self.serve("--key-file", key)
        self.assertEqual(stat.S_IMODE(os.stat(key).st_mode), 0o600)
        with open(wrong, "w", opener=lambda p, f: os.open(p, f, 0o600), encoding="ascii") as f:
            f.write("00" * 32 + "\n")
        words = ["train", *NO_DATA, "--run-dir", self.path("run"), "--steps", 2, "--resume", "never"]
        right = ["--data", f"served:{address},key={key}"]
        begin = time.monotonic()
        _, err = self.run_program(*words, "--data", f"served:{address},key={wrong}", status=4)
        self.assertIn("wrong job key", err)
        self.assertLess(time.monotonic() - begin, 40)  # without an answer it would try for 60 s
        self.run_program(*words, *right)
        self.stop(server)
        begin = time.monotonic()
        _, err = self.run_program(*words, *right, status=4)
        self.assertIn("starling data serve", err)
        # The program tries for 3 s. A slow machine also needs time to start it.
        self.assertLess(time.monotonic() - begin, 40)

    def test_what_cannot_be_served_is_refused(self):
        for words, reason in ((["--data", "grammar"], "holds itself"), (["--data", "served:127.0.0.1:9"], "holds itself"),
                              (["--data", "digits", "--interface", "0.0.0.0"], "key-file"),
                              (["--data", "digits", "--port", "70000"], "70000")):
            with self.subTest(words=words):
                _, err = self.run_program("data", "serve", *words, status=2)
                self.assertIn(reason, err)
        key = self.path("any.key")
        _, err = self.run_program("data", "serve", "--data", "digits", "--interface", "0.0.0.0", "--key-file", key, status=4)
        self.assertIn("every interface", err)


if __name__ == "__main__":
    main()
