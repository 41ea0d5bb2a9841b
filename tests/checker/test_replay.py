"""Proofs of all problems are replayed; and claims that are a little too good are rejected."""

import ast
import json
import sys
from functools import cache, reduce
from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest
from learners_of_tests import bounded
from refused import refused

import dpconvex as dp
from dpconvex.checker import Rejected, check

ROOT = Path(__file__).resolve().parents[2]
SIZE = 1000
PROMISES = {"pure": dp.Privacy(1.0), "delta": dp.Privacy(1.0, 1e-5), "add-remove": dp.Privacy(1.0, 1e-5, "add-remove")}
# Not certified under any promise: its regularizer is not strongly convex.
REFUSED = {"pathak_raj_2010"}
PROBLEMS = sorted(set(dp.problems()) - REFUSED)
MECHANISMS = {
    "output-gamma": (dp.OutputPerturbation(), "pure"),
    "output-gaussian": (dp.OutputPerturbation("gaussian"), "delta"),
    "clipped": (dp.NoisyGradientDescent(clip=0.1, steps=20), "delta"),
    "adaptive": (dp.AdaptiveSteps(rounds=7), "delta"),
}


@cache
def proof_of(name, promise, mechanism=None):
    return dp.verify(
        dp.load(name, features=3, **bounded(name)),
        PROMISES[promise],
        SIZE,
        MECHANISMS[mechanism][0] if mechanism else None,
    ).proof


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("promise", PROMISES)
def test_all_problems_are_replayed(name, promise):
    proof = proof_of(name, promise)
    assert len(proof) < 10**6
    assert check(proof).unreplayed == ()


# What makes a claim better than what is proved: a number, and a factor for it; by what is perturbed.
ALWAYS = {"claim noise_scale": 0.99, "claim privacy epsilon": 0.99, "claim cover scale": 0.99, "claim tolerance": 1.01}
ALWAYS |= {"claim cover distance": 1.1}  # in whole steps of the grid
ALWAYS |= {"claim cover step": 1.5}
RECORD = {"record": 1.01}
MINIMISED = RECORD | {"claim noise_epsilon": 1.01, "claim strong_convexity": 1.01}
MUTATIONS = {
    "objective": ALWAYS | MINIMISED | {"modulus": 1.01, "claim noise_dimension": -1, "claim gradient_bound": 0.99},
    "output": ALWAYS | MINIMISED | {"modulus": 1.01, "claim gradient_bound": 0.99},
    "gradients": ALWAYS | {"claim noise_dimension": -1, "claim settings clip": 1.01, "claim settings steps": 1.1},
    "statistics": ALWAYS | RECORD | {"claim noise_dimension": -1},
    "queries": {"claim noise_scale": 0.99, "claim privacy epsilon": 0.99, "claim privacy delta": 0.9}
    | {f"claim {key}": 1.01 for key in ("settings level", "noise_epsilon", "sensitivity", "gradient_bound")}
    | {"claim settings level": 0.99},
}


def number(value):
    return float.fromhex(value) if isinstance(value, str) else float(value)


def mutated(proof, path, factor):
    """Return the proof with another number; None if it has no such number."""
    wrong = json.loads(proof)
    *way, last = path.split()
    place = reduce(dict.__getitem__, way, wrong)
    if path == "record":
        for domain in wrong["record"].values():
            for key, sign in {"radius": 1, "upper": 1, "lower": -1}.items():
                if key == "radius" in domain:
                    domain[key] = (number(domain[key]) * factor).hex()
                elif key in domain:
                    domain[key] = [(number(value) + sign * (factor - 1)).hex() for value in domain[key]]
    elif last not in place:
        return None
    else:
        place[last] = place[last] - 1 if factor == -1 else (number(place[last]) * factor).hex()
    return json.dumps(wrong).encode()


def follows(proof):
    """Whether all of a proof is replayed; beside constraints that the checker reads in part, what is false is not replayed."""
    try:
        return not check(proof).unreplayed
    except Rejected:
        return False


FEW = ("hinge_svm", "large_margin_gaussian", "logistic_regression", "ridge_regression", "softmax_regression")
CASES = [(name, "pure", None) for name in PROBLEMS]
CASES += [(n, p, m) for n in FEW for p, m in [("add-remove", None), *((p, m) for m, (_, p) in MECHANISMS.items())]]
CASES += [("sparse_logistic", "delta", "vertices")]
MECHANISMS["vertices"] = (dp.NoisyFrankWolfe(rounds=7, vertices=2), "delta")


