"""Certificates print what was proved and survive a round trip."""

import json
import math
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from refused import refused
from scipy.stats import norm

import dpconvex as dp
from dpconvex.checker import Rejected, check

ADJACENCIES = ("replace-one", "add-remove")
LEARNER = dp.load("logistic_regression", features=2)
LESS = "its event costs less than its numbers say"


@pytest.fixture(scope="module")
def certificate():
    return dp.verify(dp.load("large_margin_gaussian", features=9), dp.Privacy(1.0), size=583)


def copies():
    logistic, ridge = dp.load("logistic_regression", features=2), dp.load("ridge_regression", features=2)
    mixture = dp.load("large_margin_gaussian_mixture", features=1, components=2)
    people, softmax = {"unit": "patient", "most": 3}, dp.load("softmax_regression", features=2, classes=3)
    objective, gaussian = dp.ObjectivePerturbation(), dp.ObjectivePerturbation("gaussian")
    steps = dp.NoisyGradientDescent(clip=1.0)
    for adjacency in ADJACENCIES:
        pure, lax = dp.Privacy(1.0, 0.0, adjacency), dp.Privacy(1.0, 1e-6, adjacency)
        for mechanism in (objective, dp.OutputPerturbation()):
            yield dp.verify(logistic, pure, 900, mechanism)
            yield dp.verify(logistic, lax, 900, mechanism)
        for mechanism in (gaussian, dp.OutputPerturbation("gaussian"), steps):
            yield dp.verify(logistic, lax, 900, mechanism)
            yield dp.verify(logistic, dp.Privacy(1.0, 1e-6, adjacency, **people), 900, mechanism)
        yield dp.verify(ridge, lax, 900)
        yield dp.verify(softmax, lax, 900, gaussian)
        yield dp.verify(softmax, pure, 900, dp.ObjectivePerturbation("matrix"))
        yield dp.verify_mixture(mixture, pure, 900)
        yield dp.verify_mixture(mixture, lax, 900)
    yield dp.verify(logistic, lax, 900, dp.NoisyGradientDescent(clip=1.0, sampling=0.1))


def test_a_certificate_that_is_read_believes_no_event_that_its_numbers_do_not_bear_out():
    for certificate in copies():
        data = json.loads(json.dumps(certificate.to_dict()))
        read = dp.Certificate.from_dict(data)
        assert certificate.event is not None
        assert (read, str(read), read._repr_html_()) == (certificate, str(certificate), certificate._repr_html_())
        leaves = [leaf.to_dict() for leaf in certificate.event.leaves()]
        for k, leaf in enumerate(leaves):
            if leaf.get("probability", 1) < 1e-50:  # of the grid
                continue
            others = [other for place, other in enumerate(leaves) if place != k]
            forged = [others]
            if leaf["kind"] == "pure":
                forged.append([*others, *[{**leaf, "epsilon": 1.001 * leaf["epsilon"] / 1000}] * 1000])
            if leaf["kind"] == "objective perturbation":
                bare = [{**hull, "lengths": [], "counts": []} for hull in leaf["kinds"]]
                hulls = [{**hull, "length": 0.5 * hull["length"]} for hull in bare]
                forged += [[*others, {**leaf, "kinds": hulls}], [*others, {**leaf, "sigma": 2 * leaf["sigma"]}]]
                forged.append([*others, {**leaf, "kinds": bare}])
            else:
                forged += [[*others, {n: v if n == "kind" else 0.99 * v for n, v in leaf.items()}]]
            for parts in filter(None, forged):
                event = {"kind": "composition", "parts": parts}
                refused(dp.errors.TemplateError, LESS, read.from_dict, data | {"event": event})
                if not (certificate.curved and certificate.is_gaussian):  # tests/checker/test_events.py has these
                    refused(Rejected, "event costs less", check, certificate.proof, event)


def test_numbers_that_no_proof_bounds_from_below_bear_out_no_event():
    data = dp.verify(LEARNER, dp.Privacy(1.0), 900).to_dict()
    data |= {"noise_epsilon": 2.0**-30, "jacobian_epsilon": 2.0**-30}
    data["event"]["parts"][0]["epsilon"] = 2.0**-29
    refused(dp.errors.TemplateError, LESS, dp.Certificate.from_dict, data)
    steps = dp.NoisyGradientDescent(clip=1.0)
    for mechanism in (dp.AdaptiveSteps(), steps, dp.OutputPerturbation("gaussian")):  # less than the guarantee costs
        data = dp.verify(LEARNER, dp.Privacy(1.0, 1e-6), 900, mechanism).to_dict()
        data["settings"] |= {"level": 1e-3 * data["settings"]["level"]} if "level" in data["settings"] else {}
        data["noise_scale"] *= 1e3
        data["event"]["parts"][0]["mu"] /= 1e3
        refused(dp.errors.TemplateError, LESS, dp.Certificate.from_dict, data)
        data["settings"].pop("level", None)
        refused(dp.errors.TemplateError, LESS, dp.Certificate.from_dict, data)


