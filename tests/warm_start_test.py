"""Programs that are started warm (tests/warm_start) run as programs that are executed."""
import array
import contextlib
import os
import pathlib
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import unittest.mock

from program import STARLING, ProgramTest, Started, environment, main
from warm_process import CLIENT, WarmProcess

LIMIT = 30  # seconds until a test fails that waits for an event


def status_of(pid, field):
    """Returns a field of /proc/PID/status, or an empty text if the process has ended."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return line.split(":", 1)[1].strip()
    return ""


def parent_of(pid):
    return int(status_of(pid, "PPid"))


def in_recvmsg(pid):
    """Returns whether the process waits in recvmsg(), which has number 47 on x86-64 and 212 on ARM."""
    return pathlib.Path(f"/proc/{pid}/syscall").read_text().split()[0] in ("47", "212")


class WarmStart(ProgramTest):
    def setUp(self):
        super().setUp()
        # The path belongs to this test alone, so the test has servers of its own and may end them.
        self.shell = self.path("sh")
        os.symlink("/bin/sh", self.shell)
        self.servers = {}  # the path of each server's socket, by process ID
        self.addCleanup(self.end_servers)
        # A pipe tells when the last process that can write to it has ended.
        self.output, self.end_of_programs = os.pipe()
        self.addCleanup(os.close, self.output)
        self.addCleanup(self.close_pipe)

    def close_pipe(self):
        if self.end_of_programs is not None:
            os.close(self.end_of_programs)
            self.end_of_programs = None

    def end_servers(self):
        for pid, address in self.servers.items():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            pathlib.Path(address).unlink(missing_ok=True)

    def warm(self, *args, executable=None, stdin=os.devnull, env=None):
        """Starts a shell by WarmProcess, whose output goes to the pipe."""
        with open(stdin, "rb") as file:
            streams = [file.fileno(), self.end_of_programs, self.end_of_programs]
            process = WarmProcess([executable or self.shell, *args], streams, self.dir, env or environment())
        self.addCleanup(process.close)
        self.servers[parent_of(process.pid)] = process.connection.getpeername()
        return process

    def by_client(self, *args, stdin=os.devnull, env=None):
        """Starts a shell by warm_run, whose output goes to the pipe."""
        with open(stdin, "rb") as file:
            process = subprocess.Popen([CLIENT, self.shell, *args], stdin=file, stdout=self.end_of_programs,
                                       stderr=self.end_of_programs, cwd=self.dir, env=env or environment())
        self.addCleanup(self.end, process)
        return process

    def wait_until(self, condition):
        end = time.monotonic() + LIMIT
        while not condition():
            self.assertLess(time.monotonic(), end, "the condition did not become true")
            time.sleep(0.005)

    def written(self, end=None):
        """Returns what comes from the pipe until `end`, or else until no program has the pipe any more."""
        if end is None:
            self.close_pipe()
        text = b""
        while end is None or not text.endswith(end):
            self.assertTrue(select.select([self.output], [], [], LIMIT)[0], f"nothing more in {LIMIT} s after {text}")
            part = os.read(self.output, 1 if end else 4096)
            if not part:
                break
            text += part
        return os.fsdecode(text)

    def asked(self, text, streams=3):
        """Connects with the shell's server. Sends `text`, if any, with a number of descriptors."""
        address = subprocess.run([CLIENT, "--address", self.shell], capture_output=True, text=True, env=environment(),
                                 check=True, timeout=LIMIT).stdout.strip()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(connection.close)
        connection.settimeout(LIMIT)
        connection.connect(address)
        if text:
            self.send(connection, text, streams)
        return connection

    def send(self, connection, text, streams=3):
        descriptors = array.array("i", [self.end_of_programs] * streams)
        connection.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])

    def script(self, text, arguments=3):
        """Returns the request for a shell with a script."""
        return "".join(f"{word}\0" for word in (self.dir, arguments, self.shell, "-c", text, "PATH=/usr/bin:/bin")).encode()

    def test_exit_statuses_arrive(self):
        for start in self.warm, self.by_client:
            self.assertEqual(start("-c", "exit 7").wait(LIMIT), 7)
            self.assertEqual(start("-c", "exit 0").wait(LIMIT), 0)

    def test_death_by_a_signal_arrives(self):
        for start in self.warm, self.by_client:
            self.assertEqual(start("-c", "kill -TERM $$; exit 1").wait(LIMIT), -signal.SIGTERM)
        process = self.warm("-c", "exec sleep 600")
        process.terminate()
        self.assertEqual(process.wait(LIMIT), -signal.SIGTERM)

    def test_closing_the_connection_kills_the_process_group(self):
        processes = self.warm("-c", "sleep 600 & echo; wait"), self.by_client("-c", "sleep 600 & echo; wait")
        self.written(b"\n")
        self.written(b"\n")
        processes[0].close()
        processes[1].kill()
        self.assertEqual(self.written(), "")
        self.assertEqual(processes[0].wait(LIMIT), -signal.SIGKILL)

    def test_arguments_environment_folder_and_input_arrive(self):
        odd = os.fsdecode(b"\xff")  # no valid UTF-8
        text = pathlib.Path(self.path("input"))
        text.write_text("from the input\n", encoding="utf-8")
        expected = f"arg 1{odd}||arg 3\n{odd} of\nvariable\n{os.path.realpath(self.dir)}\nfrom the input\n"
        script = r'printf "%s|%s|%s\n%s\n" "$1" "$2" "$3" "$ODD"; pwd -P; exec cat'
        for start in self.warm, self.by_client:
            process = start("-c", script, "name", f"arg 1{odd}", "", "arg 3", stdin=text, env=environment(ODD=f"{odd} of\nvariable"))
            self.assertEqual(self.written(b"input\n"), expected)
            self.assertEqual(process.wait(LIMIT), 0)

    def test_a_server_runs_all_starts_of_a_program(self):
        for start in self.warm, self.by_client, self.warm, self.by_client:
            self.assertEqual(start("-c", "echo $PPID").wait(LIMIT), 0)
        parents = self.written().split()
        self.assertEqual(parents, [str(*self.servers)] * 4)
        self.assertNotIn(str(os.getpid()), parents)

    def test_a_changed_program_gets_another_server(self):
        os.unlink(self.shell)
        shutil.copy("/bin/sh", self.shell)
        before = self.warm("-c", "exit 0").connection.getpeername()
        shutil.copy("/bin/sh", self.path("changed"))
        with open(self.path("changed"), "ab") as file:
            file.write(b"\0")
        os.replace(self.path("changed"), self.shell)
        self.assertNotEqual(self.warm("-c", "exit 0").connection.getpeername(), before)
        self.assertEqual(len(self.servers), 2)

    def test_test_programs_start_warm(self):
        with unittest.mock.patch.dict(os.environ):
            os.environ.pop("STARLING_COLD", None)  # `make check-deep` sets it
            process = Started([STARLING, "--version"], self.dir, environment())
        self.addCleanup(process.end)
        self.assertIsInstance(process.process, WarmProcess)
        self.assertEqual(process.wait(LIMIT), 0)

    def test_programs_start_cold_on_demand(self):
        with unittest.mock.patch.dict(os.environ, STARLING_COLD="1"):
            process = Started([STARLING, "--version"], self.dir, environment())
            self.addCleanup(process.end)
            self.assertIsInstance(process.process, subprocess.Popen)
        self.by_client("-c", "echo $PPID", env=environment(STARLING_COLD=1)).wait(LIMIT)
        self.assertEqual(self.written(), f"{os.getpid()}\n")

    def test_a_long_request_starts_cold(self):
        env = environment(LONG="x" * 100_000)
        self.assertRaisesRegex(OSError, "bytes", self.warm, "-c", "exit 0", env=env)
        self.by_client("-c", "echo $PPID", env=env).wait(LIMIT)
        self.assertEqual(self.written(), f"{os.getpid()}\n")

    def test_a_program_does_not_run_after_its_client_has_given_up(self):
        self.warm("-c", "exit 0").wait(LIMIT)
        server, = self.servers
        connection = self.asked(self.script("echo ran"))
        self.assertEqual(len(connection.recv(4)), 4)
        connection.close()  # without the byte that lets the program begin
        queued = self.asked(b"")
        os.kill(server, signal.SIGSTOP)
        try:
            self.send(queued, self.script("echo ran"))
            queued.close()
        finally:
            os.kill(server, signal.SIGCONT)
        self.assertEqual(self.warm("-c", "exit 3").wait(LIMIT), 3)
        self.assertEqual(self.written(), "")

    def test_the_end_of_a_program_does_not_disturb_a_request(self):
        process = self.warm("-c", "exec sleep 600")
        server = parent_of(process.pid)
        connection = self.asked(b"")
        self.wait_until(lambda: in_recvmsg(server))
        process.kill()
        self.wait_until(lambda: status_of(process.pid, "State")[:1] in ("Z", ""))
        self.wait_until(lambda: int(status_of(server, "ShdPnd"), 16) >> signal.SIGCHLD - 1 & 1 == 0)  # it has taken SIGCHLD
        self.send(connection, self.script("exit 5"))
        self.assertEqual(len(connection.recv(4)), 4)
        connection.send(b"\0")
        self.assertEqual(struct.unpack("i", connection.recv(4))[0], 5 << 8)
        self.assertEqual(process.wait(LIMIT), -signal.SIGKILL)

    def test_refused_requests_leave_nothing_open(self):
        self.warm("-c", "exit 0").close()
        server, = self.servers
        script = self.script("exit 0")

        def is_refused(text, streams):
            with contextlib.suppress(ConnectionResetError), contextlib.closing(self.asked(text, streams)) as connection:
                return connection.recv(4) == b""
            return True

        def descriptors():
            return sorted(os.readlink(entry) for entry in pathlib.Path(f"/proc/{server}/fd").iterdir())

        self.assertTrue(is_refused(script[:-1], 3))
        before = descriptors()
        for text, streams in (script[:-1], 3), (script, 2), (script, 4), (script, 5), (b"\0" * 150_000 + b"x", 3):
            self.assertTrue(is_refused(text, streams), (len(text), streams))
        self.assertEqual(descriptors(), before)
        for arguments in 5, 1 << 30, -1:  # there are 4 words after the number
            connection = self.asked(self.script("exit 0", arguments))
            connection.recv(4)
            connection.send(b"\0")
            self.assertEqual(struct.unpack("i", connection.recv(4))[0], 127 << 8)
        self.assertEqual(parent_of(self.warm("-c", "exit 0").pid), server)

    def test_a_program_in_another_process_group_dies_with_its_connection(self):
        python = self.path("python")
        os.symlink(sys.executable, python)
        process = self.warm("-c", "import os, time; os.setpgid(0, os.getpgid(os.getppid())); print(flush=True); time.sleep(600)",
                            executable=python)
        self.written(b"\n")
        process.close()
        # The server answers the next request, too.
        self.assertEqual(self.warm("-c", "raise SystemExit(3)", executable=python).wait(LIMIT), 3)
        self.assertEqual(self.written(), "")

    def test_a_server_gets_the_signals_that_its_client_has_blocked(self):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        self.addCleanup(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        self.assertEqual(self.warm("-c", "exit 3").wait(LIMIT), 3)


if __name__ == "__main__":
    main()
