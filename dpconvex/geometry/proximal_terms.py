"""Functions of affine vectors, groups of entries or spectra in a regularizer, and their proximal maps.

For such a function f of ``A theta + c`` with ``A A' = nu I``

    prox(theta) = theta + A' (prox_{nu f}(A theta + c) - A theta - c) / nu

(P. Combettes & J.-C. Pesquet, Proximal splitting methods in signal processing, 2011, table 1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.atoms.exponentials import ENTR, LOG
from dpconvex.core.atoms.extremes import MAX, is_hinge, is_zero
from dpconvex.core.atoms.matrices import LAMBDA_MAX, LOG_DET, NORM_NUC, SIGMA_MAX
from dpconvex.core.atoms.norms import NORM
from dpconvex.core.expression import Expression
from dpconvex.core.parameter_space import Space
from dpconvex.geometry.convex_sets import UNIT
from dpconvex.geometry.linear_maps import affine_map, groups
from dpconvex.geometry.proximal_functions import (
    ENTROPY,
    EUCLIDEAN,
    LARGEST,
    LARGEST_SIZE,
    LOGARITHM,
    POSITIVE,
    SIZES,
    VectorFunction,
)

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

# Atoms that are functions of vectors; those of spectra; and the concave ones, which come with a minus sign.
SPECTRAL = {LAMBDA_MAX: LARGEST, SIGMA_MAX: LARGEST_SIZE, NORM_NUC: SIZES, LOG_DET: LOGARITHM}
SEPARABLE = {LOG: LOGARITHM, ENTR: ENTROPY}
NORMS = {1.0: SIZES, 2.0: EUCLIDEAN, np.inf: LARGEST_SIZE}
CONCAVE = (LOG, ENTR, LOG_DET)


@dataclass(frozen=True, eq=False)
class Term:
    """A weighted function of rows of ``matrix @ theta + offset``, or of the spectrum of what that is.

    Attributes
    ----------
    function : VectorFunction
    matrix, offset
        A and c.
    scale : ndarray, shape (m,)
        nu: the squared length of each row of A; all equal in a row of the table.
    table : ndarray of int, shape (k, m / k)
        Which entries make a row.
    weights : ndarray, shape (k, m / k)
    spectrum : tuple of int
        The shape of the matrix whose eigenvalues (if `symmetric`) or singular values are meant; empty for vectors.
    symmetric : bool
    """

    function: VectorFunction
    matrix: sp.csr_array
    offset: Array
    scale: Array
    table: Indices
    weights: Array
    spectrum: tuple[int, ...] = ()
    symmetric: bool = False

    @property
    def support(self) -> Indices:
        """The coordinates that it depends on."""
        return np.unique(self.matrix.indices).astype(np.int64)

    def value(self, theta: Array) -> float:
        """Evaluate at coordinates, shape (dim,)."""
        entries = self.matrix @ theta + self.offset
        if self.spectrum:
            matrix = entries.reshape(self.spectrum, order="F")
            values = np.linalg.eigvalsh(matrix) if self.symmetric else np.linalg.svd(matrix, compute_uv=False)
            return float(self.weights[0, 0] * self.function.value(values[None])[0])
        if self.function.separable:
            rows = entries[self.table].reshape(-1, 1)
            return float(self.weights.ravel() @ self.function.value(rows))
        return float(self.weights[:, 0] @ self.function.value(entries[self.table]))

    def proximal(self, theta: Array, step: float) -> Array:
        """Minimise ``value(x) + ||x - theta||^2 / (2 step)`` over x."""
        entries = self.matrix @ theta + self.offset
        t = step * self.weights * self.scale[self.table]
        moved = np.empty_like(entries)
        if self.spectrum:
            moved[:] = self._in_spectrum(entries, t)
        else:
            moved[self.table] = self.function.proximal(entries[self.table], t)
        return np.asarray(theta + self.matrix.T @ ((moved - entries) / self.scale))

    def _in_spectrum(self, entries: Array, t: Array) -> Array:
        """Move eigenvalues or singular values, and leave their vectors."""
        matrix = entries.reshape(self.spectrum, order="F")
        if self.symmetric:
            values, left = np.linalg.eigh((matrix + matrix.T) / 2)
            right = left.T
        else:
            left, values, right = np.linalg.svd(matrix, full_matrices=False)
        moved = self.function.proximal(values[None], np.full((1, len(values)), t[0, 0]))[0]
        return np.asarray(((left * moved) @ right).ravel(order="F"))

    def error(self, norm: float, step: float) -> float:
        """Bound how far a computed proximal point of coordinates of a norm can be from the exact one.

        The map does not expand, so errors of sums and of decompositions count once; the rest is a few operations on each entry.
        """
        side = max(self.spectrum or (1,)) + (
            0 if self.function.separable and not self.spectrum else self.table.shape[1]
        )
        scale, t = np.sqrt(self.scale.min()), float(np.linalg.norm(step * self.weights)) * np.sqrt(self.scale.max())
        size = norm + float(np.linalg.norm(self.offset)) / scale + t
        if self.function.curved:
            size += np.sqrt(step * float(np.abs(self.weights).sum()))
        return float(8.0 * (side + 8) * UNIT * size)


def together(terms: Sequence[Term]) -> Iterator[Term]:
    """Join terms of one function of vectors of one length, so that one pass serves all."""
    alike: dict[tuple[Any, ...], list[Term]] = {}
    for number, term in enumerate(terms):
        alike.setdefault((number,) if term.spectrum else (term.function.name, term.table.shape[1]), []).append(term)
    for group in alike.values():
        starts = np.cumsum([0, *(len(term.offset) for term in group)])
        yield replace(
            group[0],
            matrix=sp.csr_array(sp.vstack([term.matrix for term in group])),
            offset=np.concatenate([term.offset for term in group]),
            scale=np.concatenate([term.scale for term in group]),
            table=np.concatenate([term.table + start for term, start in zip(group, starts[:-1], strict=True)]),
            weights=np.concatenate([term.weights for term in group]),
        )


def term_of(part: Expression, weights: Array, space: Space) -> Term | None:
    """Read weighted entries of an atom as a term; None if it has no proximal map here."""
    atom = part.atom
    weights = -weights if atom in CONCAVE else weights
    if atom is None or not part.args or (weights < 0).any():
        return None
    hinge = is_hinge(part)
    inner = next(argument for argument in part.args if not is_zero(argument)) if hinge else part.args[0]
    if not inner.is_affine or inner.is_constant:
        return None
    function: VectorFunction | None = SPECTRAL.get(atom)
    if function is not None:
        return spectral_term(function, inner, float(weights[0]), space)
    if hinge or atom in SEPARABLE:
        function, table = POSITIVE if hinge else SEPARABLE[atom], np.arange(inner.size)[None]
        spread = weights
    elif atom in (NORM, MAX):
        function = LARGEST if atom is MAX else NORMS.get(part.option("p"))
        place = groups(part)
        table = np.argsort(place, kind="stable").reshape(part.size, -1)
        spread = weights[place]
    if function is None:
        return None
    kept = (spread[table] > 0).all(axis=1)
    if function.separable and not kept.all():
        return None
    matrix, offset = affine_map(inner, space)
    chosen = table[kept]
    picked = chosen.ravel()
    matrix, offset, spread = sp.csr_array(matrix[picked]), offset[picked], spread[picked]
    scale = orthogonal_rows(matrix)
    table = np.arange(len(picked)).reshape(chosen.shape)
    if scale is None or not (function.separable or (scale[table] == scale[table][:, :1]).all()):
        scale = isometric_columns(matrix) if function is EUCLIDEAN and not offset.any() and len(table) == 1 else None
    if scale is None:
        return None
    return Term(function, matrix, offset, scale, table, spread[table])


def spectral_term(function: VectorFunction, inner: Expression, weight: float, space: Space) -> Term | None:
    """Read a function of the spectrum of a multiple of a symmetric variable, or of a matrix of coordinates."""
    matrix, offset = affine_map(inner, space)
    size, shape = inner.size, inner.shape
    table, weights = np.arange(size)[None], np.full((1, size), weight)
    support = np.unique(matrix.indices)
    for block in space.blocks.values():
        if block.symmetric and len(support) == block.dim and support[0] == block.start and size == block.lift.shape[0]:
            lift = sp.csr_array(sp.hstack([sp.csr_array((size, block.start)), block.lift]))
            lift.resize(matrix.shape)
            factor = float((matrix[[0]] @ lift[[0]].T).sum() / (lift[[0]] @ lift[[0]].T).sum())
            difference = abs(matrix - factor * lift)
            if offset.any() or (difference.nnz and difference.max() > 4 * UNIT * abs(factor)) or not factor:
                return None
            return Term(function, matrix, offset, np.full(size, factor**2), table, weights, shape, symmetric=True)
    scale = orthogonal_rows(matrix)
    if not function.even or scale is None or not (scale == scale[0]).all():
        return None
    return Term(function, matrix, offset, scale, table, weights, shape)


def orthogonal_rows(matrix: sp.csr_array) -> Array | None:
    """Squared lengths of the rows of a matrix, if these are exactly orthogonal and none is zero."""
    gram = sp.coo_array(matrix @ matrix.T)
    length = np.zeros(matrix.shape[0])
    for row, column, value in zip(gram.row, gram.col, gram.data, strict=True):
        if row == column:
            length[row] = value
        elif value:
            return None
    return length if (length > 0).all() else None


def isometric_columns(matrix: sp.csr_array) -> Array | None:
    """Squared length of the columns of a matrix that are not zero, for each row, if they are orthogonal and of one length."""
    columns = sp.csr_array(matrix.T)
    scale = orthogonal_rows(sp.csr_array(columns[np.unique(matrix.indices)]))
    if scale is None or np.ptp(scale) > 8 * UNIT * scale[0]:
        return None
    return np.full(matrix.shape[0], scale[0])


def is_radial(term: Term) -> bool:
    """Whether each row of the table has the norm of coordinates of its own, but for a factor."""
    single = bool((np.diff(term.matrix.indptr) == 1).all()) and term.matrix.shape[0] == len(term.support)
    return single or (len(term.table) == 1 and isometric_columns(term.matrix) is not None)