# Eigenvalues give the checker a larger modulus than the norm gives the calculus; a norm's slope is 1 where records are.
# The checker's bound on the curvature of choices is the sharper one, so less noise follows from it, too.
TRUE = {"gaussian_precision": "modulus", "robust_location": "record", "conditional_logit": "claim noise_scale"}.items()


@pytest.mark.sampled(20)
@pytest.mark.parametrize(("name", "promise", "mechanism"), CASES)
def test_claims_that_are_a_little_too_good_are_rejected(name, promise, mechanism):
    try:
        proof = proof_of(name, promise, mechanism)
        if check(proof).unreplayed:
            pytest.skip("its noise is not replayed")
    except dp.NotPrivate:
        pytest.skip("the mechanism is not for this loss")
    for path, factor in MUTATIONS[json.loads(proof)["claim"]["perturbed"]].items():
        if (name, path) in TRUE:
            continue
        wrong = mutated(proof, path, factor)
        assert wrong is None or not follows(wrong), path


X = np.random.default_rng(0).uniform(-0.5, 0.5, (200, 3))
DATA, LOGISTIC = {"x": X, "y": np.where(X[:, 0] > 0, 1, -1)}, "logistic_regression"
PROTECTED, LOOSE, PURE = PROMISES["add-remove"], PROMISES["delta"], PROMISES["pure"]


def of_the_best(shape, privacy):
    candidates = {f"{r:g}": dp.load(LOGISTIC, features=3, regularization=r) for r in (0.01, 0.1)}
    law = dp.Repetitions(mean=3, shape=shape)
    return dp.tune_repeated(candidates, DATA, privacy, repetitions=law).release.certificate


def of_a_mixture(privacy, mechanism=None):
    learner = dp.load("large_margin_gaussian_mixture", features=3, classes=2)
    data = {"x": X, "y": (X[:, 0] > 0).astype(int)}
    return dp.solve_mixture(learner, data, privacy, mechanism).release.certificate


def sampled(privacy=PROTECTED, clip=0.3, **options):
    mechanism = dp.NoisyGradientDescent(clip=clip, sampling=0.1, steps=50)
    return dp.verify(dp.load(LOGISTIC, features=3), privacy, SIZE, mechanism, **options)


def normal(name, promise):
    return dp.verify(dp.load(name, features=3), PROMISES[promise], SIZE, dp.ObjectivePerturbation("gaussian"))


