"""Converts CVXPY expressions and constraints exactly to core expressions, or raises."""

from collections.abc import Iterable
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from dpconvex.errors import MissingRule, NotPrivate, TemplateError
from dpconvex.expressions.atoms import ATOMS
from dpconvex.expressions.atoms.arrangement import broadcast_all, reshape, vec
from dpconvex.expressions.atoms.norms import sum_squares
from dpconvex.expressions.expression import Constraint, Expression, Field, Variable, constant
from dpconvex.expressions.rewriting import normal_form
from dpconvex.numerics import EPSILON
from dpconvex.util.arrays import Array, frozen

READERS: dict[str, Any] = {}
for _atom in ATOMS.values():
    if isinstance(_atom.from_cvxpy, str):
        READERS[_atom.from_cvxpy] = lambda node, args, atom=_atom: atom(*args)
    else:
        READERS.update(_atom.from_cvxpy)
# A real array is its own real part and conjugate; attributes that wrappers assert are ignored.
WRAPS = [f"affine.wraps.{name}_wrap" for name in ("nonneg", "nonpos", "psd", "nsd", "symmetric")]
ITSELF = ["affine.real.real", "affine.conj.conj", *WRAPS]

# Options of atoms that may be expressions.
OPTIONS = {"p": "the exponent of a power", "M": "the threshold of huber"}
REWRITE = "write it with atoms that have rules (see docs/rules.md), or register a rule for this one"


# Squared diagonal of the matrix in cp.log_normcdf's approximation by squares, to recognise it.
NORMCDF = [0.02301291, 0.08070214, 0.16411522, 0.09003495, 0.08200854, 0.01371543, 0.04641081]
PROBIT = "write dp.log_normcdf, which is exact"


class Reader:
    """Converts CVXPY expressions and constraints that share variables; each node is converted once.

    >>> w, x = cp.Variable(2, name="w"), cp.Parameter(2, name="x")
    >>> print(Reader([x]).known(cp.sum_squares(w) / 2 + cp.pos(1 - x @ w)))
    sum_squares(w) / 2 + pos(1 - x @ w)
    """

    def __init__(self, fields: Iterable[cp.Parameter]) -> None:
        self.fields = {id(symbol): field_of(symbol) for symbol in fields}
        self.variables: dict[int, Variable] = {}
        self._memory: dict[int, tuple[Any, Expression]] = {}  # keeping the originals keeps their ids unique
        self._what: str = "the expression"
        self._root: Any = None

    def declare(self, roots: Iterable[Any]) -> None:
        """Convert the variables of the expressions, in the order in which the user created them."""
        found = {variable.id: variable for root in roots for variable in root.variables()}
        self.variables = {key: variable_of(found[key]) for key in sorted(found)}

    def expression(self, root: Any, what: str) -> Expression:
        """Convert a CVXPY expression; errors call it `what`."""
        self._what, self._root = what, root
        return self.known(root)

    def known(self, node: Any) -> Expression:
        if id(node) not in self._memory:
            self._memory[id(node)] = (node, self._read(node))
        return self._memory[id(node)][1]

    def _read(self, node: Any) -> Expression:
        if isinstance(node, cp.Variable):
            return self.variables.setdefault(node.id, variable_of(node))
        if isinstance(node, cp.Parameter):
            return self.fields[id(node)] if id(node) in self.fields else self._public(node)
        if isinstance(node, cp.Constant):
            return self._number(node.value, node)
        arguments = [self.known(argument) for argument in node.args]
        for name, what in OPTIONS.items():
            option = getattr(node, name, None)
            if isinstance(option, cp.Expression) and any(id(symbol) in self.fields for symbol in option.parameters()):
                raise MissingRule(f"{what} depends on the record", node, "use a constant")
        result = normal_form(self._atom(node, arguments))
        if result.shape != node.shape:
            raise TemplateError(f"{node} was read with the shape {result.shape} instead of {node.shape}.")
        return result

    def _atom(self, node: Any, arguments: list[Expression]) -> Expression:
        kind = f"{type(node).__module__}.{type(node).__qualname__}".removeprefix("cvxpy.atoms.")
        if kind in ITSELF:
            return arguments[0]
        if kind == "quad_form.QuadForm":
            return quadratic_form(node, arguments[0], arguments[1], self._what)
        if kind not in READERS:
            raise MissingRule(f"there is no rule for the atom {type(node).__name__}", node, REWRITE)
        try:
            return READERS[kind](node, arguments)
        except ValueError as error:
            raise MissingRule(str(error), node, REWRITE) from error

    def _public(self, node: cp.Parameter) -> Expression:
        """Return the current value of a CVXPY parameter that is not a field of the record, as a constant."""
        if node.value is None:
            why = f"mentions the parameter {node.name()!r}, which is not a field of this record and has no value"
            remedy = "declare it as a field of the record, or give the parameter its public value before the template is made"
            raise NotPrivate(f"{self._what} {why}", self._root, remedy)
        return self._number(node.value, node)

    def _number(self, value: Any, node: Any) -> Expression:
        entries = value.data if sp.issparse(value) else np.asarray(value)
        if sp.issparse(value) and value.shape == (7, 7) and np.allclose(np.square(value.diagonal()), NORMCDF, atol=0):
            raise MissingRule("cp.log_normcdf is an approximation by squares, with unbounded slopes", None, PROBIT)
        if np.iscomplexobj(entries):
            if np.imag(entries).any():
                remedy = "write real and imaginary parts apart, with real constants"
                raise NotPrivate(f"{self._what} contains a complex number", node, remedy)
            value = value.real
        try:
            array = value if sp.issparse(value) else np.array(value, dtype=float).reshape(node.shape, order="F")
        except (TypeError, ValueError) as error:
            raise TemplateError(f"{self._what} contains a constant that is not made of numbers ({error}).") from error
        if not np.isfinite(array.data if sp.issparse(array) else array).all():
            raise NotPrivate(f"{self._what} contains a number that is not finite", node, "use finite constants")
        return constant(array)

    def constraint(self, node: Any) -> Constraint:
        self._what, self._root = "a constraint", node
        name = f"{type(node).__module__}.{type(node).__qualname__}".removeprefix("cvxpy.constraints.")
        if name not in CONSTRAINTS:
            why = f"{type(node).__name__} is not known to define a closed convex set"
            remedy = (
                "state it by equations, inequalities of convex expressions (cp.exp, cp.power), or semidefinite bounds"
            )
            raise NotPrivate(why, node, remedy)
        kind, arguments = CONSTRAINTS[name], [self.known(argument) for argument in node.args]
        if kind in ("equality", "inequality"):  # a single argument is compared with zero
            sides = arguments if len(arguments) == 2 else [*arguments, constant(0.0)]
            return Constraint(kind, tuple(broadcast_all(*(sides[::-1] if name == "nonpos.NonNeg" else sides))))
        return Constraint(kind, tuple(arguments), (int(node.axis),) if kind == "second-order cone" else ())


