"""Ledgers and many processes: forks, races, deaths, other users, little memory, cut networks; in full with -m slow."""

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


def in_a_fork(action):
    """Do something in a fork of this process, and return what error it ended with, if any."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            action()
        except BaseException as error:
            os.write(writing, str(error).encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


@pytest.mark.filterwarnings("ignore:.*fork")  # other packages warn of forks where there are threads
def test_a_fork_cannot_spend_a_budget_in_memory_once_more_nor_keep_a_lock(path, monkeypatch):
    budget, shared = Budget(Privacy(1)), Budget(Privacy(1), path)
    assert "path=" in in_a_fork(lambda: budget.spend(Privacy(1), "child"))
    assert in_a_fork(lambda: shared.spend(Privacy(1), "child")) == ""
    assert (budget.spent.epsilon, shared.spent.epsilon) == (0.0, 1.0)
    with shared._lock, budget._lock:  # as if a thread were in the middle of a spend
        assert "is left" in in_a_fork(lambda: shared.spend(Privacy(1), "another child"))
        assert "path=" in in_a_fork(lambda: budget.spend(Privacy(1), "another child"))

    (going, stop), children, path = os.pipe(), [], path.with_name("another")

    def forking(descriptor):  # in the middle of a spend
        children.append(os.fork())
        if not children[-1]:
            os.close(stop)
            os.read(going, 1)
            os._exit(0)

    budget = Budget(Privacy(1), path)
    monkeypatch.setattr(os, "fsync", forking)
    budget.spend(Privacy(1), "parent")
    assert Budget.open(path).spent.epsilon == 1.0  # the fork does not keep the lock
    os.close(stop)
    os.waitpid(*children, 0)


# Each child waits for the starting shot, so that all of them are at the ledger at once.
RACE = """
import os, sys
from dpconvex import Budget, BudgetExceeded, Privacy

path, count = sys.argv[1], int(sys.argv[2])
Budget(Privacy(1.0), path)
ready, shot = os.pipe()
children = []
for _ in range(count):
    child = os.fork()
    if not child:
        os.close(shot)
        os.read(ready, 1)
        budget, accepted = Budget.open(path), 0
        for _ in range(3):
            try:
                budget.spend(Privacy(0.01), str(os.getpid()))
                accepted += 1
            except BudgetExceeded:
                pass
        os._exit(accepted)
    children.append(child)
os.close(shot)
print(sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


# A child tells of each spend when it has returned, and is killed somewhere in the middle of the next ones.
DEATH = """
import os, random, signal, sys, time
from dpconvex import Budget, DPConvexError, Privacy

folder, moments = sys.argv[1], int(sys.argv[2])
random.seed(0)
torn = between = 0
for moment in range(moments):
    path = os.path.join(folder, f"{moment}.jsonl")
    Budget(Privacy(1.0), path)
    heard, told = os.pipe()
    child = os.fork()
    if not child:
        budget = Budget.open(path)
        for _ in range(10**6):
            budget.spend(Privacy(1e-6), "x" * 2000)
            os.write(told, b".")
    os.close(told)
    os.read(heard, 1)
    time.sleep(random.uniform(0, 0.01))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    confirmed = 1
    while part := os.read(heard, 4096):
        confirmed += len(part)
    os.close(heard)
    try:
        recorded = len(Budget.open(path).entries)
    except DPConvexError:
        torn += 1
        Budget.repair(path)
        recorded = len(Budget.open(path).entries)
    assert confirmed <= recorded <= confirmed + 1, (confirmed, recorded)
    between += recorded > confirmed
    Budget.open(path).spend(Privacy(0.1), "life goes on")
print(moments, torn, between)
"""


def program(code, *arguments):
    """Run a program that has no threads, so that it may fork; return the numbers that it prints."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


@pytest.mark.parametrize("count", [50, pytest.param(200, marks=pytest.mark.slow)])
def test_processes_never_overspend(count, tmp_path):
    path = tmp_path / "ledger.jsonl"
    assert program(RACE, path, count) == [100]
    budget = Budget.open(path)
    assert len(budget.entries) == 100
    assert budget.remaining.epsilon == 0


@pytest.mark.parametrize("moments", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_what_a_killed_process_has_been_told_is_recorded(moments, tmp_path):
    assert program(DEATH, tmp_path, moments)[0] == moments


LITTLE_MEMORY = """
import resource, sys
from dpconvex import Budget

size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 2**26,) * 2)
print(len(Budget.open(sys.argv[1]).entries))
"""


def test_a_short_ledger_is_read_in_little_memory(path):
    Budget(Privacy(1), path).spend(Privacy(0.5), "a")
    assert program(LITTLE_MEMORY, path) == [1]


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_ledger_that_may_only_be_read_is_read_and_never_charged():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ledger")
        Budget(Privacy(1), path).spend(Privacy(0.25), "a")
        path.chmod(0o444)
        Path(folder).chmod(0o755)

        def as_nobody(action):
            return in_a_fork(lambda: [os.setuid(65534), action()])

        def read():
            assert Budget.open(path).spent.epsilon == 0.25
            assert Budget(Privacy(1), path).entries[0].label == "a"
            assert "a (" in str(Budget.open(path))

        assert as_nobody(read) == ""
        assert "chmod u+rw" in as_nobody(lambda: Budget.open(path).spend(Privacy(0.25), "b"))
        assert "chmod u+rw" in as_nobody(lambda: Budget(Privacy(1), path.with_name("new")))
        path.chmod(0)
        assert "chmod u+rw" in as_nobody(lambda: Budget.open(path))
        assert len(Budget.open(path).entries) == 1


# A ledger in a database, and many faults: processes killed, network cut, server restarted
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
    errors, budget = [text for kind, text in said if kind == "error"], Budget.open(seen or address)
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
    proxy, address = Proxy(server.port, 0.01), server.new()
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
