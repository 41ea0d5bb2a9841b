"""Reads a user's CVXPY trees, once, into trees of the toolkit's own.

Everything after this point sees only what is built here: atoms of exactly the types in `ATOMS` (a subclass is another function
than its parent), real finite constants that nobody can change any more, arguments of entrywise atoms repeated to one shape,
quadratic forms as sums of squares, fresh variables.  What CVXPY decides by an absolute tolerance (whether a matrix is positive
semidefinite, whether a number is real) is decided here instead.  What cannot be read exactly is refused, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.affine import binary_operators as binary, wraps
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.broadcast_to import broadcast_to
from cvxpy.atoms.affine.concatenate import Concatenate
from cvxpy.atoms.affine.conj import conj
from cvxpy.atoms.affine.conv import conv, convolve
from cvxpy.atoms.affine.cumsum import cumsum
from cvxpy.atoms.affine.diag import diag_mat, diag_vec
from cvxpy.atoms.affine.hstack import Hstack
from cvxpy.atoms.affine.index import index, special_index
from cvxpy.atoms.affine.kron import kron
from cvxpy.atoms.affine.promote import Promote
from cvxpy.atoms.affine.real import real
from cvxpy.atoms.affine.reshape import reshape
from cvxpy.atoms.affine.sum import Sum
from cvxpy.atoms.affine.trace import Trace
from cvxpy.atoms.affine.transpose import transpose
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.atoms.affine.upper_tri import upper_tri
from cvxpy.atoms.affine.vstack import Vstack
from cvxpy.atoms.elementwise.log1p import log1p
from cvxpy.atoms.elementwise.power import Power, PowerApprox
from cvxpy.atoms.lambda_max import lambda_max
from cvxpy.atoms.norm_nuc import normNuc
from cvxpy.atoms.pnorm import Pnorm, PnormApprox
from cvxpy.atoms.quad_form import QuadForm
from cvxpy.atoms.quad_over_lin import quad_over_lin
from cvxpy.atoms.sigma_max import sigma_max
from cvxpy.constraints.exponential import ExpCone
from cvxpy.constraints.nonpos import Inequality, NonNeg, NonPos
from cvxpy.constraints.power import PowCone3D
from cvxpy.constraints.psd import PSD
from cvxpy.constraints.second_order import SOC
from cvxpy.constraints.zero import Equality, Zero
from numpy.typing import NDArray

from dpconvex.core.declared_atoms import DeclaredAtom
from dpconvex.errors import FUNCTIONS, MissingRule, NotPrivate, TemplateError

__all__ = ["WHOLE_LINE", "Reader", "rebuilt", "twin"]

Array = NDArray[np.float64]
Build = Callable[[Any, list[Any]], Any]

UNIT = float(np.finfo(float).eps)
# CVXPY defines these powers on the whole line, and every other one only for arguments that are not negative.
WHOLE_LINE = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


def from_data(node: Any, arguments: list[Any]) -> Any:
    """Build an atom of the same type from its arguments and a copy of its options."""
    return type(node)(*arguments, *deepcopy(node.get_data() or []))


def over_an_axis(node: Any, arguments: list[Any]) -> Any:
    """Build a reduction; CVXPY's own copies of some norms forget `keepdims`."""
    return type(node)(*arguments, axis=node.axis, keepdims=node.keepdims)


def of_parts(node: Any, arguments: list[Any]) -> Any:
    """Build an entrywise atom of several arguments, each repeated to the atom's shape unless it is a single number."""
    return type(node)(*(repeated(argument, node.shape) for argument in arguments))


def total(node: Any, arguments: list[Any]) -> Any:
    """Build a sum, whose constructor takes a list."""
    return AddExpression([repeated(argument, node.shape) for argument in arguments])


def powered(node: Any, arguments: list[Any]) -> Any:
    """Build a power with a public exponent."""
    return type(node)(arguments[0], number(node.p), node.max_denom)


def hubered(node: Any, arguments: list[Any]) -> Any:
    """Build a Huber function with a public threshold."""
    return cp.huber(arguments[0], number(node.M))


