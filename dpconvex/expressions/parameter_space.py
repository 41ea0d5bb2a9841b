"""The parameters as one vector; a symmetric D x D matrix is stored as its `svec`, D(D+1)/2 orthonormal coordinates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from dpconvex.errors import TemplateError
from dpconvex.expressions.expression import Expression, Variable
from dpconvex.util.arrays import Array

SYMMETRIC = ("symmetric", "PSD", "NSD")
UNSUPPORTED = ("diag", "hermitian", "complex", "imag", "integer", "boolean", "sparsity")


@dataclass(frozen=True, eq=False)
class ParameterBlock:
    """The `dim` coordinates of one variable, from `start`; for a symmetric matrix, the coordinates of its svec."""

    variable: Variable
    start: int
    dim: int
    symmetric: bool

    @property
    def slice(self) -> slice:
        return slice(self.start, self.start + self.dim)

    @cached_property
    def lift(self) -> sp.csr_array:
        """Return the isometry from coordinates to the variable's entries in column order, shape (variable.size, dim)."""
        if not self.symmetric:
            return sp.csr_array(sp.eye_array(self.dim))
        side = self.variable.shape[0]
        row, column = np.triu_indices(side)
        off = np.flatnonzero(row != column)
        entry = np.append(column * side + row, (row * side + column)[off])
        index = np.append(np.arange(self.dim), off)
        weight = np.where(row == column, 1.0, np.sqrt(0.5))[index]
        return sp.csr_array(sp.coo_array((weight, (entry, index)), shape=(side * side, self.dim)))


class Space:
    """The `dim` coordinates of a list of variables, in blocks by name."""

    def __init__(self, variables: Sequence[Variable]) -> None:
        self.blocks: dict[str, ParameterBlock] = {}
        start = 0
        for variable in variables:
            for attribute in UNSUPPORTED:
                if np.size(variable.attributes.get(attribute, ())):
                    known = "a real variable that is plain, symmetric, PSD, NSD, nonneg, nonpos or bounded"
                    raise TemplateError(f"variable {variable.name!r} is declared {attribute}; use {known}.")
            if len(variable.shape) > 2:
                raise TemplateError(f"variable {variable.name!r} has {len(variable.shape)} axes; use at most two.")
            symmetric = any(name in variable.attributes for name in SYMMETRIC) and variable.size > 1
            dim = (variable.size + variable.shape[0]) // 2 if symmetric else variable.size
            self.blocks[variable.name] = ParameterBlock(variable, start, dim, symmetric)
            start += dim
        self.dim = start

    def pack(self, values: Mapping[str, Any]) -> Array:
        """Convert values by name to coordinates, shape (dim,).  Symmetric variables are symmetrised."""
        flat = {name: np.asarray(values[name], dtype=float).reshape(-1, order="F") for name in self.blocks}
        return np.concatenate([np.empty(0), *(block.lift.T @ flat[name] for name, block in self.blocks.items())])

    def unpack(self, theta: Array) -> dict[str, Array]:
        """Convert coordinates, shape (dim,), to values by name, each in its variable's shape."""
        return {
            name: np.asarray((block.lift @ theta[block.slice]).reshape(block.variable.shape, order="F"))
            for name, block in self.blocks.items()
        }

    def leaves(self, theta: Array) -> dict[Expression, Array]:
        """Convert coordinates, shape (dim,), to values by variable."""
        values = self.unpack(theta)
        return {block.variable: values[name] for name, block in self.blocks.items()}


def entries_matrix(space: Space) -> sp.csr_array:
    """Return the isometry from coordinates to the entries of all variables in column order, shape (entries, dim)."""
    if not space.blocks:
        return sp.csr_array((0, 0))
    return sp.csr_array(sp.block_diag([block.lift for block in space.blocks.values()], format="csr"))
