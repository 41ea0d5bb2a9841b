"""Events that say less than the proof they come with: differences left out, other noise, or a smaller level."""

import json
from contextlib import suppress
from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from command_line import main
from refused import refused

import dpconvex as dp
from dpconvex.checker import Rejected, check


def forged_hulls(hull):
    """Yield what an event says of differences, with one thing less: the longest vertex stays."""
    longest, whole = max(hull["lengths"]), dict(zip(hull["lengths"], hull["counts"], strict=True))
    yield hull | {"lengths": [longest], "counts": [whole[longest] - (len(whole) == 1)]}
    yield hull | {"counts": [count / 2 for count in hull["counts"]]}
    yield hull | {"lengths": [length * (1 if length == longest else 0.99) for length in hull["lengths"]]}
    yield hull | {"lengths": [], "counts": []}
    yield from ({**hull, name: 0.99 * hull[name]} for name in ("length", "curvature"))
    yield hull | {"dimension": 1}
    if hull.get("slopes"):
        up, down, *rest = hull["slopes"]
        yield hull | {"behind": hull["behind"][:-1]}
        yield hull | {"slopes": [up / 2, down / 2, *rest]}


@pytest.mark.parametrize("more", [{}, pytest.param({"unit": "p", "most": 3}, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("name", ["huber_svm", pytest.param("ordinal_regression", marks=pytest.mark.slow)])
def test_events_with_fewer_differences_than_the_graph_has_are_rejected(name, more, tmp_path, capsys):
    learner, privacy = dp.load(name, features=2), dp.Privacy(1.0, 1e-6, **more)
    certificate = dp.verify(learner, privacy, 1000, dp.ObjectivePerturbation("gaussian"))
    assert not check(certificate.proof, certificate.event.to_dict()).unreplayed
    whole = json.loads(certificate.to_json())
    parts = whole["certificate"]["event"]["parts"]
    (leaf,) = (part for part in parts if "kinds" in part)
    hulls = leaf["kinds"]
    for forged in zip(*map(forged_hulls, hulls), strict=True):
        leaf["kinds"] = list(forged)
        (path := tmp_path / "forged.json").write_text(json.dumps(whole), encoding="utf-8")
        assert main(["check", str(path)]) == 1
        assert "fewer or shorter" in capsys.readouterr().err
    with suppress(dp.errors.DPConvexError):
        read = dp.Certificate.from_json(json.dumps(whole))
        assert read.event is None or "was not checked" in read.replayed
    leaf["kinds"] = [*hulls, hulls[0]]  # more is no harm
    assert dp.Certificate.from_json(json.dumps(whole)).event is not None


GAUSSIAN = dp.ObjectivePerturbation("gaussian")


def certified(template, size=1000, **more):
    """Return a proof with its event, which is replayed, and the part of the event that has differences."""
    certificate = dp.verify(template, dp.Privacy(1.0, 1e-6, **more), size, GAUSSIAN)
    event = certificate.event.to_dict()
    assert not check(certificate.proof, event).unreplayed
    return certificate.proof, event, next(part for part in event["parts"] if "kinds" in part)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["logistic_regression", "quantile_regression"])
def test_events_whose_curvature_is_less_than_the_graph_has_where_slopes_move_are_rejected(name):
    proof, event, leaf = certified(dp.load(name, features=3))
    for hull in leaf["kinds"]:
        hull["slopes"] = [*hull["slopes"][:3], 1e-12]
    refused(Rejected, "fewer or shorter", check, proof, event)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sigma", [1e3, 1e-3, None])
def test_events_of_other_noise_or_of_none_are_rejected(sigma):
    proof, event, _ = certified(dp.load("logistic_regression", features=2))
    parts = [part | {"sigma": sigma * part["sigma"]} if sigma and "kinds" in part else part for part in event["parts"]]
    forged = event | {"parts": [part for part in parts if sigma or "kinds" not in part]}
    refused(Rejected, "not of this noise", check, proof, forged)


def test_events_of_people_whose_records_never_stand_alone_are_rejected():
    w = cp.Variable(2, name="w")
    record = dp.Record(x=dp.Box([1.0, -0.01], [1.02, 0.01]))  # gradients are alike, and pairs much shorter
    template = dp.Template(record, lambda x: cp.logistic(x @ w) + 5 * (x @ w), 0.05 * cp.sum_squares(w))
    proof, event, leaf = certified(template, 10**5, unit="patient", most=3)
    leaf["kinds"] = [min(leaf["kinds"], key=lambda hull: max(hull["lengths"]))]
    refused(Rejected, "fewer or shorter", check, proof, event)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("keep", [None, "weights"])
def test_true_events_of_people_on_the_line_are_replayed(keep, adjacency):
    privacy = dp.Privacy(1.0, 1e-6, adjacency, unit="patient", most=3, keep=keep)
    assert not dp.verify(dp.load("logistic_regression", features=1), privacy, 1000, GAUSSIAN).check().unreplayed


@pytest.mark.parametrize("mechanism", [dp.AdaptiveSteps(), dp.NoisyFrankWolfe()], ids=lambda mechanism: mechanism.name)
def test_events_of_queries_that_cost_less_than_their_level_are_rejected(mechanism):
    learner = dp.load("sparse_logistic", features=3)
    certificate = dp.verify(learner, dp.Privacy(1.0, 1e-6, "add-remove"), 1000, mechanism)
    event = certificate.event.to_dict()
    assert not check(certificate.proof, event).unreplayed
    forged = event | {"parts": [part | ({"mu": part["mu"] * 0.99} if "mu" in part else {}) for part in event["parts"]]}
    whole = event | {"parts": event["parts"][:-1]}  # noise on integers costs nothing there
    for cheaper in (forged, whole, {"kind": "gaussian", "mu": 1e-6}, {"kind": "pure", "epsilon": 9.0}):
        refused(Rejected, "the event costs less", check, certificate.proof, cheaper)
    hidden = {"kind": "pure", "epsilon": 1e-9, "parts": event["parts"]}
    negative = event | {"parts": [part | ({"mu": -part["mu"]} if "mu" in part else {}) for part in event["parts"]]}
    for wrong in (hidden, negative, {"kind": "none"}):
        refused(Rejected, r"unknown|negative", check, certificate.proof, wrong)
    proof = json.loads(certificate.proof)
    refused(Rejected, "no graph", check, json.dumps(proof | {"record": {"x": {"lower": [0], "upper": [1]}}}).encode())
    runs = {"eta": 1, "gamma": "0x1p-1", "epsilon_of_a_fit": "0x1p-2", "epsilon_of_a_score": "0x1p-5"}
    runs |= {"delta_of_a_fit": "0x1p-30", "mean_number_of_runs": 2}
    level = {"level": "0x1p-6"}
    many = {"noise_scale": 64, "noise_epsilon": "0x1p-2", "settings": proof["claim"]["settings"] | level | runs}
    split = {"settings": proof["claim"]["settings"] | {"parts_of_the_data": 4, "records_in_all_parts": 4000}}
    for claim in (many, split):
        text = json.dumps(proof | {"claim": proof["claim"] | claim}).encode()
        assert not check(text).unreplayed
        for other in (event, {"kind": "gaussian", "mu": 1e-9}):
            refused(Rejected, "not that of a choice", check, text, other)


@pytest.mark.parametrize("delta", [1e-6, 1e-4])
def test_events_of_queries_beside_a_clustering_pay_for_both(delta):
    learner = dp.load("large_margin_gaussian_mixture", features=2)
    certificate = dp.verify_mixture(learner, dp.Privacy(1.0, delta, "add-remove"), 1000, dp.AdaptiveSteps())
    event = certificate.event.to_dict()
    assert "noisy k-means" in check(certificate.proof, event).trusted[-1]
    assert dp.Certificate.from_json(certificate.to_json()).event == certificate.event
    cells, steps = event["parts"]
    louder = {"parts": [steps["parts"][0] | {"mu": 1e-9}, steps["parts"][1]]}
    for parts in ([cells | {"mu": 0.99 * cells["mu"]}, steps], [steps], [cells, steps | louder]):
        refused(Rejected, "the event costs less", check, certificate.proof, event | {"parts": parts})


def test_files_say_what_a_schema_cost_and_that_they_are_not_private(tmp_path, capsys):
    learner = dp.load("logistic_regression", features=1)
    whole = json.loads(dp.verify(learner, dp.Privacy(1.0, 1e-6), 4000, dp.AdaptiveSteps()).to_json())
    alike = {name: whole["certificate"][name] for name in ("privacy", "event")}
    whole["certificate"]["learnt"] = alike | {"entry": "learn_schema 1", "columns": {}}
    (tmp_path / "certificate.json").write_text(json.dumps(whole), encoding="utf-8")
    assert main(["check", str(tmp_path / "certificate.json")]) == 0
    assert "the learnt schema has the stated cost" in capsys.readouterr().out
    whole["certificate"]["learnt"]["not_private_because"] = "a seed"
    for mark in (r'"not_private_becaus\u0065": ', '"not_private_because"\n:\t'):
        marked = json.dumps(whole).replace('"not_private_because": ', mark)
        (tmp_path / "marked.json").write_text(marked, encoding="utf-8")
        assert main(["check", str(tmp_path / "marked.json")]) == 1
        assert "NOT PRIVATE: a seed" in "".join(capsys.readouterr())


def test_proofs_of_later_versions_are_not_replayed(tmp_path, capsys):
    whole = json.loads(dp.verify(dp.load("logistic_regression", features=1), dp.Privacy(1.0), 50).to_json())
    whole["proof"]["nodes"][-1]["op"] = "an atom of tomorrow"
    path = tmp_path / "later.json"
    for later in (whole, whole["proof"]):
        path.write_text(json.dumps(later), encoding="utf-8")
        assert main(["check", str(path)]) == 1
        assert "not replayed: there is no rule for an atom of tomorrow" in capsys.readouterr().out
    assert dp.Certificate.from_json(json.dumps(whole)).check().unreplayed


def test_files_that_state_another_cost_than_their_certificate_are_rejected(tmp_path, capsys):
    learner, data = dp.load("logistic_regression", features=1), {"x": np.zeros((9, 1)), "y": np.ones(9)}
    release, path = dp.solve(learner, data, dp.Privacy(1.0, 1e-6)), str(tmp_path / "fit.npz")
    for spent in (release.spent, dp.Privacy(0.5, 1e-6), dp.Privacy(1.0, 1e-6, "add-remove")):
        replace(release, spent=spent).save(path)
        assert main(["check", path]) == (spent != release.spent)
        assert ("different costs" in "".join(capsys.readouterr())) == (spent != release.spent)