def normed(node: Any, arguments: list[Any]) -> Any:
    """Build a norm; an order below 1 makes none."""
    if not float(node.original_p) >= 1:
        raise MissingRule("p-norms have a rule for p >= 1", node, "use another norm")
    return type(node)(arguments[0], node.original_p, node.axis, node.keepdims, node.max_denom)


def shifted_log(node: Any, arguments: list[Any]) -> Any:
    """Write log1p(m) as log(1 + m), so that one rule and one domain serve both."""
    return cp.log(1.0 + arguments[0])


def divided_squares(node: Any, arguments: list[Any]) -> Any:
    """Build a sum of squares over a divisor, which must be positive if it is a number."""
    divisor = arguments[1]
    if isinstance(divisor, cp.Constant) and not float(np.min(divisor.value)) > 0:
        raise NotPrivate("squares are divided by a number that is not positive", node, "divide by a positive number")
    return over_an_axis(node, arguments)


def quadratic_form(node: Any, arguments: list[Any]) -> Any:
    """Write a quadratic form with a constant matrix as plus or minus a sum of squares: convex, or concave, as it stands.

    Raises
    ------
    NotPrivate
        If the matrix has eigenvalues of both signs, and CVXPY takes the form for convex or concave all the same: its tolerance is
        absolute, and users may assert what is not so.
    """
    inner, matrix = arguments
    if not isinstance(matrix, cp.Constant) or not inner.variables():
        return QuadForm(inner, matrix)
    found = square_root(np.asarray(matrix.value.toarray() if sp.issparse(matrix.value) else matrix.value))
    if found is None and not (node.is_atom_convex() or node.is_atom_concave()):
        return QuadForm(inner, matrix)  # refused where convexity is asked for, with the place
    if found is None:
        raise NotPrivate("the matrix of a quadratic form is not positive semidefinite", node, "use a convex quadratic")
    sign, root = found
    vector = inner if inner.ndim == 1 else cp.reshape(inner, (inner.size,), order="F")
    squares: Any = cp.sum_squares(sealed(frozen(root)) @ vector)
    result = squares if sign > 0 else -squares
    return result if result.shape == node.shape else cp.reshape(result, node.shape, order="F")


def square_root(matrix: Array) -> tuple[int, Array] | None:
    """Return s and R with ``s R'R`` the symmetric part of a matrix that is semidefinite but for the rounding of its entries.

    None if it has eigenvalues of both signs, however small the numbers in it are.
    """
    diagonal = np.diag(matrix)
    apart = bool((matrix == np.diag(diagonal)).all())
    values, vectors = (diagonal, np.eye(len(diagonal))) if apart else np.linalg.eigh(matrix / 2 + matrix.T / 2)
    sign = 1 if values.max(initial=0.0) >= -values.min(initial=0.0) else -1
    rounding = 0.0 if apart else 8 * len(values) * UNIT * float(np.abs(values).max(initial=0.0))
    if (sign * values < -rounding).any():
        return None
    kept = sign * values > 0
    return sign, np.asarray((vectors[:, kept] * np.sqrt(np.abs(values[kept]))).T)


def declared(node: Any, arguments: list[Any]) -> Any:
    """Build a user's own atom."""
    return DeclaredAtom(arguments[0], node.declaration)


def table(*groups: tuple[Build, tuple[type, ...]]) -> dict[type, Build]:
    """Map each type to the function that builds it."""
    return {kind: build for build, kinds in groups for kind in kinds}


# How each atom is built from its arguments.  Only these types can be read; a type stands for itself, not for its subclasses.
ATOMS: dict[type, Build] = table(
    (
        from_data,
        (
            *(index, special_index, reshape, transpose, diag_vec, diag_mat, upper_tri, Promote, broadcast_to),
            *(Hstack, Vstack, Concatenate, real, conj, NegExpression, Trace, conv, convolve, cumsum, kron),
            *(wraps.nonneg_wrap, wraps.nonpos_wrap, wraps.psd_wrap, wraps.nsd_wrap, wraps.symmetric_wrap),
            *(binary.MulExpression, cp.exp, cp.log, cp.entr, cp.logistic, cp.abs),
            *(lambda_max, sigma_max, normNuc, cp.log_det, cp.sum_largest),
        ),
    ),
    (total, (AddExpression,)),
    (of_parts, (binary.multiply, binary.DivExpression, cp.maximum, cp.minimum, cp.kl_div, cp.rel_entr)),
    (over_an_axis, (Sum, cp.log_sum_exp, cp.max, cp.min, cp.norm1, cp.norm_inf)),
    (powered, (Power, PowerApprox)),
    (hubered, (cp.huber,)),
    (normed, (Pnorm, PnormApprox)),
    (shifted_log, (log1p,)),
    (divided_squares, (quad_over_lin,)),
    (quadratic_form, (QuadForm,)),
    (declared, (DeclaredAtom,)),
)