# One margin with slopes of one sign and of both, alone and beside another record's, and vertices of many.
NORMALS = [(name, p) for name in (LOGISTIC, "huber_regression") for p in ("delta", "add-remove")]
NORMALS += [("low_rank_softmax", "delta"), ("ordinal_regression", "add-remove"), ("robust_location", "delta")]
NORMALS += [("robust_location", "add-remove"), ("portfolio", "add-remove")]
STATED = {"claim noise_scale": 0.99, "claim privacy epsilon": 0.99}
NORMAL = STATED | {"claim privacy delta": 0.9}
LENGTHS = NORMAL | {"record": 1.01, "modulus": 0.9}
# With a record x and c = 0.2, robust_location has the loss ||(c, x - m)||: its slope ||x - m||/||(c, x - m)|| is below 1 and its
# curvature at most 1/c (at x = m), wherever records are.  Its claim is of just these, so a larger radius leaves it true.
OF_LENGTH = {"robust_location": NORMAL | {"modulus": 0.9}}
SAMPLED = NORMAL | {"claim settings sampling": 1.01, "claim settings steps": 1.1, "claim settings multiplier": 0.99}
SAMPLED |= {"claim gradient_bound": 0.99, "sampled multiplier": 0.99, "sampled delta": 1.01}
RUNS = STATED | {"claim settings gamma": 0.99, "claim settings mean_number_of_runs": 0.99}
RUNS |= {f"claim settings {key}_of_a_{what}": 1.01 for key, what in (("epsilon", "fit"), ("epsilon", "score"))}
CELLS = STATED | {"claim clustering rounds": 1.1, "claim clustering scale": 0.99, "claim clustering weight": 1.01}
CELLS |= {"claim clustering epsilon": 0.99, "record": 1.01}
STEPS, LOST_CELLS = dp.NoisyGradientDescent(clip=0.3, steps=9), CELLS | {"claim clustering delta": 0.9}
LOST = {"claim settings delta_of_a_fit": 1.01}
FURTHER = {
    "samples": (sampled, SAMPLED | {"claim settings clip": 1.01}),
    "samples that no clip shortens": (lambda: sampled(clip=3.0), SAMPLED | {"record": 1.01}),
    **{f"{n} under normal noise, {p}": (lambda n=n, p=p: normal(n, p), OF_LENGTH.get(n, LENGTHS)) for n, p in NORMALS},
    "runs": (lambda: of_the_best(0.0, LOOSE), RUNS | LOST),
    "runs of little variation": (lambda: of_the_best(1.0, LOOSE), RUNS | LOST | {"claim settings eta": 1.01}),
    "pure runs": (lambda: of_the_best(-0.5, PURE), RUNS),
    "cells": (lambda: of_a_mixture(PURE), CELLS),
    "matrices of two classes": (
        lambda: dp.verify(dp.load("softmax_regression", features=5), PURE, SIZE, dp.ObjectivePerturbation("matrix")),
        {"claim settings columns": -1},
    ),
    "cells under normal noise": (lambda: of_a_mixture(LOOSE, STEPS), LOST_CELLS),
    "cells beside queries": (lambda: of_a_mixture(LOOSE), LOST_CELLS),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", FURTHER)
def test_what_is_paid_beside_the_noise_is_replayed(name):
    certify, mutations = FURTHER[name]
    proof = certify().proof
    assert follows(proof)
    for path, factor in mutations.items():
        wrong = mutated(proof, path, factor)
        if wrong is not None and json.loads(wrong) != json.loads(proof):
            assert not follows(wrong), path


@pytest.mark.parametrize("regularization", [1e-6, 1e-2])
def test_curvature_that_costs_more_than_all_of_epsilon_is_replayed(regularization):
    """A steep slope and a curved one are of different places: the noise was said to cost a negative epsilon, and rejected."""
    template = dp.load("logistic_regression", features=2, regularization=regularization)
    certificate = dp.verify(template, dp.Privacy(1.0, 1e-6), 50, dp.ObjectivePerturbation("gaussian", added=0.0))
    assert certificate.noise_epsilon >= 0
    assert not certificate.check().unreplayed


def test_what_is_trusted_of_samples_and_runs_is_named():
    assert "50 samples of probability 0.0999" in check(sampled().proof).trusted[-1]
    assert "runs of other candidates" in check(of_the_best(0.0, PURE).proof).trusted[-1]
    candidates = [dp.load(LOGISTIC, features=3), dp.load(LOGISTIC, features=3, regularization=0.1)]
    together = dp.tune(candidates, DATA, LOOSE, split=False).release.certificate
    assert "accounting for several fits" in check(together.proof).unreplayed[0]


BETTER = [{"cover": change} for change in ({"counting": 0}, {"distance": 0}, {"noise": "uniform"}, {"step": 3})]


@pytest.mark.parametrize("change", [*BETTER, {"privacy": {"adjacency": "replace-one"}}])
def test_a_cover_for_less_than_there_is_and_neighbours_farther_apart_do_not_follow(change):
    wrong = json.loads(proof_of(LOGISTIC, "add-remove", "output-gamma"))
    for part, values in change.items():
        wrong["claim"][part] |= values
    refused(Rejected, "cover" if "cover" in change else "differ by more", check, json.dumps(wrong).encode())


def without_curvature(proof):
    """A logistic loss becomes a hinge."""
    for k, loss in enumerate(proof["losses"]):
        (margin,) = proof["nodes"][loss]["args"]
        zero = {"op": "constant", "shape": [], "value": [0]}
        hinge = {"op": "maximum", "shape": [], "args": [margin, len(proof["nodes"])]}
        proof["nodes"] += [zero, hinge]
        proof["losses"][k] = len(proof["nodes"]) - 1


def only_the_first_entry(name):
    def edit(proof):
        for node in proof["nodes"]:
            if node["op"] == name:
                node["groups"] = [[0]]

    return edit


def a_negative_divisor(proof):
    (squares,) = (node for node in proof["nodes"] if node["op"] == "quad_over_lin")
    proof["nodes"][squares["args"][1]]["value"] = [-1]


def a_matrix_for_a_symmetric_one(proof):
    proof["nodes"][0].pop("symmetric")
    proof["cells"] = [0] * 9


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("logistic_regression", without_curvature),
        ("logistic_regression", only_the_first_entry("quad_over_lin")),
        ("logistic_regression", a_negative_divisor),
        ("ridge_regression", only_the_first_entry("norm")),
        ("gaussian_precision", a_matrix_for_a_symmetric_one),
    ],
)
def test_false_proofs_do_not_follow(name, edit):
    named = "output-gamma" if name == "ridge_regression" else None  # by default no constant of it rests on the ball
    assert follows(proof_of(name, "pure", named))
    wrong = json.loads(proof_of(name, "pure", named))
    edit(wrong)
    assert not follows(json.dumps(wrong).encode())


