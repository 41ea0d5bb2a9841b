"""What is linear in an expression: as matrices in the coordinates of the parameters, or between the entries of arguments."""

from collections.abc import Mapping

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.atoms.arrangement import reshape
from dpconvex.core.atoms.sums import add, total
from dpconvex.core.expansion import Expander
from dpconvex.core.expression import Expression, Variable, constant
from dpconvex.core.parameter_space import Space
from dpconvex.core.record_domains import Ball, Box
from dpconvex.core.record_scalars import Bases

Array = NDArray[np.float64]


class NoFields:
    """What public expressions know of a record."""

    continuous: Mapping[str, Ball | Box] = {}


def affine_map(expression: Expression, space: Space) -> tuple[sp.csr_array, Array]:
    """Return M and c such that the entries of a public affine expression, in column order, are ``M @ theta + c``."""
    found = Expander(space, Bases(NoFields())).expand(expression)
    # What cancels leaves a coefficient of the size of its error behind.
    kept = np.abs(found.coefficient) > found.error
    moving, fixed = kept & (found.coordinate >= 0), found.coordinate < 0
    matrix = sp.csr_array(
        (found.coefficient[moving], (found.entry[moving], found.coordinate[moving])), shape=(found.size, space.dim)
    )
    kept &= fixed
    offset = np.bincount(found.entry[kept], weights=found.coefficient[kept], minlength=found.size)
    return matrix, np.asarray(offset, dtype=float)


def linear_parts(expression: Expression) -> dict[Expression, sp.csr_array]:
    """Write a public expression as a sum of nonzero matrices times affine expressions and atoms that are not linear.

    >>> from dpconvex.core.atoms.powers import square
    >>> from dpconvex.core.atoms.sums import total
    >>> w = Variable.of((2,), "w", 1)
    >>> for part, matrix in linear_parts(total(3 * square(w) - w)).items():
    ...     print(part, matrix.toarray())
    square(w) [[3. 3.]]
    -w [[1. 1.]]
    """
    found: dict[Expression, sp.csr_array] = {}
    waiting = [(expression, sp.csr_array(sp.eye_array(expression.size)))]
    while waiting:
        node, matrix = waiting.pop()
        matrix.eliminate_zeros()
        if not matrix.nnz:
            continue
        # Only sums and products of numbers with something curved are taken apart.
        if node.is_affine or node.atom is None or not node.atom.keeps_affine(node.args):
            found[node] = found[node] + matrix if node in found else matrix
            continue
        waiting.extend((argument, sp.csr_array(matrix @ own)) for argument, own in reversed(arguments_of(node)))
    return found


def weighted_sum(parts: Mapping[Expression, sp.csr_array]) -> Expression:
    """Return the expression that `linear_parts` took apart, for a scalar."""
    terms = []
    for part, row in parts.items():
        weights = row.toarray()[0]
        if (weights == weights[0]).all():
            whole = reshape(total(part), ())
            terms.append(whole if weights[0] == 1 else float(weights[0]) * whole)
        else:
            terms.append(total(reshape(weights, part.shape) * part))
    return add(*terms) if terms else constant(0.0)


def arguments_of(node: Expression) -> list[tuple[Expression, sp.csr_array]]:
    """Return what a linear atom adds up: numbers, and arguments that vary, each with the matrix by which it enters."""
    assert node.atom is not None
    stand_ins = [
        Variable.of(argument.shape, f"argument {k}", -1 - k) if argument.variables else argument
        for k, argument in enumerate(node.args)
    ]
    space = Space([argument for argument in stand_ins if isinstance(argument, Variable)])
    matrix, offset = affine_map(node.atom(*stand_ins, **dict(node.options)), space)
    columns = sp.csc_array(matrix)
    numbers = [(constant(offset), sp.csr_array(sp.eye_array(node.size)))] if offset.any() else []
    return numbers + [
        (argument, sp.csr_array(columns[:, space.block_of(stand_in).slice]))
        for argument, stand_in in zip(node.args, stand_ins, strict=True)
        if isinstance(stand_in, Variable)
    ]


def groups(reduction: Expression) -> NDArray[np.int64]:
    """Return, for each entry of what a reduction over axes is applied to, the entry of the result that it goes into."""
    shape, axis = reduction.args[0].shape, reduction.option("axis")
    kept = tuple(1 if k in axis else n for k, n in enumerate(shape))
    numbers = np.arange(reduction.size).reshape(kept, order="F")
    return np.broadcast_to(numbers, shape).reshape(-1, order="F")
