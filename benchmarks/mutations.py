"""Mutations of proofs: is every claim that is better than what was proved, and every other graph, rejected?

``python -m benchmarks mutations [--count 10000] [--seed 0]`` prints by kind how many
are rejected, not replayed and accepted, and why:

- *same*: the same statement, proved by other witnesses; sums that are released do not rest on the graph;
- *unused*: a number of the claim that no inequality uses: one far beyond is accepted, too;
- *slack*: far enough in the same direction the number is rejected;
- *true*: another statement.

Statements of the last two kinds are attacked besides (`proof_attack`); what breaks is unexplained, and the command fails.
"""

import json
import math
import time
from collections import Counter, defaultdict
from itertools import islice

import numpy as np

import dpconvex as dp
from benchmarks import chosen
from benchmarks.proof_attack import broken, number
from dpconvex.checker import check
from dpconvex.checker.reading import Rejected

PURE, DELTA, ADD = dp.Privacy(1.0), dp.Privacy(1.0, 1e-5), dp.Privacy(1.0, 1e-5, "add-remove")
WAYS = [(PURE, None), (DELTA, None), (ADD, None), (PURE, dp.OutputPerturbation())]
WAYS += [
    (DELTA, dp.ObjectivePerturbation("gaussian")),
    (DELTA, dp.OutputPerturbation("gaussian")),
    (DELTA, dp.NoisyGradientDescent(clip=0.1, steps=20)),
]
# Numbers of the claim that no inequality uses (docs/checking.md), and the sides to which others are unsafe.
UNUSED = {"strong_convexity", "hessian_bound", "jacobian_epsilon", "noise_epsilon"}
UNUSED |= {f"cover {name}" for name in ("noise_cap", "records", "sensitivity", "dimension", "counting")}
UNUSED |= {f"settings {name}" for name in ("step_size", "largest_step", "momentum", "radius", "rows", "columns")}
UNUSED |= {"settings degrees_of_freedom", "settings nuclear_sensitivity", "settings weight_of_linear_statistics"}
UP = {"tolerance", "counting", "steps", "clip", "modulus", "radius", "upper", "M", "high", "curvature"}
DOWN = {"epsilon", "delta", "noise_scale", "sensitivity", "gradient_bound", "added", "size", "noise_dimension", "scale"}
DOWN |= {"distance", "step", "sigma", "lower", "low"}
WHOLE = {"size", "noise_dimension", "steps", "rows", "columns", "records", "dimension", "features"}
WHOLE |= {"degrees_of_freedom"}
ROOTS = "losses", "regularizer", "constraints"
COUNTS = {"shape", "args", "places", "groups", "dim", "symmetric", "norm"}
# Ways to mutate: numbers of a part, indices below keys of a part, and others.
NUMBERS = ("claim", "record", "nodes", "modulus", "centres", "tangents", "moments")
INDICES = {"edge": ("nodes", "args"), "entries": ("nodes", "places", "groups"), "shape": ("nodes", "shape")}
INDICES |= {name: (name,) for name in (*ROOTS, "cells", "parts", "layout")}
OTHERS = ("claim", "claim", "sign", "operation", "dropped", "norm", "adjacency", "keys", "keys")
OPERATIONS = ("abs", "negate", "logistic", "huber", "power", "exp", "log"), ("sum", "log_sum_exp", "norm")
OPERATIONS += (("add", "multiply", "divide", "maximum"),)
STATEMENT = ("claim", "record", "nodes", *ROOTS, "modulus")


def at(part, place):
    for key in place:
        part = part[key]
    return part


def places(part, *keys, place=()):
    """Return the places of all numbers, or of those below some key."""
    found = []
    for key, value in part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ():
        if type(value) is int or (isinstance(value, str) and value.lstrip("-").startswith("0x")):
            found += [(*place, key)] if not keys or {*keys} & {*place, key} else []
        found += places(value, *keys, place=(*place, key))
    return found


def objects(part):
    """Return all objects of a part that have keys."""
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return [part] * bool(isinstance(part, dict) and part) + [item for one in inner for item in objects(one)]


def changed(proof, place, value):
    found = json.loads(json.dumps(proof))
    at(found, place[:-1])[place[-1]] = value
    return found


def moved(proof, place, sign, share):
    """Return the proof with a number that is larger or smaller by a share of itself; ends of boxes move by it."""
    old = number(at(proof, place))
    new = old + sign * share if not old or {*place} & {"lower", "upper"} else old * (1 + share) ** sign
    whole = type(at(proof, place)) is int and place[-1] in WHOLE
    return changed(proof, place, int((math.floor, math.ceil)[sign > 0](new)) if whole else float(new).hex())


