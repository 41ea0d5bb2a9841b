"""Statistics of whitened records: what is fitted from them, what they promise, and where they are the default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp

import dpconvex as dp
from dpconvex.mechanisms.private_whitening import PrivateWhitening

PROMISE = dp.Privacy(1.0, 1e-5, "add-remove")
WEAK = dp.Privacy(50.0, 0.4)  # hardly any noise
FIRST: dict[str, Any] = {"mechanism": dp.SufficientStatistics(), "whitening": True}
SPREAD = np.array([1.0, 0.1, 0.1, 0.02])
TRUTH = np.array([0.3, 1.0, -1.0, 4.0])


def table(size: int = 4000, spread: float = 0.05, seed: int = 0) -> dict[str, Any]:
    """Return records that vary much in one direction and little in others."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (size, 4)) * SPREAD
    x /= np.maximum(np.linalg.norm(x, axis=1), 1)[:, None]
    return {"x": x, "y": np.clip(x @ TRUTH + 0.1 + spread * rng.uniform(-1, 1, size), -1, 1)}


def linear() -> dp.Template:
    return dp.load("linear_regression", features=4, regularization=0.0)


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_without_noise_a_model_that_holds_is_found(adjacency: Any) -> None:
    privacy, data = dp.Privacy(50.0, 0.4, adjacency), table(100_000, spread=0.0)
    release = dp.solve(linear(), data, privacy, size=100_000, **FIRST)
    assert release["w"] == pytest.approx(TRUTH, abs=0.2)
    assert float(release["b"]) == pytest.approx(0.1, abs=1e-2)
    assert release.predict(data["x"]) == pytest.approx(data["y"], abs=0.01)
    assert release.spent == privacy


def test_noise_is_small_in_directions_in_which_records_hardly_vary() -> None:
    """Averages of eight fits differ by far more than chance."""
    data, errors = table(), {}
    for name, options in {"whitened": FIRST, "plain": {"mechanism": dp.SufficientStatistics()}}.items():
        fits = [dp.solve(linear(), data, PROMISE, size=4000, seed=k, **options)["w"] for k in range(8)]
        errors[name] = float(np.mean([np.linalg.norm((w - TRUTH) * SPREAD) for w in fits]))
    assert errors["whitened"] < 0.5 * errors["plain"]


def test_regularizer_and_constraints_speak_of_the_original_parameters() -> None:
    data = table(100_000, spread=0.0)
    w, b = cp.Variable(4, name="w"), cp.Variable(name="b")
    picky = dp.Template(
        linear().record,
        lambda x, y: cp.square(x @ w + b - y) / 2,
        0.0,
        [w <= 0.5, cp.norm(w) <= 2],
        predict=lambda p, x: x,
    )
    found = dp.statistics(picky, data, WEAK, whitening=True)
    weights = np.minimum(1.0, found.whitening.weights(data["x"]))  # type: ignore[union-attr]
    goal = cp.sum_squares(cp.multiply(weights, data["x"] @ w + b - data["y"]))
    cp.Problem(cp.Minimize(goal), [w <= 0.5, cp.norm(w) <= 2]).solve(solver="CLARABEL")
    assert found.fit()["w"] == pytest.approx(w.value, abs=0.02)


def test_matrices_of_parameters_turn_along_the_axis_of_the_features() -> None:
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (40_000, 3)) * [1.0, 0.1, 0.05] / 1.1
    for shape, scores in (((3, 2), lambda x, W: x @ W), ((2, 3), lambda x, W: W @ x)):
        W = cp.Variable(shape, name="W")
        record = dp.Record(x=dp.Ball(3), t=dp.Box([-1.0, -1.0], [1.0, 1.0]))
        template = dp.Template(record, lambda x, t, W=W, scores=scores: cp.sum_squares(scores(x, W) - t) / 2)
        truth = np.array([[0.3, -0.2], [2.0, 1.0], [-3.0, 4.0]])
        found = dp.solve(template, {"x": x, "t": x @ truth}, WEAK, **FIRST)["W"]
        assert found == pytest.approx(truth if shape == (3, 2) else truth.T, abs=0.05)


def test_losses_that_do_not_turn_are_refused_and_not_whitened_by_default() -> None:
    w = cp.Variable(2, name="w")
    record = dp.Record(x=dp.Ball(2), y=dp.Box(-1.0, 1.0))
    one = dp.Template(record, lambda x, y: cp.square(x[0] * w[0] - y) + cp.square(w[1] - x[1]))
    with pytest.raises(dp.TemplateError, match="a turn of the parameters follows"):
        dp.verify(one, PROMISE, 5000, **FIRST)
    assert dp.verify(one, PROMISE, 5000).whitening is None
    high = dp.Template(dp.Record(x=dp.Ball(2)), lambda x: cp.square(w[0] - cp.square(x[0]) * 2))
    with pytest.raises(dp.TemplateError, match=r"higher degree|turn of the parameters"):
        dp.verify(high, PROMISE, 5000, **FIRST)
    with pytest.raises(dp.NotPrivate, match="delta"):
        dp.verify(linear(), dp.Privacy(1.0), 5000, **FIRST)


