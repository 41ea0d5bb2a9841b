"""Several releases share one promise: with the noise that accounting allows, on the certificates, and in the ledger."""

from pathlib import Path

import numpy as np
import pytest

import dpconvex as dp
from dpconvex.accounting.events import Gaussian, Perturbation, Pure, Tail
from dpconvex.accounting.totals import totals
from dpconvex.mechanisms.base import Mechanism

WHOLE = dp.Privacy(1.0, 1e-6, "add-remove")
GAUSS = dp.ObjectivePerturbation("gaussian", added=0.7)


def learner(regularization: float = 0.01) -> dp.Template:
    return dp.load("logistic_regression", features=3, regularization=regularization)


def data(size: int = 300) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(size, 3))
    x /= np.linalg.norm(x, axis=1)[:, None]
    return {"x": x, "y": np.where(x[:, 0] > 0, 1, -1)}


def test_ten_releases_need_a_third_of_the_noise_that_adding_up_asks_for() -> None:
    ten = dp.calibrate(learner(), WHOLE, 4000, 10, GAUSS)
    assert ten.certificates[0].strong_convexity == pytest.approx(40.7)
    assert ten.certificates[0].noise_scale <= 15
    assert 0.99 <= ten.total.epsilon <= 1.0
    plain = dp.verify(learner(), dp.Privacy(0.1, 1e-7, "add-remove"), 4000, GAUSS)
    assert plain.noise_scale > 41
    assert dp.verify(learner(), ten.each, 4000, GAUSS) == ten.certificates[0]  # what `solve` will find
    promised = [item.privacy for item in ten.certificates]
    again = totals(promised, [item.event for item in ten.certificates if item.event is not None], 1e-6)
    assert again[0] == ten.total
    assert "10 releases, each epsilon = 0.3" in str(ten)


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_fits_that_share_a_promise_are_what_the_size_chooses(adjacency: str) -> None:
    whole = dp.Privacy(3.0, 1e-5, adjacency)
    size, grid = 300 if adjacency == "add-remove" else None, [learner(), learner(0.1)]
    budget = dp.Budget(whole)
    plan = dp.calibrate(grid, whole, 300, 2)
    swept = list(dp.sweep(grid, data(), total=whole, draws=2, size=size, budget=budget))
    assert [release.certificate for release in swept] == list(plan.certificates)
    assert all(release.whitening is not None for release in swept)
    assert [entry.privacy for entry in budget.entries] == [whole]
    assert budget.entries[0].event == plan.event
    budget = dp.Budget(whole)
    found = dp.tune(grid, data(), whole, split=False, size=size, budget=budget)
    certificate = found.release.certificate
    assert isinstance(certificate, dp.Certificate)
    assert found.release.whitening is not None
    assert (found.spent, certificate.privacy, budget.remaining.epsilon) == (whole, whole, 0)
    assert certificate.event is not None
    assert pytest.approx(0.3) in [
        leaf.epsilon for leaf in certificate.event.leaves() if isinstance(leaf, Pure)
    ]  # the choice
    workers = [dp.tune(grid, data(), whole, split=False, size=size, seed=3, workers=w).release for w in (None, 1)]
    assert (workers[0]["w"] == workers[1]["w"]).all()


MECHANISMS: list[tuple[Mechanism, type]] = [
    (dp.ObjectivePerturbation("gaussian"), Perturbation),
    (dp.ObjectivePerturbation("gamma"), Pure),
    (dp.OutputPerturbation("gaussian"), Gaussian),
    (dp.OutputPerturbation("gamma"), Pure),
]


@pytest.mark.parametrize(("mechanism", "kind"), MECHANISMS, ids=lambda value: getattr(value, "name", ""))
@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_certificates_say_what_they_are_and_no_less_than_they_promise(
    mechanism: Mechanism, kind: type, adjacency: str
) -> None:
    """The event of a release implies its promise, up to the rounding of tables; and the promise alone is never better."""
    privacy = dp.Privacy(0.8, 1e-6, adjacency)
    certificate = dp.verify(learner(), privacy, 500, mechanism)
    assert certificate.event is not None
    leaves = list(certificate.event.leaves())
    assert isinstance(leaves[0], kind)
    assert isinstance(leaves[-1], Tail)
    assert sum(isinstance(leaf, Pure) and leaf.epsilon < 0.01 for leaf in leaves) >= (adjacency == "add-remove")
    found = {item.rule: item.epsilon for item in totals([privacy], [certificate.event], 1e-6)}
    assert found["basic"] == pytest.approx(0.8)
    assert min(found.values()) >= 0.78  # a release is as private as it says, and hardly more
    assert dp.Certificate.from_dict(certificate.to_dict()) == certificate
    fields = {name: value for name, value in certificate.to_dict().items() if name != "event"}
    assert dp.Certificate.from_dict(fields).event is None  # of before there were events


def test_a_sweep_under_one_promise_is_paid_in_whole_before_it_begins(tmp_path: Path) -> None:
    budget = dp.Budget(dp.Privacy(1.0, 1e-6), tmp_path / "ledger", "gaussian")
    whole = dp.Privacy(0.5, 5e-7)
    noise = dp.OutputPerturbation("gaussian")
    swept = dp.sweep([learner(), learner(0.1)], data(), total=whole, draws=3, budget=budget, mechanism=noise)
    assert budget.entries == ()
    first = next(swept)
    (entry,) = budget.entries
    assert entry.privacy == whole
    assert len(list(swept)) == 5
    assert len(budget.entries) == 1
    assert first.certificate is not None
    assert first.certificate.epsilon > 0.5 / 6
    assert budget.spent.epsilon < 0.5
    with pytest.raises(dp.TemplateError, match="the promise of each release, or the `total`"):
        dp.sweep(learner(), data(), whole, total=whole)
    with pytest.raises(dp.TemplateError, match="the promise of each release, or the `total`"):
        dp.sweep(learner(), data())
