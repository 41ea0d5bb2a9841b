"""For data's owners: how far a computed answer is from the exact one, found again from the data (docs/checking.md)."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cache, partial
from math import fsum, isfinite, nan, prod
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from scipy.special import expit, huber, logsumexp, softmax

from dpconvex.checker.expansion import Template, linear
from dpconvex.checker.reading import Rejected, Unreplayed, number, parsed
from dpconvex.core.arrays import Array
from dpconvex.errors import TemplateError
from dpconvex.language.batch import Batch
from dpconvex.language.columns import dense
from dpconvex.release.whitening import whitened
from dpconvex.solvers.distance import Composite, at_point
from dpconvex.solvers.problem import Problem

SECRET = "This was computed from the data and the noise. It is not private: it stays with the data."
Minimised = tuple[Problem, Array, float]  # the objective without records, the computed answer, and its tolerance
LATEST: ContextVar[tuple[Minimised, ...] | None] = ContextVar("rechecking", default=None)  # secret
KEPT: WeakKeyDictionary[Any, Minimised] = WeakKeyDictionary()  # secret, and of each release


@contextmanager
def rechecking() -> Iterator[None]:
    """Within this context, fits keep what `Release.recheck` needs, in this process, as long as their release is there."""
    token = LATEST.set(())
    try:
        yield
    finally:
        LATEST.reset(token)


def note(problem: Problem, theta: Array, tolerance: float) -> None:
    """Note what was minimised, if that is asked for."""
    if LATEST.get() is not None:
        LATEST.set(((replace(problem, batch=Batch({}, np.zeros(0, dtype=np.int64))), theta, tolerance),))


def keep(release: Any) -> None:
    """Keep for a release what was noted."""
    for minimised in LATEST.get() or ():
        KEPT[release] = minimised
        LATEST.set(())


class Recheck(NamedTuple):
    """What was found, which is not private; the gradient (its norm) is that of what is smooth in the objective."""

    said: str
    records: int = 0
    gradient: float = nan
    distance: float = nan
    tolerance: float = nan
    confirmed: bool = False


def recheck(release: Any, data: Mapping[str, Any], *, clip: bool = False) -> Recheck:
    """Compute again, from data as for `solve`, how far the answer was from the exact one: not private, for their owner."""
    if not getattr(release.certificate, "minimises", True):
        return Recheck("Not rechecked: the mechanism takes no minimiser of these data.")
    if release.certificate.privacy.keep is not None:
        return Recheck("Not rechecked: records were cut or weighted, and which ones is known to the fit alone.")
    if release not in KEPT:
        raise TemplateError("recheck: its noise is not known here, only of what a fit in `dp.rechecking()` returns.")
    problem, theta, tolerance = KEPT[release]
    batch = problem.template.record.validate(data, clip=clip, empty=True)
    problem = replace(problem, batch=batch if release.whitening is None else whitened(batch, release.whitening))
    composite, mu = Composite(problem), problem.strong_convexity
    bend = mu if composite.is_smooth else composite.curvature_at(theta)
    try:
        if not (problem.feasible.has_projection and problem.kinks.epigraph is None and isfinite(bend)):
            raise Unreplayed("constraints or nonsmooth terms of the regularizer have no projection in closed form")
        slopes = gradient(problem, parsed(release.certificate.proof or b""), theta)
    except (Rejected, Unreplayed) as error:
        return Recheck(f"Not rechecked: {error}.")
    # Where f bends by L at most, a step of length 1/L shrinks the distance by 1 - mu/L: that is at most L/mu times the step.
    step = float(np.linalg.norm(theta - composite.proximal(theta - slopes / bend, 1 / bend)))
    far = bend * (step + composite.proximal_error(theta, slopes, bend)) + composite.gradient_error(theta, slopes)
    distance = min(far / mu, at_point(composite, theta, nan, slopes).distance_bound)
    said = "Confirmed" if distance <= tolerance else "NOT CONFIRMED"
    said += f" by {batch.size} records: within {distance:.3g} of the exact answer, guaranteed {tolerance:.3g}. {SECRET}"
    return Recheck(said, batch.size, float(np.linalg.norm(slopes)), distance, tolerance, distance <= tolerance)


def gradient(problem: Problem, proof: Any, theta: Array) -> Array:
    """Return the gradient of what is smooth: of a regularizer with kinks, as fits compute it, for it is public."""
    graph, batch = Template(proof), problem.batch
    lengths = np.sqrt([float(weight) for weight in graph.weights])  # An entry of a symmetric matrix may stand twice
    units = np.column_stack([np.eye(len(theta) + 1, len(theta)), [*theta / lengths, 1.0]])
    fitted = problem.loss.regularizer_value_and_gradient(theta, problem.smooth_part)[1]
    regular = fitted if problem.kinks.terms else slopes_of(graph, proof["regularizer"], [], units) / lengths
    parts = [np.asarray(problem.linear), problem.added * theta, problem.size * regular]
    for k, *fields in zip(batch.group, *(dense(batch.fields[name]) for name in proof["record"]), strict=True):
        record = [x for value in fields for x in value.ravel(order="F").tolist()]
        parts.append(slopes_of(graph, proof["losses"][k], record, units) / lengths)
    return np.array([fsum(part) for part in np.transpose(parts)])


def slopes_of(graph: Template, root: int, z: list[float], units: Array) -> Array:
    """Return the gradient of a number of the graph; entries are slopes and, last, a value, as `units` are of coordinates."""

    @cache
    def entries(k: int) -> list[Array]:
        node, groups = graph.nodes[k], graph.nodes[k].options.get("groups", [])
        if node.entries is not None:
            terms = [[(c, prod([z[j] for j in m], start=float(a))) for (c, m), a in e.items()] for e in node.entries]
            return [sum((factor * units[c] for c, factor in entry), 0 * units[0]) for entry in terms]
        args, given = [graph.nodes[a] for a in node.args], [entries(a) for a in node.args]
        rule = RULES.get(f"{node.name}{node.options.get('p', '')}")
        if rule is not None:
            threshold = float(number(node.options.get("M", 0)))
            lines = [[given[0][j] for j in line] + [other[0] for other in given[1:]] for line in groups]
            ruled = [(x, *rule(x[:, -1], threshold)) for x in map(np.array, lines or zip(*given, strict=True))]
            return [np.append(slopes @ x[:, :-1], value) for x, value, slopes in ruled]
        add, scale = partial(np.sum, axis=0), lambda a, by: a * float(by)
        found = linear(node, args, given, add, lambda a, b: a * b[-1] if args[0].varies else b * a[-1], scale)
        if found is None:
            raise Unreplayed(f"there is no rule for {node.name}")
        return found

    return entries(root)[0][:-1]


# Values and slopes of functions, at a kink one of those; quad_over_lin divides by its last argument.
RULES: dict[str, Callable[[Array, float], tuple[Any, Array]]] = {
    "exp": lambda x, _: (np.exp(x), np.exp(x)),
    "huber": lambda x, M: (2 * huber(M, x), 2 * np.clip(x, -M, M)),
    "logistic": lambda x, _: (np.logaddexp(0.0, x), expit(x)),
    "log_sum_exp": lambda x, _: (logsumexp(x), softmax(x)),
    "maximum": lambda x, _: (x.max(), np.eye(len(x))[x.argmax()]),
    "norm2": lambda x, _: (np.linalg.norm(x), x / np.linalg.norm(x)),
    "power2": lambda x, _: (x**2, 2 * x),
    "quad_over_lin": lambda x, _: (x[:-1] @ x[:-1] / x[-1], np.append(2 * x[:-1], -x[:-1] @ x[:-1] / x[-1]) / x[-1]),
}