def more(hull):
    return [1e3 * count for count in hull["counts"]]


FORGED = {
    "curvature": lambda hull: {"curvature": 0.0, "length": hull["length"] + 0.08},
    "vertices": lambda hull: {"slopes": None, "behind": None, "lengths": [0.5 * hull["length"]], "counts": [1e7]},
    "dimension": lambda hull: {"slopes": None, "behind": None, "lengths": None, "counts": None, "dimension": 0},
    "slopes": lambda hull: {"slopes": [0.0, 0.0, 0.0, 0.0], "counts": more(hull)},
    "logistic": lambda hull: {"slopes": [*hull["slopes"][:3], 1e-9], "counts": more(hull)},
    "flat": lambda hull: {"slopes": [*hull["slopes"][:2], hull["slopes"][0], 0.0], "counts": more(hull)},
    "two": lambda hull: {"length": 0.01, "lengths": None, "counts": None, "slopes": None, "curvature": 2.0},
}


@pytest.mark.parametrize("name", FORGED)
def test_differences_that_cost_their_delta_elsewhere_bear_out_no_event(name):
    """Each has the delta that the certificate promises at its epsilon, and less at others."""
    certificate = dp.verify(LEARNER, dp.Privacy(1.0, 1e-6, "add-remove"), 900, dp.ObjectivePerturbation("gaussian"))
    data = certificate.to_dict()
    (leaf,) = [part for part in data["event"]["parts"] if part["kind"] == "objective perturbation"]
    (hull,) = leaf["kinds"]
    leaf["kinds"] = [hull | FORGED[name](hull)]
    if name == "curvature":
        data |= {"jacobian_epsilon": 0.0, "noise_epsilon": 0.0}
    if name == "two":
        leaf["kinds"].append(hull | {"curvature": 0.0, "slopes": None, "behind": None})
    assert dp.Certificate.from_dict(certificate.to_dict()).event is not None
    refused(dp.errors.TemplateError, LESS, dp.Certificate.from_dict, data)


