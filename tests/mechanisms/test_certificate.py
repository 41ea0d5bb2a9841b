"""A certificate prints what was proved, survives a round trip, and hides nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser

import cvxpy as cp
import pytest

import dpconvex as dp
from dpconvex.core.derivation import Derivation
from dpconvex.core.markup import brief


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


def test_it_prints_how_epsilon_is_spent(certificate: dp.Certificate) -> None:
    shares = [float(s) for s in re.findall(r"\( *(\d+) %\)", str(certificate))]
    assert len(shares) == 3
    assert sum(shares) == pytest.approx(100, abs=1)
    assert certificate.cover is not None
    spent = certificate.noise_epsilon + certificate.jacobian_epsilon + certificate.cover.epsilon
    assert spent == pytest.approx(1.0)


def test_the_derivation_reaches_the_leaves_of_the_loss(certificate: dp.Certificate) -> None:
    rules = [step.rule for step in every(certificate.derivation)]
    assert "affine leaf" in rules
    claims = {name for step in every(certificate.derivation) for name in step.claims}
    assert {"G", "G_adj", "J", "gradient bound"} <= claims


class Checker(HTMLParser):
    """Raises unless every element is closed where it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_it_shows_in_a_notebook(certificate: dp.Certificate) -> None:
    checker = Checker()
    checker.feed(certificate._repr_html_())
    assert checker.open == []
    for name, value, why in certificate.rows():
        assert name in checker.text
        assert brief(value) in checker.text
        assert brief(why) in checker.text
        assert value in checker.text or f'title="{value}"' in certificate._repr_html_()  # all digits are at hand
    for assumption in certificate.assumptions:
        assert assumption in checker.text


@pytest.mark.parametrize("problem", ["logistic_regression", "huber_svm", "large_margin_gaussian"])
@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_it_survives_json(problem: str, adjacency: str) -> None:
    before = dp.verify(dp.load(problem, features=3), dp.Privacy(0.7, adjacency=adjacency), size=50)
    text = json.dumps(before.to_dict(), allow_nan=False)
    after = dp.Certificate.from_dict(json.loads(text))
    assert after == before
    assert str(after) == str(before)
    assert after._repr_html_() == before._repr_html_()


def test_it_cannot_be_changed(certificate: dp.Certificate) -> None:
    with pytest.raises(AttributeError):
        certificate.noise_scale = 0.0  # type: ignore[misc]


def test_it_is_the_same_every_time() -> None:
    certificates = [
        dp.verify(dp.load("large_margin_gaussian", features=4, classes=3), dp.Privacy(1.0), size=99) for _ in range(2)
    ]
    one, other = (re.sub(r"var\d+|param\d+", "", str(c)) for c in certificates)
    assert one == other


LEARNER = dp.load("logistic_regression", features=2)


def test_a_promise_without_delta_says_up_to_which_probability_it_holds(certificate: dp.Certificate) -> None:
    said = "up to a probability of 2^-100"
    for mechanism in (dp.ObjectivePerturbation("gamma"), dp.OutputPerturbation("gamma")):
        for privacy in (dp.Privacy(1.0), dp.Privacy(1.0, adjacency="add-remove"), dp.Privacy(1.0, 1e-40)):
            found = dp.verify(LEARNER, privacy, 100, mechanism)
            assert str(found).splitlines()[1] == found.proviso == f"It is so {said} (docs/release.md, section 5)."
            assert said in found._repr_html_()
            assert dp.Certificate.from_dict(json.loads(json.dumps(found.to_dict()))).proviso == found.proviso
    # The matrix-shaped law, and k-means below.
    assert said in certificate.proviso
    mixture = dp.load("large_margin_gaussian_mixture", features=2, components=2)
    assert said in dp.verify_mixture(mixture, dp.Privacy(1.0), 1000).proviso


def test_a_promise_with_delta_pays_for_that_probability() -> None:
    for mechanism in (dp.ObjectivePerturbation("gaussian"), dp.OutputPerturbation("gaussian")):
        assert dp.verify(LEARNER, dp.Privacy(1.0, 1e-6), 100, mechanism).proviso == ""


def test_noisy_gradient_descent_says_first_what_it_assumes() -> None:
    w = cp.Variable(2, name="w")
    record = dp.Record(x=dp.Ball(2), y=dp.Choice([-1, 1]))
    template = dp.Template(
        record, lambda x, y: cp.logistic(-y * (x @ w)), 0.01 * cp.sum_squares(w), [cp.norm(w, 2) <= 1]
    )
    found = dp.verify(template, dp.Privacy(1.0, 1e-6), 100, dp.NoisyGradientDescent(steps=10))
    assert "provided that the noise of every step is ideal" in str(found).splitlines()[1]
    assert "2^-100" not in found.proviso
    assert "2^-100" in dp.verify(template, dp.Privacy(1.0, 1e-35), 100, dp.NoisyGradientDescent(steps=10)).proviso


def test_the_runs_of_a_search_count_that_probability_each() -> None:
    data = {"x": [[1.0, 0.0], [0.0, 1.0]] * 50, "y": [1, -1] * 50}
    found = dp.tune_repeated([LEARNER], data, dp.Privacy(2.0), repetitions=dp.Repetitions(mean=3)).release.certificate
    assert found is not None
    assert "up to a probability of 2^-100, times 3 on average for the runs" in found.proviso
