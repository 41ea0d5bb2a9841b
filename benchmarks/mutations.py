"""Mutations of proofs: is every claim that is better than what was proved, and every other graph, rejected?

``python -m benchmarks.mutations [--count 10000] [--seed 0]`` prints by kind how many are rejected, not replayed and accepted, and why:

- *same*: the same statement, proved by other witnesses (sums that are released do not rest on the graph);
- *unused*: a number that docs/checking.md names among those that no inequality uses: any other is accepted, too;
- *slack*: far enough in the same direction the number is rejected;
- *true*: another statement.

Statements of the last two kinds are attacked besides: slopes and Hessians of their graph by JAX, at random, and what was found in the
mechanism's inequalities, in floating point.  What breaks is unexplained, and the command fails.
"""

import argparse
import json
import math
from collections import Counter, defaultdict
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtr

import dpconvex as dp
from dpconvex.checker import check
from dpconvex.checker.reading import Rejected

jax.config.update("jax_enable_x64", True)
PURE, DELTA, ADD = dp.Privacy(1.0), dp.Privacy(1.0, 1e-5), dp.Privacy(1.0, 1e-5, "add-remove")
WAYS = [(PURE, None), (DELTA, None), (ADD, None), (PURE, dp.OutputPerturbation()), (DELTA, dp.OutputPerturbation("gaussian"))]
WAYS += [(DELTA, dp.NoisyGradientDescent(clip=0.1, steps=20))]
UNUSED = {"strong_convexity", "hessian_bound", "jacobian_epsilon", "noise_epsilon", "degrees_of_freedom", "nuclear_sensitivity"}
UNUSED |= {f"settings {name}" for name in ("step_size", "largest_step", "momentum", "radius", "rows", "columns")}
UNUSED |= {f"cover {name}" for name in ("noise_cap", "records", "sensitivity", "dimension", "counting")}
UNUSED |= {f"whitening {name}" for name in ("epsilon", "delta", "level", "share", "composed", "features", "radius")}
UP = {"tolerance", "counting", "steps", "clip", "modulus", "radius", "upper", "M", "high", "curvature"}
DOWN = {"epsilon", "delta", "noise_scale", "sensitivity", "gradient_bound", "added", "size", "noise_dimension", "scale"}
DOWN |= {"distance", "step", "sigma", "lower", "low"}
WHOLE = ("size", "noise_dimension", "steps", "rows", "columns", "degrees_of_freedom", "records", "dimension", "features")
# Numbers by part of the proof, and indices by part and keys.
NUMBERS = {"claim": "claim", "claim ": "claim", "claim  ": "claim", "record": "record", "constant": "nodes", "modulus": "modulus"}
NUMBERS |= {"centre": "centres", "length": "lengths"}
INDICES = {"edge": ("nodes", "args"), "entries": ("nodes", "places", "groups"), "shape": ("nodes", "shape")}
INDICES |= {"loss": ("losses",), "regularizer": ("regularizer",), "condition": ("constraints",)}
INDICES |= {"cells": ("cells",), "parts": ("parts",), "layout": ("layout",)}
ROOTS = ("loss", "regularizer", "condition")
OTHERS = ("sign", "operation", "dropped", "norm", "adjacency")
OPERATIONS = ("abs", "negate", "logistic", "huber", "power", "exp", "log"), ("sum", "log_sum_exp", "norm")
OPERATIONS += (("add", "multiply", "divide", "maximum"),)
COUNTS = {"shape", "args", "places", "groups", "dim", "symmetric"}


