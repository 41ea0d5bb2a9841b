"""An attack on what a proof claims, which shares no line with the checker: slopes and Hessians of its graph by JAX, at records
and parameters at random, and what they come to in the inequalities of mechanisms, in floating point.
"""

import json
import math
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtr

jax.config.update("jax_enable_x64", True)


def number(value):
    return float.fromhex(value) if isinstance(value, str) else float(value)


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

    def norm(node, a, args):
        return jnp.linalg.norm(a, number(node["p"]) if node.get("p", "inf") != "inf" else math.inf)

    def rearranged(node, args):
        return jnp.concatenate(args)[np.array(node["places"])]

    operations = {
        "constant": lambda node, args: jnp.array([number(value) for value in node["value"]]),
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
        "norm": over(norm),
    }
    operations |= {"huber": huber, "declared": declared}
    entrywise = {"neg_log_normcdf": lambda m: -jax.scipy.special.log_ndtr(m)}
    entrywise |= {"abs": jnp.abs, "negate": jnp.negative, "logistic": jax.nn.softplus, "exp": jnp.exp, "log": jnp.log}
    operations |= {op: lambda node, args, f=f: f(args[0]) for op, f in entrywise.items()}

    def values(roots, theta, z):
        known = {}

        def value(k):
            if k not in known:
                node, op = nodes[k], nodes[k]["op"]
                args = [value(a) for a in node.get("args", [])]
                if op == "variable":
                    known[k] = theta[spots[k]]
                elif op == "field":
                    known[k] = z[fields[node["field"]]]
                else:
                    known[k] = operations.get(op, rearranged)(node, args)
            return known[k]

        return jnp.concatenate([value(k) for k in roots])

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
    """Draw parameters in K, as many as are found."""
    scales = rng.choice((0, 0.01, 0.1, 1, 10, 1000), (400, 1))
    draws = rng.normal(size=(400, p)) * scales
    draws[::4] = np.abs(draws[::4]) / np.maximum(np.abs(draws[::4]).sum(axis=1, keepdims=True), 1e-9)
    draws[1::8] = np.sort(draws[1::8])
    z = jnp.zeros(10**4)
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
    return np.resize(kept, (count if len(kept) else 0, p))


def profile(epsilon, shift):
    return ndtr(shift / 2 - epsilon / shift) - math.exp(epsilon) * ndtr(-shift / 2 - epsilon / shift)


