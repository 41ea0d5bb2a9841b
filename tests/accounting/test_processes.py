"""A ledger in a file, and many processes: forks, races, deaths, other users and little memory; in full with -m slow."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dpconvex import Budget, Privacy


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


ROOT = Path(__file__).resolve().parents[2]


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
