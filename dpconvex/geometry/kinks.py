"""The part of a regularizer that a gradient method must not differentiate, and its proximal map together with K.

A regularizer is a smooth part plus terms with kinks or logarithms at the ends of their domains: absolute values of coordinates
(`absolute_values`), and functions of a vector, of its groups, or of the spectrum of a matrix (`proximal_functions`), on blocks of
coordinates that have nothing in common.  For such a function f of ``A theta + c`` with ``A A' = nu I``

    prox(theta) = theta + A' (prox_{nu f}(A theta + c) - A theta - c) / nu

(P. Combettes & J.-C. Pesquet, Proximal splitting methods in signal processing, 2011, table 1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.atoms.exponentials import ENTR, LOG
from dpconvex.core.atoms.extremes import MAX, is_hinge, is_zero
from dpconvex.core.atoms.matrices import LAMBDA_MAX, LOG_DET, NORM_NUC, SIGMA_MAX
from dpconvex.core.atoms.norms import NORM
from dpconvex.core.atoms.sums import total
from dpconvex.core.discipline import is_convex, sign
from dpconvex.core.expression import Expression, constant
from dpconvex.core.parameter_space import Space
from dpconvex.geometry.absolute_values import AbsoluteValues, split_absolute, weighted_sum
from dpconvex.geometry.convex_sets import UNIT, ConesInBall, Interval, NormBall, Piece
from dpconvex.geometry.epigraph import Epigraph, epigraph, is_rough
from dpconvex.geometry.feasible_set import FeasibleSet
from dpconvex.geometry.linear_maps import affine_map, groups, linear_parts
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
from dpconvex.geometry.semidefinite import Spectrum

__all__ = ["Kinks", "Term", "split_kinks"]

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


@dataclass(frozen=True, eq=False)
class Kinks:
    """Terms with a proximal map, together with that of K.

    Attributes
    ----------
    absolute : AbsoluteValues or None
        They come first: with Euclidean norms the proximal map is that of the norms after that of the absolute values, and
        after the projection on cones (Y.-L. Yu, On decomposing the proximal map, NIPS 2013, theorem 4).
    terms : tuple of Term
    cones : tuple of Piece
        Cones at 0 that contain what Euclidean norms are of.
    epigraph : Epigraph or None
        Terms that have no proximal map with K and the others; then it has all kinks, and there is nothing else.
    """

    absolute: AbsoluteValues | None
    terms: tuple[Term, ...] = ()
    cones: tuple[Piece, ...] = ()
    epigraph: Epigraph | None = None

    @property
    def curved(self) -> bool:
        """Whether the strong convexity of the objective may come from here."""
        return any(term.function.curved for term in self.terms)

    @property
    def touched(self) -> Indices:
        """Coordinates that terms depend on."""
        return np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *(term.support for term in self.terms)]))

    def value(self, theta: Array) -> float:
        """Evaluate at coordinates, shape (dim,)."""
        start = 0.0 if self.absolute is None else self.absolute.value(theta)
        start += 0.0 if self.epigraph is None else self.epigraph.value(theta)
        return start + sum(term.value(theta) for term in self.terms)

    def proximal(self, theta: Array, step: float) -> Array:
        """Minimise ``value(x) + ||x - theta||^2 / (2 step)`` over x; to project on K afterwards makes it that with K."""
        point = theta.copy() if self.absolute is None else self.absolute.proximal(theta, step)
        for piece in self.cones:
            point[piece.coordinates] = piece.project(point[piece.coordinates])
        for term in self.terms:
            point = term.proximal(point, step)
        return point

    def error(self, norm: float, step: float) -> float:
        """Bound the rounding of `proximal`, from a point of a given norm."""
        cones = sum(piece.largest_error(norm) for piece in self.cones)
        return 4 * UNIT * norm + cones + sum(term.error(norm, step) for term in self.terms)


_SPLITS: WeakKeyDictionary[Space, dict[tuple[Any, ...], tuple[Expression, Kinks | None]]] = WeakKeyDictionary()


def split_kinks(feasible: FeasibleSet, regularizer: Expression) -> tuple[Expression, Kinks | None]:
    """Split a regularizer into the rest and terms that have a proximal map together with K; None if there are no such terms.

    What is smooth on K, such as a logarithm of what K bounds away from zero, stays in the rest.  If other kinks do, all become
    inequalities (`epigraph`).  Done once for each K, also where there are several copies of it.
    """
    known, key = _SPLITS.setdefault(feasible.space, {}), (regularizer, feasible.reason, feasible.declared)
    if key not in known:
        known[key] = split(feasible, regularizer)
    return known[key]


def split(feasible: FeasibleSet, regularizer: Expression) -> tuple[Expression, Kinks | None]:
    """Do the work of `split_kinks`."""
    rest, kinks = split_proximal(feasible, regularizer)
    if not is_convex(regularizer) or not any(is_rough(part, feasible) for part in unfolded(rest)):
        return rest, kinks
    parts = unfolded(regularizer)
    rough = {part: row for part, row in parts.items() if is_rough(part, feasible)}
    heights = epigraph(rough, feasible)
    if heights is None:
        return rest, kinks
    others = {part: row for part, row in parts.items() if part not in rough}
    return weighted_sum(others), Kinks(None, epigraph=heights)


def split_proximal(feasible: FeasibleSet, regularizer: Expression) -> tuple[Expression, Kinks | None]:
    """Split off terms with a proximal map."""
    if not (is_convex(regularizer) and feasible.has_projection):
        return regularizer, None
    space = feasible.space
    rest, absolute = split_absolute(regularizer, space)
    if absolute is not None and not fits_with(absolute, feasible):
        rest, absolute = regularizer, None
    left: dict[Expression, sp.csr_array] = {}
    terms: list[Term] = []
    cones: list[Piece] = []
    taken = np.zeros(space.dim, dtype=bool)
    for part, row in unfolded(rest).items():
        term = term_of(part, row.toarray()[0], space)
        around = None if term is None or taken[term.support].any() else pieces_for(term, feasible, absolute)
        if term is None or around is None:
            left[part] = row
            continue
        taken[term.support] = True
        terms.append(term)
        cones.extend(around)
    if not terms:
        return (rest, Kinks(absolute)) if absolute is not None else (regularizer, None)
    return weighted_sum(left), Kinks(absolute, tuple(together(terms)), tuple(cones))


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


def fits_with(absolute: AbsoluteValues, feasible: FeasibleSet) -> bool:
    """Whether to shrink and then to project is a proximal map: there are bounds alone, or balls around a common centre 0."""
    for piece in feasible.pieces:
        shrunk = absolute.weights[piece.coordinates] > 0
        if isinstance(piece, Interval) or not shrunk.any():
            continue
        ball = piece.ball if isinstance(piece, ConesInBall) else piece
        cones = piece.cones if isinstance(piece, ConesInBall) else ()
        if not isinstance(ball, NormBall) or ball.center.any() or absolute.centers[piece.coordinates][shrunk].any():
            return False
        if not all(isinstance(cone, Interval) for cone in cones):
            return False
    return True


def unfolded(regularizer: Expression) -> dict[Expression, sp.csr_array]:
    """Take a sum apart as `linear_parts` does; also sums that are written as 1-norms of what is not negative."""
    found: dict[Expression, sp.csr_array] = {}
    for part, row in linear_parts(regularizer).items():
        parts = {part: row}
        if part.atom is NORM and part.option("p") == 1 and not part.args[0].is_affine and sign(part.args[0]) == 1:
            inner = part.args[0]
            weights = row.toarray()[0][groups(part)].reshape(inner.shape, order="F")
            parts = unfolded(total(constant(weights) * inner))
        for key, own in parts.items():
            found[key] = found[key] + own if key in found else own
    return found


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


def pieces_for(term: Term, feasible: FeasibleSet, absolute: AbsoluteValues | None) -> list[Piece] | None:
    """Return the cones to project on first, if the term has a proximal map with K; else None."""
    support = term.support
    inside = set(support.tolist())
    near = [piece for piece in feasible.pieces if inside & set(piece.coordinates.tolist())]
    radial = term.function is EUCLIDEAN and not term.offset.any() and is_radial(term)
    if (
        absolute is not None
        and (absolute.weights[support] > 0).any()
        and (not radial or absolute.centers[support].any())
    ):
        return None
    if radial:
        return cones_at_zero(term, near)
    if not near:
        return None if term.function.curved else []
    if not term.function.separable:
        return None
    if term.symmetric:
        (piece, *others) = near
        alone = not others and set(piece.coordinates.tolist()) == inside
        return [] if alone and isinstance(piece, Spectrum) and clips_with(term, piece) else None
    single = not term.spectrum and bool((np.diff(term.matrix.indptr) == 1).all())
    if not single or not all(isinstance(piece, Interval) for piece in near):
        return None
    ends = [term.matrix.multiply(bound[None]).tocsr() for bound in (feasible.lower, feasible.upper)]
    least = np.minimum(*(end.sum(axis=1) for end in ends)) + term.offset
    return None if term.function.curved and (least > 0).all() else []


def is_radial(term: Term) -> bool:
    """Whether each row of the table has the norm of coordinates of its own, but for a factor."""
    single = bool((np.diff(term.matrix.indptr) == 1).all()) and term.matrix.shape[0] == len(term.support)
    return single or (len(term.table) == 1 and isometric_columns(term.matrix) is not None)


def cones_at_zero(term: Term, near: Sequence[Piece]) -> list[Piece] | None:
    """Return cones to project on before vectors are shortened; None if K is no product of cones at 0 and balls around it.

    Where a ball holds, the feasible set projects on it after that.
    """
    found: list[Piece] = []
    rows = [set(np.unique(term.matrix[row].indices).tolist()) for row in term.table]
    for piece in near:
        here = set(piece.coordinates.tolist())
        if isinstance(piece, Interval):
            kept = np.isin(piece.coordinates, term.support)
            parts: list[Piece] = [Interval(piece.coordinates[kept], piece.text, piece.lower[kept], piece.upper[kept])]
        elif isinstance(piece, NormBall | ConesInBall):
            ball = piece.ball if isinstance(piece, ConesInBall) else piece
            if ball.center.any() or here not in rows:
                return None
            parts = list(piece.cones) if isinstance(piece, ConesInBall) else []
        elif any(here <= row for row in rows):
            parts = [piece]
        else:
            return None
        if not all(part.is_cone_at(np.zeros(len(part.coordinates))) for part in parts):
            return None
        found.extend(parts)
    return found


def clips_with(term: Term, piece: Spectrum) -> bool:
    """Whether bounds on eigenvalues can be clipped to afterwards, and do not make the term smooth."""
    shift = float(piece.shift[0, 0])
    if (piece.shift != shift * np.eye(len(piece.shift))).any():
        return False
    if not term.function.curved:
        return True
    factor = float(term.matrix[[0]].sum())  # the first entry is the first coordinate's
    ends = [factor * (shift + bound) for bound in (piece.lower, piece.upper)]
    return not min(ends) > 0
