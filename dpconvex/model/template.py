"""Private learners: a record, a loss for one record, a public regularizer and public constraints."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from inspect import Parameter, signature
from types import SimpleNamespace
from typing import Any, Self

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import softmax

from dpconvex.data.domains import Domain
from dpconvex.data.record import Record, Sealed
from dpconvex.errors import DPConvexError, TemplateError
from dpconvex.expressions.atoms.powers import DECLARED
from dpconvex.expressions.evaluate import evaluations
from dpconvex.expressions.expression import Constraint, Expression, Variable, postorder
from dpconvex.expressions.from_cvxpy import Reader
from dpconvex.expressions.parameter_space import Space
from dpconvex.expressions.to_cvxpy import variable_like
from dpconvex.model.batch_program import perturbed_program, problem_parts
from dpconvex.util.arguments import NOT_AN_ARRAY, POSITIVE, Kind, instance, number, require
from dpconvex.util.arrays import Array

Predict = Callable[..., NDArray[Any]]  # of the parameters, the features, and further fields by name


def further_fields(function: Predict | str | None, given: Container[str] = ()) -> tuple[str, ...]:
    """Return the arguments after x of a function of (parameters, x, ...) that have no default, or are among the given fields."""
    kinds = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
    named = (one for one in arguments_of(function)[1:] if one.kind in kinds)
    return tuple(one.name for one in named if one.default is Parameter.empty or one.name in given)


def arguments_of(function: Predict | str | None) -> list[Parameter]:
    """Return the arguments of a function of (parameters, x, ...) from x on; none if it has no signature."""
    while isinstance(function, partial) and function.func in (best_labels, softmax_of):
        function = function.args[0]
    with suppress(TypeError, ValueError):
        return list(signature(function).parameters.values())[1:] if callable(function) else []
    return []


def best_labels(
    decision: Predict, names: NDArray[Any], parameters: Mapping[str, Array], x: Array, **fields: Any
) -> NDArray[Any]:
    """Return the labels that scores predict: the second for a score above 0, or the label of the largest score."""
    scores = np.asarray(decision(parameters, x, **fields))
    if scores.shape[1:] not in ((len(names),), () if len(names) == 2 else None):
        raise TemplateError(f"predict: a decision must score {len(names)} labels, not have shape {scores.shape}.")
    return names[(scores > 0).astype(int) if scores.ndim == 1 else np.argmax(scores, axis=1)]


def softmax_of(decision: Predict, parameters: Mapping[str, Array], x: Array, **fields: Any) -> NDArray[Any]:
    """Return the softmax of scores, shape (n, labels); for one score per record, of 0 and the score."""
    scores = np.asarray(decision(parameters, x, **fields), dtype=float)
    return np.asarray(softmax(np.stack([0 * scores, scores], 1) if scores.ndim == 1 else scores, axis=1))


def huber_hinge(expr: Any, width: float) -> cp.Expression:
    """Smooth the hinge ``max(m, 0)`` of margin violations m by a parabola on ``|m| <= width``, elementwise.

    With h = `width` it is ``huber(pos(m + h), 2h) / (4h)``: 0 for m < -h, (m + h)²/(4h) for -h <= m <= h, m for m > h; convex, at
    most h/4 above the hinge, with slopes from 0 to 1 and curvature 1/(2h) for -h < m < h.  Of m = 1 - z, for a margin z that
    should be at least 1, it is the Huber loss of Chaudhuri, Monteleoni and Sarwate (2011), equation 35.

    Parameters
    ----------
    expr : cvxpy.Expression or array_like
        Margin violations.  For a DCP loss it must be convex.
    width : float
        Half the length of the interval of smoothing; positive and finite.

    Examples
    --------
    >>> huber_hinge([-1.0, 0.0, 0.5, 2.0], width=0.5).value
    array([0.   , 0.125, 0.5  , 2.   ])
    """
    number(POSITIVE.wanted, lambda value: 1e-300 < value < 1e300).check("huber_hinge", width=width)
    m, h = expr if isinstance(expr, cp.Expression) else np.asarray(expr, dtype=float), float(width)
    return cp.huber(cp.maximum(m + h, 0), 2 * h) / (4 * h)


class Template(Sealed):
    """Declare a learner that minimises the mean loss plus a regularizer, subject to constraints.

    Parameters
    ----------
    record : Record
        The public domain of one record.
    loss : callable
        ``loss(**fields)`` returns the loss of one record as a scalar CVXPY expression.  Continuous fields arrive as CVXPY
        parameters, discrete fields as plain Python values; `loss` is called once for every combination of these.
    regularizer : cvxpy.Expression or float
        Convex, public; added to the *mean* loss.
    constraints : sequence of cvxpy.Constraint
        Convex, public.  Attributes of variables (``PSD=True``, ``nonneg=True``, ``bounds=...``) count as constraints.  CVXPY
        parameters that are not fields of the record are public numbers, with their current values.
    predict, decision : callable, optional
        NumPy functions of the released parameters and a batch of features.  ``decision(parameters, x)`` returns scores of shape
        (n,), above 0 for the second of two labels, or (n, labels), the largest for the predicted label.  If y is a number, it
        returns predictions.  By default `predict` follows from `decision` and the values of the field y.  Further fields of the
        record, such as a group or an offset, are arguments after x: ``predict(parameters, x, g)``.  Predictions may leave out
        fields with a default value.
    probabilities : callable or "softmax", optional
        ``probabilities(parameters, x)``, with further fields as for `predict`, returns shape (n, labels). "softmax" computes
        probabilities from the scores, as for logistic losses.  If y has a number for each of several intervals, they are the
        probabilities of surviving each interval.
    ratio : str
        Name of `exp` of a coefficient, such as "odds ratio", for the intervals; empty if there is none.
    source : tuple of (str, dict), optional
        Name and options of the problem file that built this template, so that a saved release can find it again.

    Attributes
    ----------
    losses : tuple of Expression
        The loss for each entry of ``record.combinations``, in the core language and in normal form (docs/theory.md, section 2).
    regularizer, constraints, variables
        As read; the variables in the order of their creation.

    Examples
    --------
    >>> from dpconvex.data.domains import Ball, Choice
    >>> w = cp.Variable(3, name="w")
    >>> record = Record(x=Ball(3), y=Choice([-1, 1]))
    >>> len(Template(record, lambda x, y: cp.logistic(-y * (x @ w)), 0.01 * cp.sum_squares(w)).losses)
    2
    """

    # The regularizer without the public terms of the loss, and these terms; None if there are none.
    public_terms: tuple[Expression, Expression] | None = None

    def __init__(
        self,
        record: Record,
        loss: Callable[..., Any],
        regularizer: Any = 0.0,
        constraints: Sequence[cp.Constraint] = (),
        predict: Predict | None = None,
        source: tuple[str, dict[str, Any]] | None = None,
        *,
        decision: Predict | None = None,
        probabilities: Predict | str | None = None,
        ratio: str = "",
    ) -> None:
        instance(Record).check("Template", record=record)
        if probabilities == "softmax" and decision is not None:
            probabilities = partial(softmax_of, decision)
        Kind("a function of the record's fields", callable).check("Template", loss=loss)
        given = {"predict": predict, "decision": decision, "probabilities": probabilities}
        Kind("a function of (parameters, x)", callable).or_none.check("Template", **given)
        for name, function in given.items():
            for field in further_fields(function):
                said = f"Template: {name} needs {field!r}, and the record's fields are {', '.join(record.fields)}."
                require(field in record.fields, f"{said} Give it a default value.")
        constraints = list(constraints) if isinstance(constraints, Iterable) else [constraints]
        for constraint in constraints:
            instance(cp.Constraint).check("Template", constraint=constraint)
        if predict is None and decision is not None:
            y = record.discrete.get("y")
            predict = decision if y is None else partial(best_labels, decision, y.array)
        self.record, self.source, self.ratio = record, source, ratio
        self.predict, self.decision, self.probabilities = predict, decision, probabilities
        roots = {f"loss for {v}" if v else "loss": called(loss, record, v) for v in record.combinations}
        roots["regularizer"] = regularizer
        originals: list[Any] = [*(scalar(name, root) for name, root in roots.items()), *constraints]
        reader = Reader(record.parameters.values())
        reader.declare(originals)
        names = [variable.name for variable in reader.variables.values()]
        for name in names:
            if names.count(name) > 1:  # a release could not tell them apart
                raise TemplateError(f"Template: two variables are called {name!r}; give each its own name.")
        read = [reader.expression(root, f"the {name}") for name, root in zip(roots, originals, strict=False)]
        self.losses: tuple[Expression, ...] = tuple(read[:-1])
        self.regularizer: Expression = read[-1]
        self.constraints: tuple[Constraint, ...] = tuple(reader.constraint(constraint) for constraint in constraints)
        self.variables: tuple[Variable, ...] = tuple(reader.variables.values())
        places = [*roots, *(f"constraint {k + 1}" for k in range(len(constraints)))]
        self.taken = taken_as_public(dict(zip(places, originals, strict=True)), record)
        check_reading(originals, [*read, *self.constraints], record, reader)
        self._sealed = True

    @classmethod
    def from_problem(
        cls, problem: cp.Problem, records: Mapping[cp.Parameter | str, Domain], predict: Predict | None = None
    ) -> Self:
        """Return the template of a problem with an objective that is a sum over the rows of data.

        The data are `cvxpy.Parameter` objects with one row per record; their values are not read.  Their names become the fields
        of the record.  The objective is the mean of the template's losses plus its regularizer.  A term that mixes records
        raises an error that shows it.  Other parameters, and `predict`, are as for `Template`.

        Parameters
        ----------
        problem : cvxpy.Problem
        records : mapping of cvxpy.Parameter or str to Ball, Box or Choice
            For each parameter with data, or its name, the public domain of one row.

        Examples
        --------
        >>> from dpconvex.data.domains import Ball
        >>> X, w = cp.Parameter((100, 3), name="X"), cp.Variable(3, name="w")
        >>> fit = cp.sum(cp.logistic(X @ w)) / 100 + cp.sum_squares(w) / 200
        >>> template = Template.from_problem(cp.Problem(cp.Minimize(fit)), records={X: Ball(3)})
        >>> print(template.losses[0], "|", template.regularizer)
        sum(logistic(X @ w)) | 0.005 * sum_squares(w)
        """
        return cls(**problem_parts(problem, records), predict=predict)

    def problem(
        self,
        data: Mapping[str, Any],
        noise: Mapping[str, Any] | None = None,
        *,
        added: float = 0.0,
        size: float | None = None,
        clip: bool = False,
    ) -> cp.Problem:
        """Return the program over a batch as a `cvxpy.Problem`, to print, to export, or to solve with any solver.

        Its objective is the sum form of docs/theory.md: the sum of the losses, `size` times the regularizer, half of `added`
        times the squared parameters, and the inner product of noise and parameters.  It contains the data.  A solver's answer to
        it is not private, even with noise: only `solve` hides the distance to the exact minimiser.

        Parameters
        ----------
        data, clip
            As for `Record.validate`.
        noise : mapping of str to array_like, optional
            For each variable, by name, an array of its shape; missing variables get no noise.
        added, size : float, optional
            Modulus of the added quadratic, such as a certificate's; public number of records, by default the actual one.

        Examples
        --------
        >>> from dpconvex.data.domains import Box
        >>> m = cp.Variable(name="m")
        >>> template = Template(Record(x=Box(0.0, 1.0)), loss=lambda x: cp.square(m - x))
        >>> round(float(template.problem({"x": [0.0, 1.0, 1.0]}, noise={"m": -2.0}).solve()), 6)
        -1.0
        """
        space, linear = Space(self.variables), {v.name: np.zeros(v.shape) for v in self.variables}
        for name, value in (noise or {}).items():
            if name not in linear or np.shape(value) != linear[name].shape or not np.isfinite(value).all():
                raise TemplateError(f"problem: noise for {name!r} must be finite, with the shape of the variable.")
            linear[name] = np.asarray(value, dtype=float)
        batch = self.record.validate(data, clip=clip)
        parts = {"size": batch.size if size is None else size, "linear": space.pack(linear), "projector": None}
        whole = SimpleNamespace(template=self, space=space, batch=batch, added=added, **parts)
        return perturbed_program(whole, {v.name: variable_like(v) for v in self.variables})

    def with_parts(self, **parts: Any) -> Self:
        """Return a copy with other parts, which must use the variables of this template."""
        result = copy(self)
        result.__dict__.update(parts)
        return result

    def __repr__(self) -> str:
        names = ", ".join(f"{v.name}{list(v.shape)}" for v in self.variables)
        return f"Template({self.record!r}, parameters: {names})"


def taken_as_public(originals: Mapping[str, Any], record: Record) -> str:
    """Return the assumption that all constants of a template are public, with places and shapes of its arrays."""
    places: dict[str, dict[str, None]] = {}
    fields = {id(symbol) for symbol in record.parameters.values()}
    for name, root in originals.items():
        here = places.setdefault(name.split(" for ")[0], {})
        leaves = [leaf for leaf in (*root.constants(), *root.parameters()) if id(leaf) not in fields]
        here |= dict.fromkeys(str(list(leaf.shape)) for leaf in leaves if leaf.size > 1)
        for variable in root.variables():  # CVXPY converts a number to an array, too
            sides = [np.asarray(side) for side in variable.attributes.get("bounds") or () if len(np.unique(side)) > 1]
            places.setdefault(f"the bounds of {variable.name()}", dict.fromkeys(str(list(s.shape)) for s in sides))
    said = "; ".join(f"{', '.join(shapes)} in {place}" for place, shapes in places.items() if shapes)
    arrays = f"arrays of shape {said}" if said else "it contains no arrays"
    return f"Taken as public: domains and all numbers that the template declares; {arrays}."


def called(loss: Callable[..., Any], record: Record, values: Mapping[str, Any]) -> Any:
    try:
        return loss(**{name: record.parameters.get(name, values.get(name)) for name in record.fields})
    except DPConvexError:
        raise
    except Exception as error:
        if isinstance(error, TypeError) and f"{getattr(loss, '__name__', '')}() " in str(error):
            fields = ", ".join(record.fields)
            raise TemplateError(f"Template: loss must accept the record's fields ({fields}): {error}.") from error
        if any(text in str(error) for text in ("truth value of a constraint", "Strict inequalities")):
            why = "the loss compares symbols, as max(0, z) and `if x[0] > 0` do"
            rules = "for max(0, z) write cvxpy.pos(z) or dpconvex.huber_hinge(z, width), for max cvxpy.maximum(a, b)"
            raise TemplateError(f"Template: {why}; {rules}. Only fields with a Choice can be compared.") from error
        rules = "apply CVXPY's functions, with matching shapes; only fields with a Choice have values"
        error.add_note(f"dpconvex: raised by the loss of a Template. Continuous fields are symbols: {rules}.")
        raise


def scalar(what: str, value: Any) -> cp.Expression:
    expression: Any = None
    with suppress(*NOT_AN_ARRAY):
        expression = None if value is None else cp.Expression.cast_to_const(value)
    if not isinstance(expression, cp.Expression) or not expression.is_scalar():
        found = f"has shape {expression.shape}" if hasattr(expression, "shape") else f"is {value!r:.60}"
        raise TemplateError(f"Template: the {what} must be a scalar, a CVXPY expression, but it {found}.")
    return expression


# Check of the reading: expressions as read have the values that CVXPY computes of the user's expressions, at public points.

# READING is the largest difference, relative to the largest number of the computation. With more than FEW expressions, such as
# those of many labels, one point for each is enough.
READING, FEW = 1e-9, 32


def check_reading(originals: Sequence[Any], read: Sequence[Any], record: Record, reader: Reader) -> None:
    rng, pairs = np.random.default_rng(0), list[tuple[Any, Expression]]()
    variables = {reader.variables[v.id]: v for root in originals for v in root.variables()}
    for original, own in zip(originals, read, strict=True):
        args, theirs = ([own], [original]) if isinstance(own, Expression) else (own.args, original.args)
        if len(theirs) < len(args):  # CVXPY compares one argument with zero
            args = args[-1:] if type(original).__name__ == "NonNeg" else args[:1]
        # Values of declared atoms have one source on both sides.
        pairs += [p for p in zip(theirs, args, strict=True) if all(n.atom is not DECLARED for n in postorder([p[1]]))]
    for positive in (False, True) if len(pairs) <= FEW else (False,):
        fields = record.sample(1, rng).fields
        leaves: dict[Expression, Any] = {field: fields[field.name][0] for field in reader.fields.values()}
        leaves |= {own: public_point(variable, rng, positive) for own, variable in variables.items()}
        ours, known = evaluations([own for _, own in pairs], leaves), dict[int, Array]()
        for original, own in pairs:
            one, (two, size) = cvxpy_value(original, reader, leaves, known), ours[own]
            with np.errstate(invalid="ignore"):  # both are infinite outside the domain
                apart = np.abs(one - two)
            if (np.isfinite(one) & ~(apart <= READING * size)).any():
                why = f"read as an expression with other values ({np.nanmax(apart):.3g} apart)"
                raise TemplateError(f"Template: {original} was {why}. Please report this, and write it in another way.")


def cvxpy_value(node: Any, reader: Reader, leaves: Mapping[Expression, Any], known: dict[int, Array]) -> Array:
    """Return CVXPY's value of a tree at `leaves`, NaN if there is none; no variables are set, and nodes are computed once."""
    if id(node) not in known:
        values = [cvxpy_value(argument, reader, leaves, known) for argument in node.args]
        read = reader.known(node)
        value: Any = np.full(node.shape, np.nan) if values else leaves.get(read, node.value)
        if values and not odd(node, read, values):
            with suppress(ValueError, TypeError, ArithmeticError, np.linalg.LinAlgError), np.errstate(all="ignore"):
                value = node.numeric(values)
        known[id(node)] = np.asarray(value.toarray() if sp.issparse(value) else value)
    return known[id(node)]


def odd(node: Any, read: Expression, values: list[Any]) -> bool:
    """Return whether CVXPY's value is meaningless: for matrices that are not symmetric, and norms of a rounded order."""
    pairs = zip(read.atom.domain(read) if read.atom is not None else (), values, strict=False)
    skew = any(want in ("symmetric", "semidefinite") and not np.array_equal(v, v.T) for want, v in pairs)
    return skew or (hasattr(node, "original_p") and float(node.original_p) != float(node.p))


def public_point(variable: cp.Variable, rng: np.random.Generator, positive: bool) -> Array:
    value, has = rng.normal(size=variable.shape), variable.attributes
    if has["PSD"] or has["NSD"] or (positive and has["symmetric"]):
        value = value @ value.T * (-1 if has["NSD"] else 1)
    elif positive or any(has[name] for name in ("nonneg", "nonpos", "pos", "neg")):
        value = np.abs(value) * (-1 if has["nonpos"] or has["neg"] else 1)
    projected = variable.project(value)
    return np.real(projected.toarray() if sp.issparse(projected) else projected)  # a diagonal matrix is sparse
