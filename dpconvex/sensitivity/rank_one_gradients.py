"""Recognises gradients that are rank-one matrices, weights of classes times features: ``a (x) h(z)`` or ``a (x) v (x) v``."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from dpconvex.expressions.parameter_space import Space
from dpconvex.expressions.polynomial import Polynomial, numbered_rows, stack_entries
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sensitivity.sensitive_subspace import basis_of, distinct_columns
from dpconvex.util.arrays import Array, Indices
from dpconvex.util.runtime import once

CLOSE = 2.0**-46  # Coefficients that agree to this relative accuracy are equal
ROOT_ACCURACY = 1e-14  # Products of entries agree to this relative accuracy
COVERED = 1e-12  # A direction outside the span of the noise has a residual far above this
CANCELLING = 1e-10  # Rounding of gradients, relative to their bound, above which terms are taken to cancel
MOST = 2**26  # Largest table that fits into memory, features times monomials


@dataclass(frozen=True, eq=False)
class RankOne:
    """A linear map from matrices to coordinates such that every gradient is the image of a rank-one matrix of the same norm."""

    name: str
    rows: int
    columns: int
    share: float  # Ratio of mean squared norms, image to matrix, if the matrix's distribution is rotation-invariant
    map: sp.csr_array  # A partial isometry from flattened matrices, shape (dim, rows * columns)
    layout: Indices  # Position of each coordinate among its class's features, or (row, column) among squared features
    classes: Indices  # The class of each coordinate

    @property
    def square(self) -> float:
        """Return the mean squared norm of matrix-shaped noise for beta = 1: ``share s^2 rows columns / (nu - rows - 1)``."""
        freedom = degrees_of_freedom(self.rows, self.columns)
        spread = (freedom + self.columns) / 2
        return self.share * spread**2 * self.rows * self.columns / (freedom - self.rows - 1)

    def covers(self, basis: sp.csc_array) -> bool:
        """Return whether the images of matrices span all columns of an orthonormal basis."""
        missed = basis - self.map @ (self.map.T @ basis)
        return not missed.nnz or float(abs(missed).max()) <= COVERED


def degrees_of_freedom(rows: int, columns: int) -> int:
    """Return the nu of matrix-shaped noise, ``rows + 1 + (3/2) (rows + columns + 1)``, rounded up."""
    # The mean square is least for two thirds of the added term; the rest makes tails lighter, and costs 1/24.
    return rows + 1 + -(-3 * (rows + columns + 1) // 2)


@once
def rank_one_structures(analysis: Analysis) -> tuple[RankOne, ...]:
    """Return the structures that make every gradient of a template a rank-one matrix; () if there are none."""
    form = analysis.form
    # If large terms cancel, their sum need not have the structure of the terms.
    if any(loss.gradients.slacks.max() > CANCELLING * loss.gradient_bound for loss in analysis.losses):
        return ()
    leaves = [form.polynomial(leaf).part(with_theta=True) for leaf in form.every_leaf]
    found = structures(leaves, form.space) if leaves else ()
    return tuple(structure for structure in found if structure.covers(form.basis))


def structures(leaves: Sequence[Polynomial], space: Space) -> Iterator[RankOne]:
    """Yield the rank-one structures of the leaves, over all layouts of the parameters as a table."""
    for name, classes, positions in layouts(space):
        found = factor(leaves, classes, positions)
        if found is None:
            continue
        weights, features, monomials = found
        count, width = int(classes.max()) + 1, int(positions.max()) + 1
        places = np.arange(space.dim), classes * width + positions
        table = sp.csr_array((np.ones(space.dim), places), shape=(space.dim, count * width))
        left, right = row_space(weights), row_space(features.T)
        image = sp.csr_array(table @ sp.kron(sp.csr_array(left), sp.csr_array(right)))
        sides = left.shape[1], right.shape[1]
        yield RankOne(f"{name}, weights times features", *sides, 1.0, image, positions[:, None], classes)
        side = squared_features(features, monomials) if name == "one symmetric matrix for each class" else None
        if side is not None:
            layout = np.stack(np.triu_indices(side), axis=1)[positions]
            yield symmetric(f"{name}, a quadratic form of the features", left, side, table, layout, classes)


def layouts(space: Space) -> Iterator[tuple[str, Indices, Indices]]:
    """Yield layouts: a name, and the class and the position of each coordinate."""
    blocks = list(space.blocks.values())
    if len({(block.dim, block.symmetric) for block in blocks}) == 1:
        kind = "symmetric matrix" if blocks[0].symmetric else "variable"
        classes = np.repeat(np.arange(len(blocks)), blocks[0].dim)
        yield f"one {kind} for each class", classes, np.tile(np.arange(blocks[0].dim), len(blocks))
    if any(block.symmetric for block in blocks):
        return
    for count in sorted({int(side) for block in blocks for side in block.variable.shape}):
        for first in (True, False):
            found = aligned(space, count, first)
            if found is not None:
                yield f"{count} classes", *found
            if found is None or not any(block.variable.shape == (count, count) for block in blocks):
                break  # the two orders are the same


def aligned(space: Space, count: int, first: bool) -> tuple[Indices, Indices] | None:
    """Return classes and positions if all variables have an axis of `count` classes; `first` picks it in square variables."""
    classes, positions, start = [], [], 0
    for block in space.blocks.values():
        shape = block.variable.shape
        if count not in shape:
            return None
        axis = shape.index(count) if first else len(shape) - 1 - shape[::-1].index(count)
        index = np.indices(shape)
        classes.append(index[axis].reshape(-1, order="F"))
        rest = index[1 - axis] if len(shape) == 2 else np.zeros(shape, dtype=np.int64)
        positions.append(start + rest.reshape(-1, order="F"))
        start += int(rest.max()) + 1
    return np.concatenate(classes), np.concatenate(positions)


def factor(leaves: Sequence[Polynomial], classes: Indices, positions: Indices) -> tuple[Array, Array, Indices] | None:
    """Return alphas, H and monomials if every leaf entry is ``alpha (x) H``; None otherwise."""
    terms = stack_entries(leaves)
    monomials, number = numbered_rows(terms.monomial)
    sides, spots = int(classes.max()) + 1, int(positions.max()) + 1
    if spots * len(monomials) > MOST:
        return None
    row, column = terms.entry * sides + classes[terms.coordinate], positions[terms.coordinate] * len(monomials) + number
    tensor = sp.csr_array((terms.coefficient, (row, column)), shape=(terms.size * sides, spots * len(monomials)))
    lengths = np.sqrt(np.asarray(tensor.power(2).sum(axis=1)).ravel())
    if not lengths.any():
        return None
    reference = tensor[[int(np.argmax(lengths))]].toarray().ravel() / lengths.max()
    alpha = np.asarray(tensor @ reference).ravel()
    # Compare entry by entry: a small coefficient may multiply a large field.
    model = sp.coo_array(tensor)
    row, column = model.coords
    used = np.flatnonzero(reference)
    full = np.bincount(row, minlength=len(alpha))[lengths > 0] == len(used)
    if not (np.array_equal(np.unique(column), used) and full.all()):
        return None
    if (np.abs(model.data - alpha[row] * reference[column]) > CLOSE * np.abs(model.data)).any():
        return None
    return alpha.reshape(-1, sides), reference.reshape(spots, len(monomials)), monomials


def row_space(matrix: Array) -> Array:
    """Return an orthonormal basis of the span of the rows, as columns; the identity if they span everything."""
    rows = matrix[matrix.any(axis=1)]
    basis = basis_of(distinct_columns(sp.csc_array(rows.T)))
    return np.eye(len(basis.indptr) - 1) if np.equal(*basis.shape) else basis.toarray()


def squared_features(features: Array, monomials: Indices) -> int | None:
    """Return the length of v if the features are a multiple of ``svec(v v')``, v a vector of scaled scalars; None otherwise."""
    side = round((float(np.sqrt(8 * len(features) + 1)) - 1) / 2)
    used = features != 0
    if monomials.shape[1] != 2 or (used.sum(axis=1) != 1).any() or (used.sum(axis=0) > 1).any():
        return None
    which = used.argmax(axis=1)
    value, pair = features[np.arange(len(features)), which], monomials[which]
    row, column = np.triu_indices(side)
    own = row == column
    value = value * np.sign(value[0])
    root, scalar = np.sqrt(np.maximum(value[own], 0.0)), pair[own, 0]
    expected = root[row] * root[column] * np.where(own, 1.0, np.sqrt(2.0))
    alike = (np.abs(expected - value) <= ROOT_ACCURACY * expected).all()
    return side if alike and (pair == np.sort(np.stack([scalar[row], scalar[column]], axis=1), axis=1)).all() else None


def symmetric(name: str, left: Array, side: int, table: sp.csr_array, layout: Indices, classes: Indices) -> RankOne:
    """Return the structure ``a (x) v (x) v``: symmetrised matrices ``v (a (x) v)'``."""
    count = left.shape[1]
    row, column = np.triu_indices(side)
    weight, place = np.where(row == column, 0.5, np.sqrt(0.5)), np.arange(len(row))
    # svec of the symmetric part of a side-by-side matrix, flattened row by row.
    fold = sp.coo_array((weight, (place, row * side + column)), shape=(len(row), side * side))
    fold = sp.csr_array(fold + sp.coo_array((weight, (place, column * side + row)), shape=(len(row), side * side)))
    spread = sp.csr_array(sp.kron(sp.csr_array(left), fold))
    # Columns of `spread` run over (class, i, j); a matrix has rows i and columns (class, j).
    order = np.arange(count * side * side).reshape(count, side, side).transpose(1, 0, 2).ravel()
    image = sp.csr_array(table @ spread[:, order])
    return RankOne(name, side, count * side, (side + 1) / (2 * side), image, layout, classes)
