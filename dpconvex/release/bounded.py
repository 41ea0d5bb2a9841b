"""Private data in constraints: bounds are tightened by noise, once, and what any solver makes of these costs nothing more."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpconvex.core.arrays import Array, quietly
from dpconvex.errors import DomainError, TemplateError
from dpconvex.language.privacy import Privacy, check_privacy, computable
from dpconvex.language.private_bound import BoundedProgram, PrivateBound
from dpconvex.language.validation import DURATIONS, numbers
from dpconvex.mechanisms.bound_certificate import BoundCertificate, bound_certificate
from dpconvex.noise.samplers import NoiseSource
from dpconvex.release.budget import Budget, pay
from dpconvex.release.release import Release


@quietly
def verify_bounded(
    problem: Any, bounds: Sequence[PrivateBound], privacy: Privacy, *, solver: str | None = None
) -> BoundCertificate:
    """Prove that a problem can be solved privately for all values of its private bounds, or raise `NotPrivate` and say why not.

    Parameters
    ----------
    problem : cvxpy.Problem
        Convex by CVXPY's rules; public but for the bounds.  With all of them at their minimum it must have an answer.
    bounds : sequence of PrivateBound
        Those that its constraints mention, not in equations, nor where lowering one might allow more.  They share the promise.
    privacy : Privacy
        With a delta: noise that never exceeds a bound needs one.
    solver : str, optional
        As for ``problem.solve``.
    """
    return proved(problem, bounds, privacy, solver)[1]


@quietly
def solve_bounded(
    problem: Any,
    values: Mapping[PrivateBound, ArrayLike],
    privacy: Privacy,
    *,
    solver: str | None = None,
    budget: Budget | None = None,
    label: str = "solve_bounded",
    seed: int | None = None,
) -> Release:
    """Solve a problem whose private bounds are tightened by noise, so that its answer keeps the true ones.

    The release holds the variables, and the noisy bounds under their names.  The bounds' parameters keep the noisy values, so
    that further problems with the same bounds can be solved at no cost.

    Parameters
    ----------
    values : mapping of PrivateBound to array_like
        The true bounds, in the shapes that were declared.
    problem, privacy, solver
        As for `verify_bounded`.
    budget, label, seed
        As for `solve`.

    Examples
    --------
    >>> import cvxpy as cp
    >>> import dpconvex as dp
    >>> room = dp.PrivateBound("room", shape=2, sensitivity=1.0, minimum=0.0)
    >>> x = cp.Variable(2, nonneg=True, name="x")
    >>> problem = cp.Problem(cp.Maximize(cp.sum(x)), [x <= room.parameter, cp.sum(x) <= 100])
    >>> release = dp.solve_bounded(problem, {room: [60.0, 80.0]}, dp.Privacy(epsilon=1, delta=1e-6))
    >>> bool((release["x"] <= [60.0, 80.0]).all()), bool((release["room"] <= [60.0, 80.0]).all())
    (True, True)
    """
    if not isinstance(values, Mapping):
        raise TemplateError("solve_bounded: values must map PrivateBounds to numbers, such as {room: [60.0, 80.0]}.")
    program, certificate = proved(problem, list(values), privacy, solver)
    for bound in program.bounds:
        check_types(bound, values[bound])
    source = NoiseSource(seed)
    pay(budget, privacy, label)
    true = {bound.name: (in_domain(bound, values[bound]), bound.minimum) for bound in program.bounds}
    noisy = {name: noise.tighten(*true[name], source.seeded) for name, noise in certificate.noises.items()}
    return Release({**program.solve(noisy, solver), **noisy}, certificate, **source.spending(privacy))


def proved(
    problem: Any, bounds: Sequence[PrivateBound], privacy: Privacy, solver: str | None
) -> tuple[BoundedProgram, BoundCertificate]:
    check_privacy("solve_bounded", privacy)
    program = BoundedProgram(problem, bounds)
    program.check_signs()
    facts = {bound.name: (bound.sensitivity, bound.size) for bound in program.bounds}
    texts = [str(constraint) for constraint in program.constraints if program.mentioned(constraint)]
    with computable(privacy):
        certificate = bound_certificate(privacy, facts, texts, 0.0)  # a refusal comes before the solver
    program.prepare(solver)
    return program, replace(certificate, allowed=program.allowed)


def check_types(bound: PrivateBound, given: Any) -> None:
    """Refuse what shapes and types tell to be no values; of what is no array nor a list, nothing more is looked at."""
    if np.shape(given) != bound.shape:
        raise TemplateError(f"solve_bounded: {bound.name!r} has values of shape {np.shape(given)}, not {bound.shape}.")
    typed = np.asarray(given) if isinstance(given, list | tuple | str | bytes) else given
    kind = getattr(getattr(typed, "dtype", None), "kind", "O")
    objects = typed.flat if isinstance(typed, np.ndarray) and kind == "O" else ()
    masked = isinstance(given, np.ma.MaskedArray)
    if kind not in "biufO" or masked or any(isinstance(value, DURATIONS) for value in objects):
        raise TemplateError(f"solve_bounded: the values of {bound.name!r} must be numbers, not {given!r}.")


def in_domain(bound: PrivateBound, value: ArrayLike) -> Array:
    found = np.array(numbers(bound.name, value), dtype=float)
    if found.shape != bound.shape or not np.isfinite(found).all():
        raise DomainError(f"{bound.name}: expected {bound.shape} finite numbers.")
    for place in np.argwhere(found < bound.minimum).tolist():
        raise DomainError(f"{bound.name}: the value at {place} lies below the declared minimum; nothing is released.")
    return found