def number(value):
    return float.fromhex(value) if isinstance(value, str) else float(value)


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
    """Return a kind, the mutant, of a number also a mutant far beyond, and by what share it moved; None if there is no such part."""

    def pick(items):
        return items[rng.integers(len(items))]

    way = pick((*NUMBERS, *INDICES, *OTHERS))
    if way in NUMBERS:
        found = [p for p in places({NUMBERS[way]: proof[NUMBERS[way]]}) if not COUNTS & {*p}]
        if not found:
            return None
        place, share = pick(found), 0.9 * 10 ** rng.uniform(-4, 0)
        words = [key for key in place if isinstance(key, str)]
        kind = " ".join(words[1:]) if way.strip() == "claim" else "modulus" if way == "modulus" else f"{way} {words[-1]}"
        names = {place[-1], *words[1:], *(["modulus"] if way == "modulus" else [])}
        sign = 1 if names & UP else -1 if names & DOWN else pick((-1, 1))
        return kind, moved(proof, place, sign, share), moved(proof, place, sign, 2.0**40), share
    part, *keys = INDICES.get(way, ("nodes", "value"))
    found = places({part: proof[part]}, *keys)
    if way in INDICES and found:
        place = pick(found)
        most = place[1] if way == "edge" else len(proof["nodes"]) if way in ROOTS else at(proof, place) + 2
        return way, changed(proof, place, int(rng.integers(most))), None, 0
    if way == "sign" and found:
        place = pick(found)
        return way, changed(proof, place, (-number(at(proof, place))).hex()), None, 0
    if way == "operation":
        k = pick(range(len(proof["nodes"])))
        others = [g for g in OPERATIONS if proof["nodes"][k]["op"] in g]
        return (way, changed(proof, ("nodes", k, "op"), pick(others[0])), None, 0) if others else None
    if way == "dropped" and proof["constraints"]:
        k = pick(range(len(proof["constraints"])))
        return way, proof | {"constraints": proof["constraints"][:k] + proof["constraints"][k + 1 :]}, None, 0
    fields = [name for name, domain in proof["record"].items() if domain.get("norm") in (1, 2)]
    if way == "norm" and fields:
        return way, changed(proof, ("record", pick(fields), "norm"), pick((2, "inf"))), None, 0
    if way == "adjacency":
        return way, changed(proof, ("claim", "privacy", "adjacency"), "replace-one"), None, 0
    return None


def evaluator(proof):
    """Return a function that evaluates nodes, their entries in column order, and the weights of the coordinates."""
    spots, weights, nodes = {}, [], proof["nodes"]
    ends = np.cumsum([0, *(d.get("dim", len(d.get("lower", ()))) for d in proof["record"].values())])
    fields = {name: slice(*ends[k : k + 2]) for k, name in enumerate(proof["record"])}
    for k, node in enumerate(nodes):
        if node["op"] == "variable":
            index = np.arange(math.prod(node["shape"]))
            if node.get("symmetric"):
                pairs = np.sort(np.divmod(index, node["shape"][0]), axis=0).T
                index = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)
            spots[k] = len(weights) + index
            weights += np.bincount(index).tolist()

    def square(node, args, k):
        return args[k].reshape(nodes[node["args"][k]]["shape"], order="F")

    def huber(node, args):
        m, most = abs(args[0]), number(node.get("M", 1))
        return jnp.where(m < most, m**2, most * (2 * m - most))

    def declared(node, args):
        """Evaluate a function that has these slopes and this curvature."""
        low, high, bend = (number(node[name]) for name in ("low", "high", "curvature"))
        return low * args[0] + (high - low) ** 2 / 4 / bend * jax.nn.softplus(4 * bend / (high - low) * args[0])

    def over(function):
        return lambda node, args: jnp.stack([function(node, args[0][np.array(g)], args) for g in node["groups"]])

    operations = {
        "add": lambda node, args: sum(args[1:], args[0]),
        "multiply": lambda node, args: args[0] * args[1],
        "divide": lambda node, args: args[0] / args[1],
        "matmul": lambda node, args: jnp.matmul(square(node, args, 0), square(node, args, 1)).ravel(order="F"),
        "maximum": lambda node, args: jnp.max(jnp.stack(args), axis=0),
        "power": lambda node, args: args[0] ** int(number(node.get("p", 2))),
        "log_det": lambda node, args: jnp.linalg.slogdet(square(node, args, 0))[1][None],
        "norm_nuc": lambda node, args: jnp.linalg.svd(square(node, args, 0), compute_uv=False).sum()[None],
        "sum": over(lambda node, a, args: jnp.sum(a)),
        "log_sum_exp": over(lambda node, a, args: jax.nn.logsumexp(a)),
        "quad_over_lin": over(lambda node, a, args: jnp.sum(a**2) / args[1][0]),
        "norm": over(lambda node, a, args: jnp.linalg.norm(a, number(node["p"]) if node.get("p", "inf") != "inf" else math.inf)),
    }
    operations |= {"huber": huber, "declared": declared}
    entrywise = {"abs": jnp.abs, "negate": jnp.negative, "logistic": jax.nn.softplus, "exp": jnp.exp, "log": jnp.log}
    operations |= {op: lambda node, args, f=f: f(args[0]) for op, f in entrywise.items()}

    def values(roots, theta, z):
        known = {}

        def value(k):
            if k not in known:
                node, op = nodes[k], nodes[k]["op"]
                if op in ("constant", "variable", "field"):
                    known[k] = constants[k] if op == "constant" else theta[spots[k]] if op == "variable" else z[fields[node["field"]]]
                else:
                    args = [value(a) for a in node["args"]]
                    known[k] = operations[op](node, args) if op in operations else jnp.concatenate(args)[np.array(node["places"])]
            return known[k]

        return jnp.concatenate([value(k) for k in roots])

    constants = {k: np.array([number(v) for v in n["value"]]) for k, n in enumerate(nodes) if n["op"] == "constant"}
    return values, np.array(weights, dtype=float)


