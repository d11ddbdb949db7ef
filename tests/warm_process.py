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
MOST_BYTES = 100_000  # of a request, as in tests/warm_start/run.cc
PATIENCE = 60  # seconds that a step of a start may take


def can_start(words, env):
    """Returns whether the program may be started warm.

    `make check-deep` sets STARLING_COLD=1, so that it loads each program anew.
    """
    return (os.environ.get("STARLING_COLD") != "1" and CLIENT.exists() and "LD_PRELOAD" not in env
            and pathlib.Path(words[0]).is_relative_to(BUILD))


class WarmProcess:
    """A process with the methods of subprocess.Popen that tests use."""

    def __init__(self, words, streams, cwd, env):
        """Starts the program with three file descriptors as its streams.

        Raises OSError if no server could start it.
        """
        self.args = words
        self.returncode = None
        self.pid = None
        text = b"".join(os.fsencode(t) + b"\0" for t in (cwd, str(len(words)), *words, *(f"{k}={v}" for k, v in env.items())))
        if len(text) > MOST_BYTES:
            raise OSError(errno.E2BIG, f"a request of {len(text)} bytes to the server of {words[0]}")
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.begin(text, streams, env)
        except (OSError, struct.error, subprocess.TimeoutExpired) as error:
            raise OSError(errno.ECONNREFUSED, f"no server of {words[0]}: {error}") from error
        finally:
            if self.pid is None:
                self.connection.close()  # the server then kills the fork, if there is one

    def begin(self, text, streams, env):
        """Asks the server to run the program, and sets the process ID when the program begins.

        The server waits for the last byte before it begins main(). So a program that is started cold after a
        failure here does not run twice.
        """
        # warm_run itself gives up after 60 s.
        found = subprocess.run([CLIENT, "--address", self.args[0]], capture_output=True, env=env, check=False, timeout=2 * PATIENCE)
        # The limit of connect() and sendmsg(). With settimeout(), connect() would not wait while the queue is
        # full.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", PATIENCE, 0))
        self.connection.connect(found.stdout.rstrip(b"\n"))
        self.connection.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))])
        self.connection.settimeout(PATIENCE)
        pid, = struct.unpack("i", self.connection.recv(4))
        self.connection.send(b"\0")
        self.pid = pid

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
        self.poll()
        self.connection.close()
        if self.returncode is None:
            self.returncode = -signal.SIGKILL

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)
