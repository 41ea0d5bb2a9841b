"""The benchmarks: every program runs on little data; declared tables, and competitors that keep to their budget."""

import csv
import gzip
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

import benchmarks
from benchmarks import public_data as loaders
from benchmarks.levels import ADULT_LEVELS, ADULT_NUMERIC
from benchmarks.published import rivals
from benchmarks.utility import competitors
from benchmarks.utility.tables import Split
from dpconvex.errors import DomainError

FOLDER = Path(benchmarks.__file__).parent
FILES = {
    ".".join(file.relative_to(FOLDER.parent).with_suffix("").parts): file.read_text() for file in FOLDER.rglob("*.py")
}
PROGRAMS = sorted(name for name, source in FILES.items() if "\ndef main(" in source)
# Programs that take more than five seconds even so.
LONG = ("__main__", "exact_distances", "mutations", "published.named_tables", "published.pathak_raj_errors", "scale")
SELDOM = {f"benchmarks.{name}" for name in LONG}


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
    assert status in (None, 0)
    assert benchmarks.Run.small


def test_every_file_that_runs_is_a_program():
    assert [name for name, source in FILES.items() if '__main__":' in source and name not in PROGRAMS] == []


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
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 4)), rng.integers(0, classes, size=20)
    weights = rng.normal(size=(4, 1 if classes == 2 else classes))
    whole = competitors.clipped_sum(x, y, weights, classes, 0.3)
    for k in range(20):
        keep = np.arange(20) != k
        rest = competitors.clipped_sum(x[keep], y[keep], weights, classes, 0.3)
        assert np.linalg.norm(whole - rest) <= 0.3 * (1 + 1e-12)


def test_rivals_that_need_no_bounds_or_settings_learn_and_keep_their_delta():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=(4000, 2)), np.ones(4000)])
    weights = rivals.tukey_weights(x, x @ [3.0, -1.0, 5.0] + rng.normal(size=4000), 2.0, 1e-5, rng)
    np.testing.assert_allclose(weights, [3.0, -1.0, 5.0], atol=0.5)
    assert rivals.tukey_weights(x[:60], x[:60, 0], 1.0, 1e-5, rng) is None
    # Without curvature, it is at most the law of two one-sided Gaussian shifts, and grows with curvature.
    deltas = [rivals.perturbation_delta(1.0, 4.0, ridge) for ridge in (1e9, 10.0, 1.0)]
    one = norm.cdf(0.125 - 4) - np.e * norm.cdf(-0.125 - 4)  # of a Gaussian shift of a quarter
    assert one < deltas[0] <= 2.01 * one < deltas[1] < deltas[2]
    y = (x[:, 0] + 0.3 * rng.normal(size=4000) > 0).astype(int)
    rows = x / np.linalg.norm(x, axis=1, keepdims=True)
    split = Split("", rows, y, rows, y, 2)
    for fit in (rivals.minima_perturbation, rivals.tight_perturbation):
        assert split.error(fit(split, 1.0, 1e-5, rng)(rows)) < 0.2