def test_norms_are_no_constants_inside_of_other_functions():
    proof = json.loads(proof_of("robust_location", "pure", "output-gamma"))
    (loss,), k = proof["losses"], len(proof["nodes"])
    first = {"op": "index", "shape": [], "args": [0], "places": [0]}
    larger = ({"op": name, "shape": [], "args": args} for name, args in (("logistic", [k]), ("maximum", [loss, k + 1])))
    false = proof | {"nodes": [*proof["nodes"], first, *larger], "losses": [k + 2]}
    assert check(json.dumps(false).encode()).unreplayed == ("there is no rule for functions of norms",)


# Constraints beside P >> I / 2, and whether the checker reads off them how strongly -log_det(P) curves.
LIMITS = {
    "largest eigenvalue": (lambda P: cp.lambda_max(P - np.eye(2)) <= 4, True),
    "norm": (lambda P: cp.norm(P, "fro") <= 5, True),
    "entries": (lambda P: cp.abs(P) <= 5, True),
    "trace": (lambda P: cp.trace(P) <= 5, False),
    "singular value": (lambda P: cp.sigma_max(P) <= 5, False),
}


@pytest.mark.parametrize("name", LIMITS)
def test_barriers_with_limits_that_are_not_read_are_not_rejected(name):
    limit, read = LIMITS[name]
    P = cp.Variable((2, 2), symmetric=True)
    constraints = [limit(P), P >> np.eye(2) / 2]
    template = dp.Template(dp.Record(x=dp.Ball(2)), lambda x: x @ P @ x, -cp.log_det(P), constraints)
    proof = dp.verify(template, PURE, SIZE, dp.ObjectivePerturbation()).proof
    assert bool(check(proof).unreplayed) != read
    if name == "norm":
        assert follows(proof)
        assert not follows(mutated(proof, "modulus", 1.01))


def test_half_of_a_symmetric_matrix_bounds_no_norm():
    """Off the diagonal an entry stands for two."""
    record, X = dp.Record(x=dp.Ball(2), y=dp.Box(-1, 1)), cp.Variable((2, 2), symmetric=True, name="X")
    short = (cp.norm(cp.hstack([X[0, 0], X[0, 1], X[1, 1]])) <= 1, cp.norm(X, "fro") <= 1)
    proofs = []
    for constraint in short:
        loss, regularizer = (lambda x, y: cp.square(2 * x[0] * X[0, 1] - y) / 2), cp.sum_squares(X)
        template = dp.Template(record, loss, regularizer, [constraint])
        proofs.append(dp.verify(template, dp.Privacy(1.0), SIZE, dp.OutputPerturbation()).proof)
    half, whole = map(json.loads, proofs)
    assert follows(proofs[1])
    assert not follows(json.dumps(half | {"claim": whole["claim"]}).encode())


@pytest.mark.parametrize("center", [100.0, 1e16])
@pytest.mark.parametrize("kind", [cp.norm, cp.abs, lambda moved: cp.hstack([moved, -moved])])
def test_sets_around_other_points_are_read(kind, center):
    """Entries are no larger than a norm; of far centers all digits count, and one false bound is noticed."""
    w, record = cp.Variable(2, name="w"), dp.Record(x=dp.Box(0.0, 1.0))
    template = dp.Template(record, lambda x: x * cp.square(w[0] - center), cp.sum_squares(w), [kind(w - center) <= 4])
    proof = dp.verify(template, dp.Privacy(1.0), SIZE, dp.OutputPerturbation()).proof
    assert check(proof).unreplayed == ()
    wrong = json.loads(proof)
    wrong["claim"]["gradient_bound"], wrong["claim"]["sensitivity"] = (7.99).hex(), (2 * 7.99).hex()
    assert not follows(json.dumps(wrong).encode())


@pytest.mark.parametrize("file", sorted((ROOT / "dpconvex" / "checker").glob("*.py")), ids=lambda f: f.stem)
def test_the_checker_imports_the_standard_library_alone(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [f"{'.' * node.level}{node.module}"] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name.startswith("dpconvex.checker") or name.split(".")[0] in sys.stdlib_module_names, name
        assert not (isinstance(node, ast.Name) and node.id in ("eval", "exec", "__import__"))
