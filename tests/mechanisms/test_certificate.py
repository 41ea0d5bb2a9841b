"""A certificate prints what was proved, survives a round trip, and hides nothing."""

import json
import re
from collections.abc import Iterator

import pytest

import dpconvex as dp
from dpconvex.core.derivation import Derivation


@pytest.fixture(scope="module")
def certificate() -> dp.Certificate:
    return dp.verify(dp.load("large_margin_gaussian", features=9), dp.Privacy(1.0), size=583)


def every(step: Derivation) -> Iterator[Derivation]:
    yield step
    for child in step.children:
        yield from every(child)


def test_it_prints_every_constant_and_where_it_is_from(certificate: dp.Certificate) -> None:
    text = str(certificate)
    assert "epsilon = 1, replace-one" in text
    for line in (
        r"gradient bound G +1\.41421 ",
        r"sensitivity G_adj +2\.82843 ",
        r"strong convexity mu .* size 583 x regularizer",
        r"largest Hessian eigenvalue +2 ",
        r"sensitive subspace +55 dimensions",
        r"noise scale 1/beta .* mean norm of b: ",
        r"distance tau .* from the exact one",
        r"noise that covers tau .* discrete Laplace on a grid of step 2\^-\d+",
    ):
        assert re.search(line, text), line
    assert "Chaudhuri, Monteleoni & Sarwate 2011" in text
    for step in every(certificate.derivation):
        assert step.rule in text
    for assumption in certificate.assumptions:
        assert assumption in text


@pytest.mark.parametrize("problem", ["logistic_regression", "huber_svm", "large_margin_gaussian"])
@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_it_survives_json(problem: str, adjacency: str) -> None:
    before = dp.verify(dp.load(problem, features=3), dp.Privacy(0.7, adjacency=adjacency), size=50)
    text = json.dumps(before.to_dict(), allow_nan=False)
    after = dp.Certificate.from_dict(json.loads(text))
    assert after == before
    assert str(after) == str(before)
    assert after._repr_html_() == before._repr_html_()


LEARNER = dp.load("logistic_regression", features=2)


def test_a_promise_without_delta_says_up_to_which_probability_it_holds(certificate: dp.Certificate) -> None:
    for mechanism in (dp.ObjectivePerturbation("gamma"), dp.OutputPerturbation("gamma")):
        for privacy in (dp.Privacy(1.0), dp.Privacy(1.0, adjacency="add-remove"), dp.Privacy(1.0, 1e-40)):
            found = dp.verify(LEARNER, privacy, 100, mechanism)
            said = f"up to a probability of 2^{-99 if privacy.adjacency == 'add-remove' else -100}"
            assert str(found).splitlines()[1] == found.proviso == f"It is so {said} (docs/release.md, section 5)."
            assert said in found._repr_html_()
            assert dp.Certificate.from_dict(json.loads(json.dumps(found.to_dict()))).proviso == found.proviso
    said = "up to a probability of 2^-100"  # the matrix-shaped law, and k-means below
    assert said in certificate.proviso
    mixture = dp.load("large_margin_gaussian_mixture", features=2, components=2)
    assert said in dp.verify_mixture(mixture, dp.Privacy(1.0), 1000).proviso


def test_the_runs_of_a_search_count_that_probability_each() -> None:
    data = {"x": [[1.0, 0.0], [0.0, 1.0]] * 50, "y": [1, -1] * 50}
    found = dp.tune_repeated([LEARNER], data, dp.Privacy(2.0), repetitions=dp.Repetitions(mean=3)).release.certificate
    assert found is not None
    assert "up to a probability of 2^-100, times 3 on average for the runs" in found.proviso