# Options of atoms that may be expressions.
OPTIONS = {"p": "the exponent of a power", "M": "the threshold of huber"}

# Constraints whose meaning is a closed convex set for convex (concave, affine) arguments.
CONSTRAINTS: tuple[type, ...] = (PSD, Equality, Zero, Inequality, NonPos, NonNeg, SOC, ExpCone, PowCone3D)


class Reader:
    """Reads the trees of one template.

    Parameters
    ----------
    fields : iterable of cvxpy.Parameter
        The record's symbols; every other parameter is a public number.
    """

    def __init__(self, fields: Iterable[cp.Parameter]) -> None:
        self.fields = {id(field): field for field in fields}
        self.variables: dict[int, cp.Variable] = {}
        self._memory: dict[int, tuple[Any, Any]] = {}  # the originals are kept, so that their ids stay their own
        self._what, self._root = "the expression", None

    def declare(self, roots: Iterable[Any]) -> None:
        """Make a fresh variable for each that occurs, in the order in which the user made them."""
        found = {variable.id: variable for root in roots for variable in root.variables()}
        self.variables = {key: twin(found[key], key) for key in sorted(found)}

    def expression(self, root: Any, what: str) -> cp.Expression:
        """Return the tree of the toolkit's own for an expression; errors call it `what`.

        Raises
        ------
        MissingRule
            If an atom is not one of `ATOMS`.
        NotPrivate
            If a constant is not finite or not real, or an option depends on the record.
        """
        self._what, self._root = what, root
        return self._known(root)

    def _known(self, node: Any) -> Any:
        """Read a node, once."""
        known = self._memory.get(id(node))
        if known is None:
            known = self._memory[id(node)] = (node, self._read(node))
        return known[1]

    def constraint(self, node: Any) -> cp.Constraint:
        """Return the toolkit's own copy of a constraint, its sides of one shape."""
        if type(node) not in CONSTRAINTS:
            raise NotPrivate(
                f"{type(node).__name__} is not a constraint that is known to make a closed convex set",
                node,
                "state it by equations, inequalities between convex and concave expressions, cones or semidefinite bounds",
            )
        self._what, self._root = "a constraint", node
        arguments = [self._known(argument) for argument in node.args]
        if type(node) in (Equality, Inequality):
            shape = np.broadcast_shapes(*(argument.shape for argument in arguments))
            return type(node)(*(repeated(argument, shape) for argument in arguments))
        return type(node)(*arguments, *public_options(node))

    def _read(self, node: Any) -> Any:
        if isinstance(node, cp.Variable):
            return self.variables[node.id]
        if isinstance(node, cp.Parameter):
            return self.fields[id(node)] if id(node) in self.fields else self._public(node)
        if isinstance(node, cp.Constant):
            return self._constant(node.value, node)
        arguments = [self._known(argument) for argument in node.args]
        # The repetition of a number stays one: rules look for single factors.
        if type(node) not in (Promote, broadcast_to) and all(isinstance(a, cp.Constant) for a in arguments):
            return self._constant(node.numeric([argument.value for argument in arguments]), node)
        for name, what in OPTIONS.items():
            option = getattr(node, name, None)
            if isinstance(option, cp.Expression) and any(id(field) in self.fields for field in option.parameters()):
                raise MissingRule(f"{what} depends on the record", node, "use a constant")
        return rebuilt(node, arguments)

    def _public(self, node: cp.Parameter) -> cp.Constant:
        """Read a parameter that is no field of the record: a public number, as it is now."""
        if node.value is None:
            raise NotPrivate(
                f"{self._what} mentions the parameter {node.name()!r}, which is not a field of this record and has no value",
                self._root,
                "declare it as a field of the record, or give the parameter its public value before the template is made",
            )
        return self._constant(node.value, node)

    def _constant(self, value: Any, node: Any) -> cp.Constant:
        """Return a number or an array as a constant of the toolkit's own.

        Raises
        ------
        NotPrivate
            If a number in it is not finite, or has an imaginary part, however small.
        """
        entries = value.data if sp.issparse(value) else np.asarray(value)
        if np.iscomplexobj(entries):
            if np.imag(entries).any():
                raise NotPrivate(
                    f"{self._what} contains a complex number",
                    node,
                    "write real and imaginary parts apart, with real constants",
                )
            value = value.real
        try:
            copy = frozen(value, node.shape)
        except (TypeError, ValueError) as error:
            raise TemplateError(f"{self._what} contains a constant that is not made of numbers ({error}).") from error
        if not np.isfinite(copy.data if sp.issparse(copy) else copy).all():
            raise NotPrivate(
                f"{self._what} contains a number that is not finite",
                node,
                "use finite constants; check where it came from",
            )
        return sealed(copy)


