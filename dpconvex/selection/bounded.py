"""Private bounds in constraints: add noise that only tightens them; solving with the noisy bounds is post-processing."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from dpconvex.accounting.budget import Budget, charge
from dpconvex.certificates.bound_certificate import BoundCertificate, bound_certificate
from dpconvex.data.record import Sealed
from dpconvex.data.validation import DURATIONS, real_array
from dpconvex.errors import DomainError, NotConverged, NotPrivate, shown
from dpconvex.expressions.discipline import monotonicity
from dpconvex.expressions.from_cvxpy import Reader
from dpconvex.fitting.release import Release
from dpconvex.model.privacy import Privacy, calibration, check_privacy
from dpconvex.noise.samplers import NoiseSource
from dpconvex.util.arguments import COUNT, POSITIVE, TEXT, instance, number, refuse, require
from dpconvex.util.arrays import Array, frozen
from dpconvex.util.runtime import quietly


class PrivateBound(Sealed):
    """Declare a private bound in the constraints of a public problem, such as a capacity that depends on people's data.

    Write `parameter` into the constraints.  Pass values to `solve_bounded` only, which first tightens them by noise (A. Muñoz
    Medina, U. Syed, S. Vassilvitskii, E. Vitercik, "Private optimization without constraint violations", 2021; docs/theory.md,
    section 19).

    Parameters
    ----------
    name, shape : str, and int or tuple of int
        Name and shape of the parameter and of the noisy values in a release; () for a single number.
    sensitivity : float
        Public bound on the change by one person: the sum of absolute changes of all entries between neighbours, for any data.
    minimum : array_like
        Public lower bound on each value, for any data; a number or an array of the shape.

    Attributes
    ----------
    parameter : cvxpy.Parameter
        It holds only public and noisy values; it is declared non-negative if the minimum is.

    Examples
    --------
    >>> capacity = PrivateBound("capacity", shape=2, sensitivity=1.0, minimum=[0.0, 5.0])
    >>> print(cp.Variable(2, name="x") <= capacity.parameter)
    x <= capacity
    """

    def __init__(
        self, name: str, shape: int | tuple[int, ...] = (), *, sensitivity: float, minimum: ArrayLike = 0.0
    ) -> None:
        TEXT.check("PrivateBound", name=name)
        axes = shape if isinstance(shape, tuple) else (shape,)
        COUNT.check("PrivateBound", **{f"axis {k} of the shape": count for k, count in enumerate(axes)})
        number(POSITIVE.wanted, lambda value: 1e-250 < value < 1e250).check("PrivateBound", sensitivity=sensitivity)
        self.name, self.shape, self.sensitivity = name, tuple(int(n) for n in axes), float(sensitivity)
        least = np.array(np.nan)
        with suppress(TypeError, ValueError):
            least = np.array(np.broadcast_to(np.asarray(minimum, dtype=float), self.shape))
        require(np.isfinite(least).all(), f"PrivateBound: the minimum must be finite numbers of shape {self.shape}.")
        self.minimum: Array = frozen(least)  # the problem must be feasible here
        self.size = int(least.size)
        self.parameter: Any = cp.Parameter(self.shape, name=name, nonneg=bool((least >= 0).all()))
        self._sealed = True

    def __repr__(self) -> str:
        return f"PrivateBound({self.name!r}, {self.shape}, sensitivity {self.sensitivity:g})"


@quietly
def verify_bounded(
    problem: Any, bounds: Sequence[PrivateBound], privacy: Privacy, *, solver: str | None = None
) -> BoundCertificate:
    """Prove that a problem can be solved privately for all values of its private bounds, or raise `NotPrivate`.

    Parameters
    ----------
    problem : cvxpy.Problem
        Convex by CVXPY's rules, and public except the bounds.  With all bounds at their minimum it must have an answer.
    bounds : sequence of PrivateBound
        The bounds in its constraints.  They may not stand in equations, nor where a lower value allows more.  They share the
        guarantee.
    privacy : Privacy
        It needs a delta, because bounded noise does.
    solver : str, optional
        As for ``problem.solve``.
    """
    return verified_program("verify_bounded", problem, bounds, privacy, solver)[1]


@quietly
def solve_bounded(
    problem: Any,
    values: Mapping[PrivateBound, ArrayLike],
    privacy: Privacy,
    *,
    solver: str | None = None,
    budget: Budget | None = None,
    entry: str = "solve_bounded",
    seed: int | None = None,
) -> Release:
    """Solve a problem with private bounds, tightened by noise; the answer satisfies the true bounds.

    The release holds the variables and, under their names, the noisy bounds.  The bounds' parameters keep the noisy values, so
    further problems with the same bounds cost nothing.

    Parameters
    ----------
    values : mapping of PrivateBound to array_like
        The true bounds, in their declared shapes.
    problem, privacy, solver
        As for `verify_bounded`.
    budget, entry, seed
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
    instance(Mapping, "such as {room: [60.0, 80.0]}").check("solve_bounded", values=values)
    program, certificate = verified_program("solve_bounded", problem, list(values), privacy, solver)
    for bound in program.bounds:
        check_types(bound, values[bound])
    source = NoiseSource(seed)
    charge(budget, privacy, entry)
    true = {bound.name: (in_domain(bound, values[bound]), bound.minimum) for bound in program.bounds}
    noisy = {name: noise.tighten(*true[name], source.seeded) for name, noise in certificate.noises.items()}
    return Release({**program.solve(noisy, solver), **noisy}, certificate, **source.spending(privacy))