def test_the_default_whitens_where_second_moments_stand_out_of_their_noise() -> None:
    chosen = dp.verify(linear(), PROMISE, 4000)
    assert chosen.whitening is not None
    assert chosen.perturbed == "statistics"
    assert any("whitened records" in said for said in chosen.advice)
    assert dp.verify(linear(), PROMISE, 10).whitening is None
    assert dp.verify(linear(), dp.Privacy(1.0), 4000).whitening is None
    assert dp.verify(linear(), PROMISE, 4000, dp.SufficientStatistics()).whitening is None
    assert dp.verify(linear(), PROMISE, 4000, dp.SufficientStatistics(), whitening="auto").whitening is not None


def test_whitening_a_quadratic_loss_means_its_statistics() -> None:
    found = dp.verify(linear(), PROMISE, 4000, whitening=True)
    assert found.perturbed == "statistics"
    assert found.whitening is not None


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_an_audit_of_the_whole_promise(adjacency: Any) -> None:
    privacy = dp.Privacy(1.0, 1e-5, adjacency)
    report = dp.audit(linear(), privacy, size=500, **FIRST)
    assert report.holds
    both = next(attack for attack in report.attacks if "whitening" in attack.part)
    assert both.found_delta >= 0.9 * both.delta  # levels are used up


def test_both_stages_are_one_gaussian_mechanism() -> None:
    certificate = dp.verify(linear(), PROMISE, 4000, **FIRST)
    noise = certificate.whitening
    assert noise is not None
    assert noise.share == pytest.approx(PrivateWhitening().share, rel=1e-3)
    second = certificate.sensitivity / certificate.noise_scale
    assert np.hypot(noise.level, second) <= noise.composed * (1 + 1e-9)
    saved = dp.Certificate.from_dict(certificate.to_dict())
    assert str(saved) == str(certificate)


def test_the_same_sums_from_memory_partitions_chunks_and_sparse_matrices() -> None:
    data, options = table(900), {"size": 900, "seed": 3, **FIRST}
    exact = dp.statistics(linear(), data, PROMISE, **options).values
    cut = [{name: column[k::1][:300] for name, column in data.items()} for k in (0, 300, 600)]
    pieces = {"x": dp.Chunks([part["x"] for part in cut]), "y": data["y"]}
    kinds: list[Any] = [dp.Partitions(cut), pieces, {**data, "x": sp.csr_array(data["x"])}]
    for kind in kinds:
        assert dp.statistics(linear(), kind, PROMISE, **options).values == pytest.approx(exact, abs=1e-9)


def test_no_records_are_like_others() -> None:
    none = {"x": np.zeros((0, 4)), "y": []}
    assert dp.solve(linear(), none, PROMISE, size=100, **FIRST).private


def test_saved_statistics_keep_the_map(tmp_path: Path) -> None:
    found = dp.statistics(linear(), table(), PROMISE, whitening=True, size=4000)
    found.save(tmp_path / "sums.npz")
    again = dp.Statistics.load(tmp_path / "sums.npz", linear())
    assert again.fit()["w"] == pytest.approx(found.fit()["w"], abs=1e-12)
    assert again.whitening is not None
    assert str(again.certificate) == str(found.certificate)
    assert [kind.weights for kind in again.moments.kinds] == [kind.weights for kind in found.moments.kinds] != [0]


def test_a_delta_that_the_tail_of_the_noise_exceeds_is_refused() -> None:
    for epsilon, delta in ((40.0, 1e-13), (1.0, 1e-40)):
        with pytest.raises(dp.NotPrivate, match="so small a delta"):
            dp.verify(linear(), dp.Privacy(epsilon, delta), 500, **FIRST)


def test_sparse_matrices_of_every_format_are_whitened_alike() -> None:
    found = dp.statistics(linear(), table(), PROMISE, whitening=True, size=4000).whitening
    assert found is not None
    x = np.round(table(30)["x"], 1)
    for kind in (sp.csr_array, sp.csc_array, sp.coo_array):
        assert (found(kind(x)) == found(x)).all()
        assert (found.weights(kind(x)) == found.weights(x)).all()


def test_a_record_outside_its_domain_is_an_error() -> None:
    data = table(50)
    data["x"][7] *= 9 / np.linalg.norm(data["x"][7])
    with pytest.raises(dp.DomainError, match="row 7"):
        dp.solve(linear(), data, PROMISE, size=50, **FIRST)
