"""Arrays in files, read block by block: not through a memory map, whose pages count as memory of whoever touches them."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike, fspath
from os.path import abspath
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from dpconvex.errors import DomainError

__all__ = ["FileRows"]


@dataclass(frozen=True)
class FileRows:
    """An array in a file, in the order of C, of which any rows can be read.

    Attributes
    ----------
    path : str
    offset : int
        Where the numbers begin, in bytes.
    dtype : dtype
    shape : tuple of int
    """

    path: str
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, path: str | PathLike[str]) -> FileRows:
        """Look at the header of an .npy file."""
        name = abspath(fspath(path))  # workers may stand elsewhere
        try:
            with open(name, "rb") as stream:
                version = npy.read_magic(stream)
                read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                shape, fortran, dtype = read(stream)
                offset = stream.tell()
        except (OSError, ValueError) as error:
            raise DomainError(f"{name}: no array can be read from it ({error}).") from error
        if dtype.hasobject or (fortran and len(shape) > 1) or not shape:
            raise DomainError(f"{name}: expected an array of numbers, records first, in the order of C.")
        return cls(name, offset, dtype, shape)

    @classmethod
    def mapped(cls, array: NDArray[Any]) -> FileRows | None:
        """Return what a memory map is a view of, if that is consecutive rows of a file."""
        root: Any = array
        while isinstance(root.base, np.memmap):
            root = root.base
        if not isinstance(root, np.memmap) or root.filename is None or not array.ndim or not array.flags.c_contiguous:
            return None
        start = root.offset + int(array.__array_interface__["data"][0]) - int(root.__array_interface__["data"][0])
        return cls(str(root.filename), start, array.dtype, array.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or self.dtype, copy=False)

    def part(self, rows: slice) -> FileRows:
        """Return consecutive rows, not read yet."""
        start, stop, step = rows.indices(len(self))
        assert step == 1
        width = int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize
        return FileRows(self.path, self.offset + start * width, self.dtype, (max(stop - start, 0), *self.shape[1:]))

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        """Read the rows of a slice, or of an array of indices."""
        if not isinstance(rows, slice):
            chosen = np.flatnonzero(rows) if np.asarray(rows).dtype == bool else np.asarray(rows, dtype=np.int64)
            if not len(chosen):
                return self[:0]
            low = int(chosen.min())
            return self[low : int(chosen.max()) + 1][chosen - low]
        some = self.part(slice(*rows.indices(len(self))[:2]))
        found = np.empty(some.shape, self.dtype)
        some.fill(found)
        return found[:: rows.step]

    def fill(self, rows: NDArray[Any]) -> None:
        """Read all rows into an array."""
        if rows.dtype != self.dtype or not rows.flags.c_contiguous:
            rows[...] = self[:]
            return
        left = rows.reshape(-1).view(np.uint8).data
        with open(self.path, "rb", buffering=0) as stream:
            stream.seek(self.offset)
            while len(left):
                count = stream.readinto(left)
                if not count:
                    raise DomainError(
                        f"{self.path}: the file is shorter than it was; data must not change during a fit."
                    )
                left = left[count:]