# Fractions to move towards the anchor, tried in order: a solver violates constraints by about its tolerance.
MOVES = (0.0, *(2.0**-k for k in range(50, -1, -1)))


class BoundedProgram:
    """A convex problem whose feasible set shrinks as private bounds fall.  Solvers see only public and noisy values."""

    def __init__(self, problem: Any, bounds: Sequence[PrivateBound]) -> None:
        self.bounds = tuple(bounds) if isinstance(bounds, Iterable) else (bounds,)
        fits = all(isinstance(bound, PrivateBound) for bound in self.bounds) and self.bounds
        require(fits, f"expected PrivateBounds of the problem, and at least one, not {bounds!r}.")
        known = {parameter.id: parameter for parameter in problem.parameters()}
        lost = (bound.name for bound in self.bounds if known.pop(bound.parameter.id, None) is None)
        refuse(f"the private bound {name!r} is not in the problem, or is given twice." for name in lost)
        unset = (parameter.name() for parameter in known.values() if parameter.value is None)
        refuse(f"{name!r} is no private bound and has no value; give it one." for name in unset)
        require(not problem.is_mixed_integer(), "integer variables cannot be moved into private bounds; use real ones.")
        if not problem.is_dcp():
            raise NotPrivate("CVXPY's rules do not show that the problem is convex", problem, "see problem.is_dcp()")
        self.objective, self.constraints = problem.objective, list(problem.constraints)
        self.variables = sorted(problem.variables(), key=lambda variable: variable.id)
        names = [variable.name() for variable in self.variables] + [bound.name for bound in self.bounds]
        twice = (name for name in names if names.count(name) > 1)  # the release could not hold both
        refuse(f"two variables or bounds are called {name!r}; give each a name of its own." for name in twice)
        self.limits = [violation_of(constraint) for constraint in self.constraints if self.mentioned(constraint)]
        self.anchor: list[Array] = []
        self.allowed = 0.0

    def mentioned(self, expression: Any) -> list[PrivateBound]:
        found = {id(parameter) for parameter in expression.parameters()}
        return [bound for bound in self.bounds if id(bound.parameter) in found]

    def check_signs(self) -> None:
        """Raise unless the rules prove, for every occurrence of a bound, that lowering it shrinks the feasible set."""
        for bound in self.mentioned(self.objective):
            why = f"the objective mentions the private bound {bound.name!r}, and would be another one after the noise"
            raise NotPrivate(why, self.objective.args[0], "keep the objective public; bounds stand in constraints")
        for variable in self.variables:
            ends = variable.attributes.get("bounds") or ()
            if any(isinstance(end, cp.Expression) and self.mentioned(end) for end in ends):
                raise NotPrivate("an attribute mentions a private bound", variable, "write it as a constraint")
        reader = Reader([bound.parameter for bound in self.bounds])
        for constraint in self.constraints:
            beyond = violation_of(constraint)
            for bound in self.mentioned(constraint):
                core = None if beyond is None else reader.expression(beyond, "a constraint")
                if core is None or monotonicity(core, reader.fields[id(bound.parameter)]) not in (-1, None):
                    why = f"the private bound {bound.name!r} stands where nothing proves that lowering it allows less"
                    remedy = "write it where raising it allows more, such as A @ x <= bound.parameter"
                    raise NotPrivate(why, constraint, remedy)

    def prepare(self, solver: str | None) -> None:
        """Find an anchor: the point with most room where all bounds are at their minimum, feasible for all values; or raise."""
        least = {bound.name: bound.minimum for bound in self.bounds}
        status = self.attempt(least, solver)
        why = f"the problem has no answer where every private bound is at its minimum (status: {status})"
        require(status == cp.OPTIMAL, f"{why}. Raise the minimum, if it holds for all data, or price violations.")
        self.anchor, self.allowed = self.point(), max(self.violation(), 0.0)
        room = cp.Variable(name="room")
        public = [constraint for constraint in self.constraints if not self.mentioned(constraint)]
        tightened = [beyond + room <= 0 for beyond in self.limits]
        self.attempt(least, solver, cp.Problem(cp.Maximize(room), [*public, *tightened, room <= 1]))
        if all(variable.value is not None for variable in self.variables) and self.violation() <= self.allowed:
            self.anchor, self.allowed = self.point(), max(self.violation(), 0.0)
        said = "a constraint is infinite where private bounds are at their minimum; raise that."
        require(np.isfinite(self.allowed), said)

    def attempt(self, values: Mapping[str, Array], solver: str | None, problem: Any = None) -> str:
        """Solve the problem, or another one in its variables, at values of the bounds; return the status."""
        for bound in self.bounds:
            bound.parameter.value = values[bound.name]
        for variable in self.variables:
            variable.save_value(None)
        problem = problem or cp.Problem(self.objective, self.constraints)
        try:
            problem.solve(solver=solver, ignore_dpp=True)
        except (cp.SolverError, ValueError, ArithmeticError) as error:
            return f"{type(error).__name__}: {error}"
        return str(problem.status)

    def solve(self, values: Mapping[str, Array], solver: str | None) -> dict[str, Array]:
        """Return the answer at noisy values, moved towards the anchor until it violates bounds no more than the anchor does."""
        status = self.attempt(values, solver)
        paid = "The noisy bounds are paid for, and are the parameters' values now: solve the problem again, with other settings."
        if status != cp.OPTIMAL:
            raise NotConverged(f"the problem was not solved at the noisy bounds (status: {status}). {paid}")
        answer = self.point()
        for move in MOVES:
            for variable, here, there in zip(self.variables, answer, self.anchor, strict=True):
                variable.save_value((1 - move) * here + move * there)
            if self.violation() <= self.allowed:
                return {variable.name(): np.array(variable.value, dtype=float) for variable in self.variables}
        raise NotConverged(f"no answer was found that keeps the noisy bounds. {paid}")

    def point(self) -> list[Array]:
        return [np.asarray(variable.project(np.asarray(variable.value, dtype=float))) for variable in self.variables]

    def violation(self) -> float:
        """Return the largest computed violation of a bound by the variables' values; at most 0 if there is none."""
        with np.errstate(all="ignore"):
            found = max(float(np.max(beyond.value)) for beyond in self.limits)
        return found if not np.isnan(found) else np.inf


