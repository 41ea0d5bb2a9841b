"""A ledger in a database, and many faults: processes killed, network cut, server restarted; in full with -m slow."""

import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from dpconvex import Budget, Privacy

ROOT = Path(__file__).resolve().parents[2]

# Spends, and tells of each one when it has returned, on a line of its own that is written at once.
WORKER = """
import os, sys, time
from dpconvex import Budget, DPConvexError, Privacy

address, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
budget, number = None, 0
while number < count:
    try:
        asked = ""
        budget = budget or Budget.open(address)
        asked = f"{name}.{number}"
        os.write(1, f"asked {name}.{number}\\n".encode())
        budget.spend(Privacy(1e-4), f"{name}.{number}")
        os.write(1, f"told {name}.{number}\\n".encode())
    except DPConvexError as error:
        os.write(1, f"error {asked or 'opening'} {error}\\n".encode())
        time.sleep(0.05)
    number += budget is not None
"""


class Proxy:
    """A network between here and the server that is cut at random, also when a commit is on its way or its answer is."""

    def __init__(self, port, rate, seed=0):
        self.port, self.rate, self.random = port, rate, random.Random(seed)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.own, self.open = self.listener.getsockname()[1], True
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while self.open:
            with contextlib.suppress(OSError):
                near, far = self.listener.accept()[0], socket.create_connection(("127.0.0.1", self.port))
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self.pass_on, args=ends, daemon=True).start()

    def pass_on(self, source, target):
        with contextlib.suppress(OSError):
            while part := source.recv(65536):
                commit = b"COMMIT" in part
                if self.random.random() < self.rate * (10 if commit else 1):
                    if commit and self.random.random() < 0.5:
                        target.sendall(part)  # the server gets it, and its answer is lost
                    break
                target.sendall(part)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self):
        self.open = False
        self.listener.close()


def soaked(address, workers, count, disturb, seconds=1800, seen=None):
    """Let processes spend until all are done; what they were told of is in the ledger, once, and what nobody asked for is not."""
    Budget(Privacy(1.0), seen or address)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    folder, running, names = tempfile.mkdtemp(), {}, iter(range(10**6))

    def start(left):
        name = f"w{next(names)}"
        command = [sys.executable, "-c", WORKER, address, name, str(left)]
        with open(f"{folder}/{name}", "wb") as out:
            running[name] = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.DEVNULL), left

    for _ in range(workers):
        start(count)
    until = time.monotonic() + seconds
    try:
        while running:
            assert time.monotonic() < until, "the processes did not end"
            time.sleep(0.05)
            victim = disturb([name for name in running if os.stat(f"{folder}/{name}").st_size])
            if victim is not None:
                running[victim][0].kill()
            for name, (process, left) in list(running.items()):
                if process.poll() is not None:
                    done = Path(folder, name).read_bytes().count(b"asked")
                    assert victim == name or process.returncode in (0, -9), process.returncode
                    del running[name]
                    if left - done > 0:
                        start(left - done)
    finally:
        for process, _ in running.values():
            process.kill()
            process.wait()
    said = [line.split(maxsplit=1) for file in Path(folder).iterdir() for line in file.read_text().splitlines()]
    shutil.rmtree(folder)
    told = [label for kind, label in said if kind == "told"]
    asked = [label for kind, label in said if kind == "asked"]
    errors = [text for kind, text in said if kind == "error"]
    budget = Budget.open(seen or address)
    recorded = Counter(entry.label for entry in budget.entries)
    assert set(told) <= set(recorded) <= set(asked)
    assert set(recorded.values()) == {1}
    assert not {text.split()[0] for text in errors if "nothing was recorded" in text} & set(recorded)
    assert len(asked) >= workers * count
    assert round(budget.spent.epsilon / 1e-4) == sum(recorded.values())


SIZES = [(2, 4), pytest.param((8, 200), marks=pytest.mark.slow)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", SIZES)
def test_no_spend_is_lost_where_processes_are_killed(address, size):
    chance = random.Random(1)
    rate = 0.2 if size[0] < 8 else 0.02
    soaked(address, *size, lambda names: chance.choice(names) if names and chance.random() < rate else None)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_no_spend_is_lost_where_the_network_is_cut(server, size):
    proxy = Proxy(server.port, 0.01)
    address = server.new()
    through = address.replace(str(server.port), str(proxy.own))
    try:
        soaked(through, *size, lambda names: None, seen=address)
    finally:
        proxy.close()


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_no_spend_is_lost_where_the_server_is_restarted(server, size):
    begun, chance = time.monotonic(), random.Random(2)

    def restart(names):
        nonlocal begun
        if time.monotonic() - begun > (2 if size[0] < 8 else 5):
            server.stop(chance.choice(["immediate", "fast"]))
            time.sleep(0.2)
            server.start()
            begun = time.monotonic()

    soaked(server.new(), *size, restart)
