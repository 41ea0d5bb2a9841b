"""The benchmarks' parts: ablations, mutants, declared tables, and competitors that keep to their budget."""

import csv
import gzip
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import benchmarks
import dpconvex as dp
from benchmarks import public_data as loaders
from benchmarks.ablation import measured, present, row, switched
from benchmarks.levels import ADULT_LEVELS, ADULT_NUMERIC
from benchmarks.mutants import mutant
from dpconvex.errors import DomainError


def test_bounds_are_switched_off_and_on_again():
    (name, switch), key = next(iter(present().items())), "default: noise"
    now = lambda: {"logistic": measured(lambda: dp.load("logistic_regression", features=2))}  # noqa: E731
    before = now()
    with switched(switch):
        after = now()
    assert after["logistic"][key] >= before["logistic"][key] == now()["logistic"][key]
    assert list(row(name, before, after))


def test_a_mutant_differs_in_one_place():
    file = Path(dp.__file__).parent / "sensitivity" / "curvature.py"
    source, what = mutant(file, np.random.default_rng(0)) or ("", "")
    assert source
    assert "->" in what
    compile(source, "mutant", "exec")


def write_adult(folder, change):
    row = dict.fromkeys(ADULT_NUMERIC, "3") | {name: levels[0] for name, levels in ADULT_LEVELS.items()}
    file = folder / "adult.csv.gz"
    with gzip.open(file, "wt", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, [*row, "label"])
        writer.writeheader()
        writer.writerow(row | {"label": ">50K"})
        writer.writerow(row | {"label": "<=50K"} | change)
    return file


def test_declared_levels_make_the_columns(tmp_path):
    table = loaders.adult(write_adult(tmp_path, {"sex": "Male"}), check=False)
    assert table.width == 105
    assert table.y.tolist() == [1, -1]
    design = table.design().toarray()
    assert ((design >= 0) & (design <= 1)).all()
    assert (design[:, 6:].sum(axis=1) == 8).all()
    np.testing.assert_allclose(np.linalg.norm(table.design(unit=True).toarray(), axis=1), 1.0)
    with pytest.raises(DomainError, match=r"'race'.*'Martian'"):
        loaders.adult(write_adult(tmp_path, {"race": "Martian"}), check=False)


@pytest.mark.parametrize("classes", [2, 3])
def test_clipped_sums_of_competitors_move_by_no_more_than_the_clip(classes):
    from benchmarks.utility import competitors

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 4)), rng.integers(0, classes, size=20)
    weights = rng.normal(size=(4, 1 if classes == 2 else classes))
    whole = competitors.clipped_sum(x, y, weights, classes, 0.3)
    for k in range(20):
        keep = np.arange(20) != k
        rest = competitors.clipped_sum(x[keep], y[keep], weights, classes, 0.3)
        assert np.linalg.norm(whole - rest) <= 0.3 * (1 + 1e-12)


FOLDER = Path(benchmarks.__file__).parent
FILES = {
    ".".join(file.relative_to(FOLDER.parent).with_suffix("").parts): file.read_text() for file in FOLDER.rglob("*.py")
}
PROGRAMS = sorted(name for name, source in FILES.items() if "\ndef main(" in source)


def test_every_file_that_runs_is_a_program():
    assert [name for name, source in FILES.items() if '__main__":' in source and name not in PROGRAMS] == []


# Programs that others contain, or that take ten seconds even so.
SELDOM = {
    f"benchmarks.{name}" for name in ("__main__", "cost_model", "additive", "papers.multiclass", "papers.pathak_raj")
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SELDOM)) for n in PROGRAMS])
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
    assert status in (None, 0) or "DPCONVEX_DATA" in capsys.readouterr().err
    assert benchmarks.Run.small