# Constraints that define a closed convex set if their arguments are convex, concave or affine, as required.
CONSTRAINTS = {
    "zero.Equality": "equality",
    "zero.Zero": "equality",
    "nonpos.Inequality": "inequality",
    "nonpos.NonPos": "inequality",
    "nonpos.NonNeg": "inequality",
    "psd.PSD": "semidefinite",
    "second_order.SOC": "second-order cone",
}


def field_of(symbol: cp.Parameter) -> Field:
    sign = 1 if symbol.is_nonneg() else -1 if symbol.is_nonpos() else 0
    return Field.of(symbol.shape, symbol.name(), symbol.id, sign)


def variable_of(variable: cp.Variable) -> Variable:
    attributes = dict(variable.attributes)
    if attributes["bounds"] is not None:
        attributes["bounds"] = tuple(bound_of(bound, variable) for bound in attributes["bounds"])
    return Variable.of(variable.shape, variable.name(), variable.id, attributes)


def bound_of(bound: Any, variable: cp.Variable) -> Array:
    value = bound.value if isinstance(bound, cp.Expression) else bound
    if value is None:
        raise TemplateError(f"variable {variable.name()!r}: its bounds must be numbers, not {bound}.")
    return frozen(np.asarray(value, dtype=float))


def quadratic_form(node: Any, inner: Expression, matrix: Expression, what: str) -> Expression:
    """Return a quadratic form with a constant matrix as plus or minus a sum of squares. Raise if eigenvalues have both signs."""
    if not inner.variables:
        return reshape(vec(inner) @ (matrix @ vec(inner)), node.shape)
    if not matrix.is_constant:
        raise MissingRule("the matrix of a quadratic form depends on the record", node, "write it as a sum of squares")
    found = square_root(matrix.number)
    if found is None:
        why = f"{what} is not convex: the matrix of a quadratic form has a negative eigenvalue"
        raise NotPrivate(why, node, "use a positive semidefinite matrix")
    sign, root = found
    squares = sum_squares(constant(root) @ vec(inner))
    return reshape(squares if sign > 0 else -squares, node.shape)


def square_root(matrix: Array) -> tuple[int, Array] | None:
    """Return s and R such that ``s R'R`` is the matrix's symmetric part, up to rounding; None if eigenvalues have both signs."""
    values, vectors, rounding = np.diag(matrix), np.eye(len(matrix)), 0.0
    if (matrix != np.diag(values)).any():
        values, vectors = np.linalg.eigh(matrix / 2 + matrix.T / 2)
        rounding = 8 * len(values) * EPSILON * float(np.abs(values).max())
    sign = 1 if values.max(initial=0.0) >= -values.min(initial=0.0) else -1
    if (sign * values < -rounding).any():
        return None
    kept = sign * values > 0
    return sign, np.asarray((vectors[:, kept] * np.sqrt(np.abs(values[kept]))).T)