@lru_cache(1000)
def observed(text, curved):
    """Return slopes of records (by parameters, records and coordinates), Hessians, and those of the regularizer."""
    proof, rng = json.loads(text), np.random.default_rng(0)
    value, weights = evaluator(proof)
    unit = 1 / np.sqrt(weights)
    theta, z = points(proof, value, len(weights), rng), jnp.asarray(records(proof, rng, 12))
    pull = jax.jacrev(lambda t, z: value(proof["losses"], t, z))  # one row for each label
    slopes = np.nan_to_num(jax.vmap(lambda t: jax.vmap(lambda r: pull(t, r))(z))(theta)) * unit
    slopes = slopes.reshape(len(theta), slopes.size // max(len(theta) * len(weights), 1), len(weights))
    if not curved or not len(theta):
        return slopes, None, None
    public = jax.vmap(jax.hessian(lambda t: value([proof["regularizer"]], t, jnp.zeros(10**4))[0]))(theta)
    public = np.asarray(public)[np.isfinite(public).all(axis=(1, 2))] * np.outer(unit, unit)
    bend = np.nan_to_num(jax.vmap(lambda t: jax.vmap(lambda r: jax.jacfwd(pull)(t, r))(z))(theta))
    return slopes, bend.reshape(*slopes.shape, -1) * np.outer(unit, unit), public


def broken(proof):
    """Attack a statement: return what is found to be false of it, in words; nothing otherwise."""
    claim, settings = proof["claim"], proof["claim"]["settings"]
    if claim["perturbed"] == "queries":  # whatever the graph is
        epsilon, delta = (number(claim["privacy"][name]) for name in ("epsilon", "delta"))
        found = profile(epsilon, max(number(settings["level"]), 1 / number(claim["noise_scale"])))
        return "" if found <= delta * (1 + 1e-9) else f"delta is {found:.9g}"
    cover = claim["cover"]
    kind, replaced = claim["perturbed"], claim["privacy"]["adjacency"] == "replace-one"
    side, scale = math.sqrt(claim["noise_dimension"]), number(claim["noise_scale"])
    epsilon, delta = (number(claim["privacy"][name]) - number(cover[name]) for name in ("epsilon", "delta"))
    epsilon -= number(cover["counting"])
    apart, cost, room = number(claim["sensitivity"]), 0.0, 1 + 1e-9
    if kind != "statistics":
        graph = json.dumps({part: proof[part] for part in ("nodes", "record", "losses", "regularizer", "constraints")})
        try:
            slopes, bend, public = observed(graph, kind in ("objective", "output"))
        except (TypeError, ValueError) as error:  # nothing rests on the graph where all gradients are clipped
            return "" if kind == "gradients" else f"a graph that nobody can evaluate: {error}"
        if not len(slopes):
            return ""  # no parameters are found that the constraints allow
        mu, clip = number(proof["modulus"]), number(settings.get("clip", 0)) or math.inf
        side, length = math.sqrt(slopes.shape[2]), np.linalg.norm(slopes, axis=2)
        slopes, length = slopes * np.minimum(1, clip / np.maximum(length, 1e-300))[:, :, None], np.minimum(length, clip)
        moves = np.linalg.norm(slopes[:, :, None] - slopes[:, None], axis=3) if replaced else length[:, :, None]
        if length.max() > number(claim["gradient_bound"]) * room or moves.max() > apart * room:
            return f"gradients of {length.max():.9g}, {moves.max():.9g} apart"
        if np.linalg.matrix_rank(slopes[0], 1e-9) > claim["noise_dimension"]:
            return "gradients in more dimensions than the noise"
        apart = moves.max()
        if kind in ("objective", "output"):
            lowest = np.linalg.eigvalsh(bend).min()
            strong = np.linalg.eigvalsh(public).min(initial=math.inf) * claim["size"] + number(claim["added"])
            if lowest < -1e-7 * (1 + abs(bend).max()) or strong < mu * (1 - 1e-6):
                return f"a loss bends down by {lowest:.9g}, or the modulus is {strong:.9g}"
            curved = np.linalg.slogdet(np.eye(slopes.shape[2]) + bend / mu)[1]
            cost = (moves / scale + curved[:, :, None]).max() if kind == "objective" else 0.0
            apart = apart / mu if kind == "output" else apart
        elif kind == "gradients":
            apart *= math.sqrt(number(settings["steps"]))
    shift = apart / scale
    tau, step, grid = (number(cover[name]) for name in ("distance", "step", "scale"))
    if "Gaussian" in cover["noise"]:
        kept = profile(number(cover["epsilon"]), (2 * tau / step + side) / grid) <= number(cover["delta"]) * (1 + 1e-3)
    else:
        kept = math.floor(2 * tau * side / step + side**2) <= number(cover["epsilon"]) * grid * room
    if not kept or tau < number(claim["tolerance"]):
        return "the cover is too small"
    if kind == "objective" and claim["noise"] != "gaussian":
        return "" if cost <= epsilon * room and delta >= 0 else f"the noise costs {cost:.9g} of {epsilon:.9g}"
    if claim["noise"] == "gaussian":
        return "" if profile(epsilon, max(shift, 1e-6)) <= delta * room else f"delta is {profile(epsilon, shift):.9g}"
    return "" if shift <= epsilon * room and delta >= 0 else f"the noise costs {shift:.9g} of {epsilon:.9g}"