def records(proof, rng, count):
    """Draw records, half of them at ends of their domains."""
    parts = []
    for domain in proof["record"].values():
        if "radius" in domain:
            draw, norm = rng.normal(size=(count, domain["dim"])), domain["norm"]
            draw *= np.where(rng.random((count, 1)) < 0.5, rng.random(draw.shape) < 0.5, 1)
            if norm == "inf":
                draw = np.sign(draw)
            size = np.linalg.norm(draw, np.inf if norm == "inf" else norm, axis=1, keepdims=True)
            parts.append(draw / np.maximum(size, 1e-9) * number(domain["radius"]) * rng.choice((1, 1, 0.5), (count, 1)))
        else:
            low, high = (np.array([number(v) for v in domain[name]]) for name in ("lower", "upper"))
            parts.append(low + (high - low) * rng.choice((0, 1, rng.random()), (count, len(low))))
    return np.concatenate(parts, axis=1) if parts else np.zeros((count, 0))


def points(proof, value, p, rng, count=8):
    """Draw parameters in K; anywhere if none is found there."""
    scales = rng.choice((0, 0.01, 0.1, 1, 10, 1000), (400, 1))
    draws = rng.normal(size=(400, p)) * scales
    draws[::4] = np.abs(draws[::4]) / np.maximum(np.abs(draws[::4]).sum(axis=1, keepdims=True), 1e-9)
    draws[1::8] = np.sort(draws[1::8])
    z, kept = jnp.zeros(10**4), []
    inside = np.ones(400, dtype=bool)
    for item in proof["constraints"]:
        first = jax.vmap(lambda t, item=item: value(item["args"][:1], t, z))(draws)
        if item["kind"] == "semidefinite":
            side = math.isqrt(first.shape[1])
            matrices = first.reshape(-1, side, side) if side**2 == first.shape[1] else np.ones((400, 1, 1))
            inside &= np.linalg.eigvalsh(matrices).min(axis=1) >= 0
        else:
            gap = first - jax.vmap(lambda t, item=item: value(item["args"][1:], t, z))(draws)
            inside &= np.asarray((gap <= 0) if item["kind"] == "inequality" else abs(gap) < 1e-12).all(axis=1)
    kept = draws[inside]
    return (kept if len(kept) else draws)[:count]


def profile(epsilon, shift):
    return ndtr(shift / 2 - epsilon / shift) - math.exp(epsilon) * ndtr(-shift / 2 - epsilon / shift)


