"""A ledger with many processes, sudden deaths, cross-validation and workers: small here, in full with ``-m slow``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dpconvex as dp

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


def program(code: str, *arguments: object) -> list[int]:
    """Run a program that has no threads, so that it may fork; return the numbers that it prints."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


@pytest.mark.parametrize("count", [50, pytest.param(200, marks=pytest.mark.slow)])
def test_processes_never_overspend(count: int, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    assert program(RACE, path, count) == [100]
    budget = dp.Budget.open(path)
    assert len(budget.entries) == 100
    assert budget.remaining.epsilon == 0


@pytest.mark.parametrize("moments", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_what_a_killed_process_has_been_told_is_recorded(moments: int, tmp_path: Path) -> None:
    assert program(DEATH, tmp_path, moments)[0] == moments
