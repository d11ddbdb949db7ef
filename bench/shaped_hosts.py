"""Runs of the program on hosts that are network namespaces behind `tc tbf`, for the scripts of this folder.

The hosts are those of tests/hosts_test.py, and need root.
"""
import json
import os
import pathlib
import secrets
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))
import hosts_test  # noqa: E402, pylint: disable=wrong-import-position

RECEIVE = ("import socket, sys; s = socket.create_server((sys.argv[1], 29611)); print('ready', flush=True); c = s.accept()[0]\n"
           "while c.recv(1 << 20): pass\nc.sendall(b'x')")
SEND = ("import socket, sys, time; s = socket.create_connection((sys.argv[1], 29611)); n = int(sys.argv[2]); begin = time.monotonic()\n"
        "s.sendall(bytes(n)); s.shutdown(socket.SHUT_WR); s.recv(1); print(n / (time.monotonic() - begin))")


def shape(hosts, mbit, burst_kb=64):
    """Limits every link in both directions to `mbit` Mbit/s. 0: no limit.

    burst_kb: what a link may send at once, in kB. bench/server_pool takes 2 ms at the rate.
    """
    for h, name in enumerate(hosts.names):
        for where, device in ((name, "eth0"), (hosts.bridge, f"port{h}")):
            subprocess.run(["tc", "-n", where, "qdisc", "del", "dev", device, "root"], check=False, stderr=subprocess.DEVNULL)
            if mbit:
                subprocess.run(["tc", "-n", where, "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{mbit}mbit", "burst",
                                f"{burst_kb:.0f}kb", "latency", "100ms"], check=True)


def set_congestion_control(hosts, algorithm):
    """Makes all TCP connections between the hosts use the algorithm, for example "cubic".

    If it is empty, they use that of their network namespaces. Returns the algorithm that they use.
    """
    if not algorithm:
        words = hosts.command(0, ["cat", "/proc/sys/net/ipv4/tcp_congestion_control"])
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    for name in hosts.names:
        found = subprocess.run(["ip", "-n", name, "route", "show", "dev", "eth0", "scope", "link"], capture_output=True, text=True, check=True)
        if not found.stdout.strip():
            raise SystemExit(f"{name} has no route on eth0 whose congestion control could be set")
        for route in found.stdout.splitlines():
            subprocess.run(["ip", "-n", name, "route", "replace", *route.split(), "dev", "eth0", "scope", "link", "congctl", algorithm], check=True)
    return algorithm


def goodput(hosts, mbit):
    """Returns the bytes per second of one stream from host 0 to host 1."""
    size = int(mbit * 1e6 / 8 * 3)
    with subprocess.Popen(hosts.command(1, [sys.executable, "-c", RECEIVE, hosts_test.ADDRESS[1]]), stdout=subprocess.PIPE, text=True) as receiver:
        receiver.stdout.readline()
        done = subprocess.run(hosts.command(0, [sys.executable, "-c", SEND, hosts_test.ADDRESS[1], str(size)]), capture_output=True,
                              text=True, check=True, timeout=120)
    return float(done.stdout)


def make_key(folder):
    """Writes a job key into the folder and returns its path."""
    key = pathlib.Path(folder) / "job.key"
    key.touch(0o600)
    key.write_text(secrets.token_hex(32) + "\n", encoding="utf-8")
    return key


def run_ranks(hosts, places, words, folder, port, timeout=3600):
    """Runs `words` as each rank, on the host places[rank]. Returns the JSON events of rank 0."""
    processes = []
    for rank, host in enumerate(places):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(len(places)), LOCAL_RANK=str(places[:rank].count(host)),
                   LOCAL_WORLD_SIZE=str(places.count(host)), MASTER_ADDR=hosts_test.ADDRESS[places[0]], MASTER_PORT=str(port),
                   OMP_NUM_THREADS="1")
        processes.append(subprocess.Popen(hosts.command(host, words), cwd=folder, env=env, stdout=subprocess.PIPE,
                                          stderr=subprocess.PIPE, text=True))
    try:
        ends = [p.communicate(timeout=timeout) for p in processes]
    finally:
        for p in processes:
            p.kill()
    if any(p.returncode != 0 for p in processes):
        raise SystemExit(f"{pathlib.Path(sys.argv[0]).name}: {' '.join(words)} failed:\n" + "\n".join(e[1][-500:] for e in ends))
    return [json.loads(line) for line in ends[0][0].splitlines() if line.startswith("{")]