def violation_of(constraint: Any) -> Any:
    kind, args = type(constraint).__name__, constraint.args
    if kind == "Inequality":
        return args[0] - args[1]
    return args[0] if kind == "NonPos" else -args[0] if kind == "NonNeg" else None


def verified_program(
    caller: str, problem: Any, bounds: Sequence[PrivateBound], privacy: Privacy, solver: str | None
) -> tuple[BoundedProgram, BoundCertificate]:
    check_privacy(caller, privacy)
    instance(cp.Problem).check(caller, problem=problem)
    program = BoundedProgram(problem, bounds)
    program.check_signs()
    facts = {bound.name: (bound.sensitivity, bound.size) for bound in program.bounds}
    texts = [str(constraint) for constraint in program.constraints if program.mentioned(constraint)]
    with calibration(privacy):
        certificate = bound_certificate(privacy, facts, texts)  # a refusal comes before the solver
    program.prepare(solver)
    return program, replace(certificate, allowed=program.allowed)


def check_types(bound: PrivateBound, given: Any) -> None:
    """Raise, before any charge, if the shape or type of values cannot be that of the bound; entries are not compared."""
    shape = np.shape(given)
    require(shape == bound.shape, f"solve_bounded: {bound.name!r} has values of shape {shape}, not {bound.shape}.")
    typed = np.asarray(given) if isinstance(given, list | tuple | str | bytes) else given
    kind = getattr(getattr(typed, "dtype", None), "kind", "O")
    objects = typed.flat if isinstance(typed, np.ndarray) and kind == "O" else ()
    wrong = isinstance(given, np.ma.MaskedArray) or any(isinstance(value, DURATIONS) for value in objects)
    said = f"solve_bounded: the values of {bound.name!r} must be numbers, not {shown(given)}."
    require(kind in "biufO" and not wrong, said)


def in_domain(bound: PrivateBound, value: ArrayLike) -> Array:
    found = np.array(real_array(bound.name, value), dtype=float)
    finite = found.shape == bound.shape and np.isfinite(found).all()
    require(finite, f"{bound.name}: expected {bound.shape} finite numbers.", DomainError)
    below, why = np.argwhere(found < bound.minimum).tolist(), "lies below the declared minimum; nothing is released"
    refuse((f"{bound.name}: the value at {place} {why}." for place in below), DomainError)
    return found
