"""Proofs of all problems are replayed, or what is not is named; and claims that are a little too good are rejected."""

import ast
import json
import sys
from functools import cache
from pathlib import Path

import pytest

import dpconvex as dp
from dpconvex.checker import Rejected, check

ROOT = Path(__file__).resolve().parents[2]
SIZE = 1000
PROMISES = {
    "pure": dp.Privacy(1.0),
    "delta": dp.Privacy(1.0, 1e-5),
    "add-remove": dp.Privacy(1.0, 1e-5, "add-remove"),
}
# Not certified under any promise: its regularizer is not strongly convex.
REFUSED = {"pathak_raj_2010"}
# What is not replayed, or needs more than the checker's plain rules.
LEFT = {"gaussian_precision": "less strongly convex", "robust_location": "a rule for norm"}
PROBLEMS = sorted(set(dp.problems()) - REFUSED)
MECHANISMS = {
    "output-gamma": (dp.OutputPerturbation(), "pure"),
    "output-gaussian": (dp.OutputPerturbation("gaussian"), "delta"),
    "clipped": (dp.NoisyGradientDescent(clip=0.1, steps=20), "delta"),
}


def small(name):
    try:
        return dp.load(name, features=3)
    except dp.TemplateError:
        return dp.load(name)


@cache
def proof_of(name, promise, mechanism=None):
    return dp.verify(small(name), PROMISES[promise], SIZE, MECHANISMS[mechanism][0] if mechanism else None).proof


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("promise", PROMISES)
def test_all_problems_are_replayed_or_what_is_not_is_named(name, promise):
    proof = proof_of(name, promise)
    assert len(proof) < 10**6
    try:
        said = check(proof).unreplayed
    except Rejected as step:
        said = (str(step),)
    assert not said or (name in LEFT and LEFT[name] in said[0]), said


# Changes of a claim that make it better than what is proved, each with the kinds of noise that it matters for.


def number(value):
    return float.fromhex(value) if isinstance(value, str) else float(value)


def scaled(found, key, factor):
    found[key] = (number(found[key]) * factor).hex()


def less_noise(proof):
    scaled(proof["claim"], "noise_scale", 0.99)


def smaller_epsilon(proof):
    scaled(proof["claim"]["privacy"], "epsilon", 0.99)


def smaller_delta(proof):
    scaled(proof["claim"]["privacy"], "delta", 0.9)


def less_cover(proof):
    scaled(proof["claim"]["cover"], "scale", 0.99)


def farther_answers(proof):
    scaled(proof["claim"]["cover"], "distance", 1.1)  # in whole steps of the grid


def more_tolerance(proof):
    scaled(proof["claim"], "tolerance", 1.01)


def larger_records(proof):
    for domain in proof["record"].values():
        if "radius" in domain:
            scaled(domain, "radius", 1.01)
        else:
            domain["upper"] = [(number(value) + 0.01).hex() for value in domain["upper"]]
            domain["lower"] = [(number(value) - 0.01).hex() for value in domain["lower"]]


def more_convex(proof):
    scaled(proof, "modulus", 1.01)


def fewer_dimensions(proof):
    proof["claim"]["noise_dimension"] -= 1


def longer_clip(proof):
    scaled(proof["claim"]["settings"], "clip", 1.01)


def more_steps(proof):
    scaled(proof["claim"]["settings"], "steps", 1.1)


def shorter_gradients(proof):
    scaled(proof["claim"], "gradient_bound", 0.99)


def other_neighbours(proof):
    proof["claim"]["privacy"]["adjacency"] = "replace-one"


ALWAYS = [less_noise, smaller_epsilon, less_cover, farther_answers, more_tolerance]
MUTATIONS = {
    "objective": [*ALWAYS, larger_records, more_convex, fewer_dimensions, shorter_gradients],
    "output": [*ALWAYS, larger_records, more_convex, shorter_gradients],
    "gradients": [*ALWAYS, fewer_dimensions, longer_clip, more_steps, smaller_delta],
    "statistics": [*ALWAYS[:3], farther_answers, more_tolerance, larger_records, fewer_dimensions],
}


@pytest.mark.parametrize("name", sorted(set(PROBLEMS) - set(LEFT)))
@pytest.mark.parametrize(
    ("promise", "mechanism"), [("pure", None), ("add-remove", None), *((p, m) for m, (_, p) in MECHANISMS.items())]
)
def test_claims_that_are_a_little_too_good_are_rejected(name, promise, mechanism):
    try:
        proof = proof_of(name, promise, mechanism)
        if check(proof).unreplayed:
            pytest.skip("its noise is not replayed")
    except dp.NotPrivate:
        pytest.skip("the mechanism is not for this loss")
    kind = json.loads(proof)["claim"]["perturbed"]
    for mutate in MUTATIONS[kind]:
        wrong = json.loads(proof)
        if mutate is longer_clip and "clip" not in wrong["claim"]["settings"]:
            continue
        mutate(wrong)
        with pytest.raises(Rejected):
            check(json.dumps(wrong).encode())


def test_neighbours_that_are_farther_apart_are_rejected():
    wrong = json.loads(proof_of("logistic_regression", "add-remove", "output-gaussian"))
    other_neighbours(wrong)
    with pytest.raises(Rejected):
        check(json.dumps(wrong).encode())


@pytest.mark.parametrize("file", sorted((ROOT / "dpconvex" / "checker").glob("*.py")), ids=lambda f: f.stem)
def test_the_checker_imports_the_standard_library_alone(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [f"{'.' * node.level}{node.module}"] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name.startswith("dpconvex.checker") or name.split(".")[0] in sys.stdlib_module_names, name
        assert not (isinstance(node, ast.Name) and node.id in ("eval", "exec", "__import__"))