def rebuilt(node: Any, arguments: list[Any]) -> Any:
    """Return an atom of a node's exact type with other arguments of the same shapes.

    Raises
    ------
    MissingRule
        If the type is not one of `ATOMS`.
    """
    build = ATOMS.get(type(node))
    if build is None:
        name = type(node).__name__
        raise MissingRule(
            f"there is no rule for the atom {FUNCTIONS.get(name, name)}",
            node,
            "write it with atoms that have rules (see docs/rules.md), or register a rule for this one",
        )
    result = build(node, arguments)
    if result.shape != node.shape:
        raise TemplateError(f"{node} was read with the shape {result.shape} instead of {node.shape}.")
    return result


def repeated(argument: Any, shape: tuple[int, ...]) -> Any:
    """Repeat an argument to a shape, as NumPy would; a single number stays one, the atoms repeat it by themselves."""
    return argument if argument.size == 1 or argument.shape == shape else broadcast_to(argument, shape)


def frozen(value: Any, shape: tuple[int, ...] | None = None) -> Any:
    """Return a copy in double precision that cannot be written to, of the given shape if it is dense."""
    if sp.issparse(value):
        matrix = sp.csc_array(value, dtype=float, copy=True)
        matrix.sum_duplicates()
        for part in (matrix.data, matrix.indices, matrix.indptr):
            part.setflags(write=False)
        return matrix
    array = np.array(value, dtype=float)
    array = array if shape is None else array.reshape(shape, order="F")
    array.setflags(write=False)
    return array


def sealed(value: Any) -> cp.Constant:
    """Return a constant whose entries cannot be written to (CVXPY makes its own copy of them)."""
    result = cp.Constant(value)
    if isinstance(result.value, np.ndarray):
        result.value.setflags(write=False)
    return result


def number(option: Any) -> float:
    """Return an option of an atom, which may be a public parameter, as a number."""
    return float(np.asarray(option.value if isinstance(option, cp.Expression) else option))


def public_options(node: Any) -> list[Any]:
    """Return a copy of a constraint's options, which come after its arguments."""
    if isinstance(node, SOC):
        return [node.axis]
    return [frozen(node.alpha.value)] if isinstance(node, PowCone3D) else []


def twin(variable: cp.Variable, number: int | None = None) -> cp.Variable:
    """Return a new variable with the name, the shape and copies of the attributes of another, under a number or a new one."""
    attributes = {k: v for k, v in variable.attributes.items() if v is not None and v is not False}
    if "bounds" in attributes:
        attributes["bounds"] = [bound_of(bound, variable) for bound in attributes["bounds"]]
    return cp.Variable(variable.shape, name=variable.name(), var_id=number, **deepcopy(attributes))


def bound_of(bound: Any, variable: cp.Variable) -> Any:
    """Return a variable's bound as numbers (infinite ones are none)."""
    value = bound.value if isinstance(bound, cp.Expression) else bound
    if value is None:
        raise TemplateError(f"variable {variable.name()!r}: its bounds must be numbers, not {bound}.")
    return np.array(value, dtype=float)
