"""Starts a program that was loaded before (tests/warm_start). Loading libtorch takes most of a short test."""
import array
import errno
import os
import pathlib
import signal
import socket
import struct
import subprocess

BUILD = pathlib.Path(os.environ.get("STARLING_BUILD", "build/release")).resolve()
CLIENT = BUILD / "tests/warm_run"


def can_start(words, env):
    """Returns whether the program may be started warm. `make check-deep` sets STARLING_COLD=1 and loads each anew."""
    return (os.environ.get("STARLING_COLD") != "1" and CLIENT.exists() and "LD_PRELOAD" not in env
            and pathlib.Path(words[0]).is_relative_to(BUILD))


class WarmProcess:
    """A process with the methods of subprocess.Popen that tests use."""

    def __init__(self, words, streams, cwd, env):
        """Starts the program with three file descriptors as its streams. Raises OSError if no server could start it."""
        self.args = words
        self.returncode = None
        found = subprocess.run([CLIENT, "--address", words[0]], capture_output=True, text=True, env=env, check=False)
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        text = [str(cwd), str(len(words)), *words, *(f"{k}={v}" for k, v in env.items())]
        try:
            self.connection.connect(found.stdout.strip())
            self.connection.sendmsg(["".join(f"{t}\0" for t in text).encode()],
                                    [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))])
            self.connection.settimeout(60)
            self.pid, = struct.unpack("i", self.connection.recv(4))
        except (OSError, struct.error) as error:
            self.connection.close()  # the server then kills a fork that it makes late
            raise OSError(errno.ECONNREFUSED, f"no server of {words[0]}: {error}") from error

    def poll(self):
        """Returns the exit status, or None while the process runs."""
        return self.returncode if self.returncode is not None else self.receive_status(0)

    def receive_status(self, timeout):
        self.connection.settimeout(timeout)
        try:
            answer = self.connection.recv(4)
            # Without an answer, the fork server has ended, and the fork was killed with it.
            self.returncode = os.waitstatus_to_exitcode(struct.unpack("i", answer)[0]) if answer else -signal.SIGKILL
        except (BlockingIOError, TimeoutError):
            pass
        except ConnectionError:
            self.returncode = -signal.SIGKILL
        return self.returncode

    def wait(self, timeout=None):
        if self.poll() is None and self.receive_status(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def close(self):
        """Gives up the process ID, which belongs to this process until then. Kills the process if it runs."""
        self.connection.close()

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)
