"""The benchmarks: every program runs on little data; declared tables, and competitors that keep to their budget."""

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import benchmarks
import dpconvex as dp
from benchmarks import proof_attack
from benchmarks.utility import competitors
from dpconvex.errors import DomainError

FOLDER = Path(benchmarks.__file__).parent
FILES = {
    ".".join(file.relative_to(FOLDER.parent).with_suffix("").parts): file.read_text() for file in FOLDER.rglob("*.py")
}
PROGRAMS = sorted(name for name, source in FILES.items() if "\ndef main(" in source)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore::dpconvex.PrivacyWarning", "ignore:.*fork")
def test_every_program_runs_on_little_data(name, tmp_path, monkeypatch, capsys):
    module = import_module(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(benchmarks.Run, "small", False)
    output = ["--output", str(tmp_path)] if "--output" in FILES[name] else []
    try:
        status = module.main([*output, "--small"])
    except DomainError as error:  # its data are not shipped
        pytest.skip(str(error))
    assert status in (None, 0)
    assert benchmarks.Run.small


def test_every_file_that_runs_is_a_program():
    assert [name for name, source in FILES.items() if '__main__":' in source and name not in PROGRAMS] == []


def test_the_loss_of_a_probit_is_evaluated():
    certificate = dp.verify(dp.load("probit_regression", features=2, bound=1.0), dp.Privacy(1.0), 1000)
    assert not proof_attack.broken(json.loads(certificate.proof))


@pytest.mark.parametrize("classes", [2, 3])
def test_clipped_sums_of_competitors_move_by_no_more_than_the_clip(classes):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 4)), rng.integers(0, classes, size=20)
    weights = rng.normal(size=(4, 1 if classes == 2 else classes))
    whole = competitors.clipped_sum(x, y, weights, classes, 0.3)
    for k in range(20):
        keep = np.arange(20) != k
        rest = competitors.clipped_sum(x[keep], y[keep], weights, classes, 0.3)
        assert np.linalg.norm(whole - rest) <= 0.3 * (1 + 1e-12)