def broken(proof, rng):
    """Attack a statement: return what is found to be false of it, in words; nothing otherwise."""
    claim, cover, settings = proof["claim"], proof["claim"]["cover"], proof["claim"]["settings"]
    kind, replaced = claim["perturbed"], claim["privacy"]["adjacency"] == "replace-one"
    side, scale = math.sqrt(claim["noise_dimension"]), number(claim["noise_scale"])
    epsilon, delta = (number(claim["privacy"][name]) - number(cover[name]) for name in ("epsilon", "delta"))
    epsilon -= number(cover["counting"])
    apart, cost, room = number(claim["sensitivity"]), 0.0, 1 + 1e-9
    if kind != "statistics":
        value, weights = evaluator(proof)
        side = math.sqrt(len(weights))
        theta = points(proof, value, len(weights), rng)
        unit = 1 / np.sqrt(weights)
        mu, clip = number(proof["modulus"]), number(settings.get("clip", 0)) or math.inf
        z = jnp.asarray(records(proof, rng, 12))
        public = jax.vmap(jax.hessian(lambda t: value([proof["regularizer"]], t, jnp.zeros(10**4))[0]))(theta)
        pull = jax.jacrev(lambda t, z: value(proof["losses"], t, z))  # one row for each label
        slopes = jax.vmap(lambda t: jax.vmap(lambda r: pull(t, r))(z))(theta)
        slopes = np.asarray(slopes).reshape(len(theta), -1, len(weights)) * unit
        slopes = np.nan_to_num(slopes)
        length = np.linalg.norm(slopes, axis=2)
        slopes, length = slopes * np.minimum(1, clip / np.maximum(length, 1e-300))[:, :, None], np.minimum(length, clip)
        moves = np.linalg.norm(slopes[:, :, None] - slopes[:, None], axis=3) if replaced else length[:, :, None]
        if length.max() > number(claim["gradient_bound"]) * room or moves.max() > apart * room:
            return f"gradients of {length.max():.9g}, {moves.max():.9g} apart"
        if np.linalg.matrix_rank(slopes[0], 1e-9) > claim["noise_dimension"]:
            return "gradients in more dimensions than the noise"
        apart = moves.max()
        if kind in ("objective", "output"):
            bend = jax.vmap(lambda t: jax.vmap(lambda r: jax.jacfwd(pull)(t, r))(z))(theta)
            bend = np.nan_to_num(np.asarray(bend).reshape(*slopes.shape, -1) * np.outer(unit, unit))
            lowest = np.linalg.eigvalsh(bend).min(axis=-1)
            strong = np.asarray(public) * np.outer(unit, unit) * claim["size"]
            strong = strong[np.isfinite(strong).all(axis=(1, 2))]
            strong = np.linalg.eigvalsh(strong).min(initial=math.inf) + number(claim["added"])
            if lowest.min() < -1e-7 * (1 + abs(bend).max()) or strong < mu * (1 - 1e-6):
                return f"a loss bends down by {lowest.min():.9g}, or the modulus is {strong:.9g}"
            curved = np.linalg.slogdet(np.eye(len(weights)) + bend / mu)[1]
            cost = (moves / scale + curved[:, :, None]).max() if kind == "objective" else 0.0
            apart = apart / mu if kind == "output" else apart
        elif kind == "gradients":
            apart *= math.sqrt(number(settings["steps"]))
    shift, whitening = apart / scale, claim.get("whitening")
    if whitening:
        shift = math.hypot(shift, number(whitening["sensitivity"]) / number(whitening["sigma"]))
    tau, step, grid = (number(cover[name]) for name in ("distance", "step", "scale"))
    hidden = (2 * tau / step + side) / grid if "Gaussian" in cover["noise"] else (2 * tau * side / step + side**2) / grid
    if "Gaussian" in cover["noise"]:
        kept = profile(number(cover["epsilon"]), hidden) <= number(cover["delta"]) * (1 + 1e-3)
    else:
        kept = math.floor(hidden * grid) <= number(cover["epsilon"]) * grid * room
    if not kept or tau < number(claim["tolerance"]):
        return "the cover is too small"
    if kind == "objective" and claim["noise"] != "gaussian":
        return "" if cost <= epsilon * room and delta >= 0 else f"the noise costs {cost:.9g} of {epsilon:.9g}"
    if claim["noise"] == "gaussian":
        return "" if profile(epsilon, max(shift, 1e-6)) <= delta * room else f"delta is {profile(epsilon, shift):.9g}"
    return "" if shift <= epsilon * room and delta >= 0 else f"the noise costs {shift:.9g} of {epsilon:.9g}"


def replayed(proof):
    """Say what the checker says: in a word, and at which step."""
    try:
        said = check(json.dumps(proof).encode()).unreplayed
        return ("not replayed", said[0]) if said else ("accepted", "")
    except Rejected as step:
        return "rejected", str(step)


def why(kind, genuine, mutant, beyond, rng):
    """Explain why a mutant is accepted."""
    fixed = ("claim", "record") if genuine["claim"]["perturbed"] == "statistics" else STATEMENT
    if all(genuine[part] == mutant[part] for part in fixed):
        return "same", ""
    far = beyond is not None and replayed(beyond)[0] == "accepted"
    if far and kind in UNUSED:
        return "unused", ""
    found = broken(mutant, rng)
    return ("unexplained", found) if found else ("true" if far or beyond is None else "slack", "")


STATEMENT = ("claim", "record", "nodes", "losses", "regularizer", "constraints", "modulus")


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
            if replayed(proof)[0] == "accepted":
                yield f"{name}, {promise}, {type(mechanism).__name__}", proof


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, genuine, done = np.random.default_rng(options.seed), list(proofs()), 0
    said, reasons, slack = defaultdict(Counter), defaultdict(Counter), defaultdict(float)

    while done < options.count:
        name, proof = genuine[rng.integers(len(genuine))]
        mutation = mutate(proof, rng)
        if mutation is None or mutation[1] == proof:
            continue
        kind, mutant, beyond, share = mutation
        done += 1
        word, _ = replayed(mutant)
        said[kind][word] += 1
        if word == "accepted":
            reason, found = why(kind, proof, mutant, beyond, rng)
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
    raise SystemExit(bool(reasons["all"]["unexplained"]))


if __name__ == "__main__":
    main()
