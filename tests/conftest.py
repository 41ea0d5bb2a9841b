"""What every test shares: the Hypothesis profile, and where optional data are looked for."""

import hashlib
import os
import secrets
from collections import Counter
from itertools import count
from pathlib import Path

import postgresql_server
import pytest
from hypothesis import HealthCheck, settings

# Files of one name in several folders hold fixtures, and no examples.
collect_ignore_glob = ["conftest.py", "*/conftest.py"]
ROOT = Path(__file__).resolve().parent.parent

# Larger public data sets are not shipped; a folder beside the checkout may hold them, or the variable names another.
DATA = Path(os.environ.get("DPCONVEX_DATA") or ROOT.parent / "shared" / "data")

settings.register_profile(
    "dpconvex",
    max_examples=20,
    deadline=None,  # the first example pays for imports and compilation
    derandomize=bool(os.environ.get("CI")),  # a failure there must be repeatable here
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("dpconvex")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Of the cases of a test that is `sampled(k)`, leave one in k, unless `-k` names some; the others are slow."""
    seen = Counter()
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark and not config.option.keyword and not item.get_closest_marker("slow"):
            test = item.path, item.originalname
            if seen[test] % mark.args[0]:
                item.add_marker(pytest.mark.slow)
            seen[test] += 1


@pytest.fixture(autouse=True)
def repeatable_noise(request, monkeypatch):
    """On CI a test's noise depends on the test's name alone, so that a failure there can be repeated here."""
    if not os.environ.get("CI"):
        return
    calls = count()

    def randbits(bits):
        draw = hashlib.shake_256(f"{request.node.nodeid} {next(calls)}".encode()).digest((bits + 7) // 8)
        return int.from_bytes(draw, "big") >> (-bits % 8)

    monkeypatch.setattr(secrets, "randbits", randbits)


@pytest.fixture(scope="session")
def shared_data():
    """Return a function that finds an optional data file by name, or skips the test."""

    def find(name):
        if not (DATA / name).is_file():
            pytest.skip(f"{name} is not in {DATA}; set DPCONVEX_DATA to the folder that holds it")
        return DATA / name

    return find


@pytest.fixture(scope="session")
def server():
    """A PostgreSQL server; tests that ask for it are skipped where there is none."""
    with postgresql_server.running() as made:
        yield made
