"""What the commands that train no network say after Ctrl-C."""
import signal

from program import ProgramTest, main

# Each command runs until a signal ends it. It prints the second text when its loop has begun.
LONG = {
    "topics": (["--documents", 400, "--words", 200, "--sweeps", 10**9], "sweep ", r"sweep \d+ of 1000000000"),
    "factorize": (["--rows", 400, "--columns", 300, "--entries", 12000, "--epochs", 10**9], "epoch ",
                  r"epoch \d+ of 1000000000"),
    # With tolerance 0, the cyclic schedule goes on even if no weight changes any more.
    "lasso": (["--samples", 100, "--features", 200, "--nonzeros", 5, "--schedule", "cyclic", "--tolerance", 0],
              " updates ", r"round \d+"),
    "mcmc": (["--draws", 10**8], "Embarrassingly", None),
    "lbfgs": (["--samples", 200, "--features", 3, "--emulate", "compute=1s"], "iteration ", r"iteration \d+"),
    "autoencoder": (["--data", "digits", "--set", "data.samples=64", "--maps", 2, "--steps", 10**6], "step ",
                    r"step \d+ of 2000000"),
}


class Interrupted(ProgramTest):
    def last_line(self, *words, begun):
        """Interrupts a command when it prints `begun`. Returns the last line of its standard output."""
        process = self.start(*words, piped=True)
        line = " "
        while begun not in line:
            line = process.stdout.readline()
            self.assertNotEqual(line, "", process.stderr.read() if process.poll() is not None else words)
        process.send_signal(signal.SIGINT)
        _, out, err = self.ended(process)
        self.assertEqual(process.returncode, 130, out + err)
        return out.splitlines()[-1]

    def test_the_last_line_says_what_was_saved(self):
        for name, (words, begun, done) in LONG.items():
            folder = self.path(name)
            after = f"interrupted after {done}; " if done else "interrupted; "
            with self.subTest(name=name):
                kept = self.last_line(name, "-n", 2, *words, "--checkpoint", folder, begun=begun)
                self.assertRegex(kept, f"^{after}{folder} has the checkpoint, and the same command goes on$")
                lost = self.last_line(name, "-n", 2, *words, begun=begun)
                self.assertRegex(lost, f"^{after}nothing was saved: with --checkpoint DIR, the same command would go on$")


if __name__ == "__main__":
    main()