def test_nobody_copies_a_certificate_without_saying_its_event(monkeypatch):
    """`Certificate.copied` asks for it; `dataclasses.replace` keeps that of something else."""

    def watched(item, **changes):
        assert not isinstance(item, dp.Certificate), changes
        return replace(item, **changes)

    for name, module in list(sys.modules.items()):
        if (
            name.startswith("dpconvex.")
            and hasattr(module, "replace")
            and not name.endswith("certificates.certificate")
        ):
            monkeypatch.setattr(module, "replace", watched)
    rng = np.random.default_rng(0)
    data = {"x": rng.uniform(-0.5, 0.5, (300, 2)), "y": rng.choice([-1, 1], 300)}
    delta, more = dp.Privacy(1.0, 1e-6), dp.Privacy(1.0, 1e-6, "add-remove", unit="patient", most=2)
    candidates = [dp.load("logistic_regression", features=2, regularization=r) for r in (0.11, 0.12)]
    for options in ({}, {"checked": True}, {"mechanism": dp.OutputPerturbation("gaussian")}):
        dp.solve(candidates[0], data, delta, **options)
    dp.solve(candidates[0], data, more, size=10, unit=np.arange(300) // 2)
    for split in (True, False):
        dp.tune(candidates, data, delta, split=split, mechanism=dp.OutputPerturbation("gaussian"))
    dp.tune_repeated(candidates, data, delta, repetitions=dp.Repetitions(1.1))
    list(dp.sweep(candidates, data, total=delta, mechanism=dp.OutputPerturbation("gaussian")))
    mixture = dp.load("large_margin_gaussian_mixture", features=2, components=2, labels=[-1, 1])
    dp.Certificate.from_json(dp.solve_mixture(mixture, data, delta).release.certificate.to_json())
    dp.statistics(dp.load("least_squares_classifier", features=2, labels=[-1, 1]), data, delta)


def test_a_promise_without_delta_says_up_to_which_probability_it_holds(certificate):
    for mechanism in (dp.ObjectivePerturbation("gamma"), dp.OutputPerturbation("gamma")):
        for privacy in (dp.Privacy(1.0), dp.Privacy(1.0, adjacency="add-remove"), dp.Privacy(1.0, 1e-40)):
            found = dp.verify(LEARNER, privacy, 100, mechanism)
            power = -99 if privacy.adjacency == "add-remove" else -100
            said = f"unless the noise exceeds its cap, with probability at most 2^{power} (a truncation failure)"
            assert said in str(found)
            assert said in found._repr_html_()
            assert dp.Certificate.from_dict(json.loads(json.dumps(found.to_dict()))).exceptions == found.exceptions
    said, failure = "with probability at most 2^-100", "(a truncation failure)"
    assert f"{said} {failure}" in certificate.exceptions
    mixture = dp.load("large_margin_gaussian_mixture", features=2, components=2)
    assert f"{said} {failure}" in dp.verify_mixture(mixture, dp.Privacy(1.0), 1000).exceptions
    data = {"x": [[1.0, 0.0], [0.0, 1.0]] * 50, "y": [1, -1] * 50}
    found = dp.tune_repeated([LEARNER], data, dp.Privacy(2.0), repetitions=dp.Repetitions(mean=3))
    assert f"{said}, times 3 on average for the runs {failure}" in found.release.certificate.exceptions


def test_no_page_states_a_better_guarantee_than_was_proved():
    found = dp.verify(LEARNER, dp.Privacy(1.00049, 1.00049e-6), 100)
    for page in (found._repr_html_(), found.explain(), "\n".join(found.derivation.lines())):
        stated = re.search(r"epsilon = ([0-9.e-]+), delta = ([0-9.e-]+)", page)
        assert stated
        assert (float(stated[1]) >= 1.00049, float(stated[2]) >= 1.00049e-6) == (True, True)
    for epsilon in (0.3, 0.7, 1.00049, 3.1):
        found, steps = dp.verify(LEARNER, dp.Privacy(epsilon), 100), dp.verify(LEARNER, dp.Privacy(epsilon, 1e-6), 100)
        shown = [float(line.split()[0]) for line in found.explain().splitlines() if re.search(r"\( *\d+ %\)", line)]
        assert all(said >= spent for said, (spent, _) in zip(shown, found.shares(), strict=True))
        level = re.search(r"level mu +([0-9.]+)", steps.explain())
        assert level
        assert float(level[1]) >= steps.settings["level"]


@pytest.mark.parametrize("alpha", [0.0, 0.01, 0.1, 0.5, 1.0])
def test_what_an_attacker_misses_at_least_is_what_the_law_of_the_noise_says(alpha):
    learner = dp.load("logistic_regression", features=3)
    steps = dp.verify(learner, dp.Privacy(1.0, 1e-5, "add-remove"), 1000, dp.NoisyGradientDescent(clip=0.3))
    # That of the steps' noise alone; the residual noise takes .01 of epsilon, and lowers it by little.
    shift = steps.event.level()[0], max(leaf.mu for leaf in steps.event.leaves() if leaf.kind == "gaussian")
    least, exact = (norm.cdf(norm.isf(alpha) - mu) if alpha else 1.0 for mu in shift)
    assert least - 1e-3 <= steps.risk(alpha) <= exact + 1e-9
    pure = dp.verify(learner, dp.Privacy(1.0), 1000)
    assert pure.risk(alpha) == pytest.approx(max(1 - math.e * alpha, (1 - alpha) / math.e), abs=1e-3)
    refused(dp.TemplateError, "from 0 to 1", pure.risk, 2.0)


def test_adaptive_steps_say_that_nothing_of_the_loss_was_proved():
    steps, few = (dp.verify(LEARNER, dp.Privacy(1.0, 1e-6), size, dp.AdaptiveSteps()) for size in (1000, 10))
    said = steps.explain() + steps._repr_html_()
    assert "gradient bound G" not in said
    assert "sensitive subspace" not in said
    assert ["no better than a constant" in str(found) for found in (steps, few)] == [False, True]
    assert steps.for_group(3).epsilon > 1
    with pytest.raises(dp.TemplateError, match="its records were whitened"):
        dp.Certificate.from_dict(dict(steps.to_dict(), whitening={"epsilon": 0.1}))


def test_certificates_are_compared_by_how_far_noise_moves_the_answer():
    one = dp.verify(LEARNER, dp.Privacy(1.0), 1000)
    double, still = (
        one.copied(event=None, **less) for less in ({"noise_scale": 2 * one.noise_scale}, {"diameter": 0.0})
    )
    said = [repr(one.compare(other)).splitlines()[-1] for other in (one, double, still)]
    assert ["equally" in said[0], "2-fold" in said[1], "second" in said[2]] == [True] * 3