def mutate(proof, rng):
    """Return a kind, the mutant, of a number a mutant far beyond, and by what share it moved; None if there is no such part."""

    def pick(items):
        return items[rng.integers(len(items))]

    way = str(pick((*NUMBERS, *INDICES, *OTHERS)))
    if way in NUMBERS:
        found = [place for place in places({way: proof.get(way)}) if not COUNTS & {*place}]
        if not found:
            return None
        place, share = pick(found), 0.9 * 10 ** rng.uniform(-4, 0)
        words = [key for key in place if isinstance(key, str)]
        sign = 1 if {*words} & UP else -1 if {*words} & DOWN else pick((-1, 1))
        kind = " ".join(words[1:] if way == "claim" else dict.fromkeys((way, words[-1])))
        return kind, moved(proof, place, sign, share), moved(proof, place, sign, 2.0**40), share
    part, *keys = INDICES.get(way, ("nodes", "value"))
    found = places({part: proof.get(part)}, *keys)
    if way in INDICES and found:
        place = pick(found)
        most = place[1] if way == "edge" else len(proof["nodes"]) if way in ROOTS else at(proof, place) + 2
        return way, changed(proof, place, int(rng.integers(most))), None, 0
    if way == "sign" and found:
        place = pick(found)
        return way, changed(proof, place, (-number(at(proof, place))).hex()), None, 0
    if way == "operation" and proof.get("nodes"):
        k = pick(range(len(proof["nodes"])))
        others = [g for g in OPERATIONS if proof["nodes"][k]["op"] in g]
        return (way, changed(proof, ("nodes", k, "op"), str(pick(others[0]))), None, 0) if others else None
    if way == "dropped" and proof.get("constraints"):
        k = pick(range(len(proof["constraints"])))
        return way, proof | {"constraints": proof["constraints"][:k] + proof["constraints"][k + 1 :]}, None, 0
    fields = [name for name, domain in proof.get("record", {}).items() if domain.get("norm") in (1, 2)]
    if way == "norm" and fields:
        return way, changed(proof, ("record", pick(fields), "norm"), pick((2, "inf"))), None, 0
    if way == "keys":
        found = json.loads(json.dumps(proof))
        part, other = pick(objects(found)), pick(objects(found))
        key, more = str(pick(sorted(part))), str(pick(sorted(other)))
        chosen = pick(("missing", "of another", "true", "infinite"))
        old = part.pop(key)
        part |= {
            "of another": {key: old, more: json.loads(json.dumps(other.get(more, old)))},
            "true": {key: True},
            "infinite": {key: "inf"},
        }.get(chosen, {})
        return f"keys {chosen}", found, None, 0
    if way == "adjacency":
        return way, changed(proof, ("claim", "privacy", "adjacency"), "replace-one"), None, 0
    return None


def replayed(proof):
    try:
        return "not replayed" if check(json.dumps(proof).encode()).unreplayed else "accepted"
    except Rejected:
        return "rejected"


def why(kind, genuine, mutant, beyond):
    """Explain why a mutant is accepted."""
    fixed = ("claim", "record", "moments") if genuine["claim"]["perturbed"] == "statistics" else STATEMENT
    if all(genuine.get(part) == mutant.get(part) for part in fixed):
        return "same", ""
    far = beyond is not None and replayed(beyond) == "accepted"
    if far and kind in UNUSED:
        return "unused", ""
    found = broken(mutant)
    return ("unexplained", found) if found else ("true" if far or beyond is None else "slack", "")


def proofs():
    for name in dp.problems():
        try:
            template = dp.load(name, features=2)
        except dp.TemplateError:
            template = dp.load(name)
        for promise, mechanism in WAYS:
            try:
                proof = json.loads(dp.verify(template, promise, 1000, mechanism).proof)
            except dp.NotPrivate:
                continue
            if replayed(proof) == "accepted":
                yield f"{name}, {promise}, {type(mechanism).__name__}", proof


def main(arguments=None):
    options = chosen(__doc__, arguments, {"--count": 10_000, "--seed": 0, "--seconds": math.inf}, count=20)
    end = time.monotonic() + options.seconds
    rng, genuine, done = np.random.default_rng(options.seed), list(islice(proofs(), 3 if options.small else None)), 0
    said, reasons, slack = defaultdict(Counter), defaultdict(Counter), defaultdict(float)
    while done < options.count and time.monotonic() < end:
        name, proof = genuine[rng.integers(len(genuine))]
        mutation = mutate(proof, rng)
        if mutation is None or mutation[1] == proof:
            continue
        kind, mutant, beyond, share = mutation
        done += 1
        word = replayed(mutant)
        said[kind][word] += 1
        if word == "accepted":
            reason, found = why(kind, proof, mutant, beyond)
            reasons[kind][reason] += 1
            if reason == "slack":
                slack[kind] = max(slack[kind], share)
            if reason == "unexplained":
                print("unexplained:", kind, name, share, found, flush=True)
    words, all_reasons = ("rejected", "not replayed", "accepted"), ("same", "unused", "slack", "true", "unexplained")
    print(f"{len(genuine)} proofs\n{'kind':40}", *(f"{word:>12}" for word in (*words, *all_reasons, "most slack")))
    said["all"], reasons["all"] = sum(said.values(), Counter()), sum(reasons.values(), Counter())
    for kind in sorted(said):
        cells = [*(said[kind][word] for word in words), *(reasons[kind][word] for word in all_reasons)]
        print(f"{kind:40}", *(f"{cell or '':>12}" for cell in cells), f"{slack[kind] or '':>12.3}")
    return int(reasons["all"]["unexplained"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
