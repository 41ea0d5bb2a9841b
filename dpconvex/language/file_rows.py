"""Arrays in files, read block by block: not through a memory map, whose pages count as memory of whoever touches them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from mmap import ALLOCATIONGRANULARITY
from os import PathLike, fspath, fstat
from os.path import abspath, exists, isfile
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from dpconvex.errors import DomainError

# So many bytes before the numbers of a memory map are compared at most: headers of .npy files are shorter.
LEAD = 2**16


@dataclass(frozen=True)
class FileRows:
    """An array in a file, in the order of C, of which any rows can be read.

    Its numbers begin at `offset`; `seen` is how the file began when it was looked at (of an .npy file, its header).
    """

    path: str
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    seen: bytes
    size: int

    @classmethod
    def of(cls, path: str | PathLike[str]) -> FileRows:
        name = abspath(fspath(path))  # workers may stand elsewhere
        with looked_at(name) as stream:
            version = npy.read_magic(stream)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read(stream)
            offset = stream.tell()
            stream.seek(0)
            seen, size = stream.read(offset), fstat(stream.fileno()).st_size
        if dtype.hasobject or (fortran and len(shape) > 1) or min(shape, default=-1) < 0:
            raise DomainError(f"{name}: expected an array of numbers, records first, in the order of C.")
        if size < offset + prod(shape) * dtype.itemsize:
            raise DomainError(f"{name}: the file is shorter than its header says.")
        return cls(name, offset, dtype, shape, seen, size)

    @classmethod
    def mapped(cls, array: NDArray[Any]) -> FileRows | None:
        """Return what a memory map is a view of, if that is consecutive rows of a file."""
        root: Any = array
        while isinstance(root.base, np.memmap):
            root = root.base
        if not isinstance(root, np.memmap) or root.filename is None or not array.ndim or not array.flags.c_contiguous:
            return None
        if root.mode != "r":  # what was written to the map need not be in the file, or not yet
            return None
        start = root.offset + int(array.__array_interface__["data"][0]) - int(root.__array_interface__["data"][0])
        with looked_at(str(root.filename)) as stream:
            seen, size = stream.read(min(root.offset, LEAD)), fstat(stream.fileno()).st_size
        if size < root.offset + root.nbytes:
            raise DomainError(f"{root.filename}: the file is shorter than the memory map of it; map it again.")
        if root.offset < ALLOCATIONGRANULARITY and vars(root)["_mmap"][: root.offset] != seen:
            return None  # another file has the name now, and the map is of the first
        return cls(str(root.filename), start, array.dtype, array.shape, seen, size)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or self.dtype, copy=False)

    def part(self, rows: slice) -> FileRows:
        start, stop, _ = rows.indices(len(self))
        width = prod(self.shape[1:]) * self.dtype.itemsize
        return replace(self, offset=self.offset + start * width, shape=(max(stop - start, 0), *self.shape[1:]))

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        if isinstance(rows, slice):
            return self.part(rows)._read()[:: rows.step]
        chosen = np.flatnonzero(rows) if np.asarray(rows).dtype == bool else np.asarray(rows, dtype=np.int64)
        if not len(chosen):
            return self[:0]
        low = int(chosen.min())
        return self[low : int(chosen.max()) + 1][chosen - low]

    def _read(self) -> NDArray[Any]:
        found = np.empty(self.shape, self.dtype)
        left = found.reshape(-1).view(np.uint8).data
        with open(self.path, "rb", buffering=0) as stream:
            self._compare(stream)
            stream.seek(self.offset)
            while count := stream.readinto(left):
                left = left[count:]
            self._compare(stream)  # it may be written to while it is read
        return found

    def _compare(self, stream: BinaryIO) -> None:
        """Refuse a file whose bytes are no longer those rows: its header or its size is another."""
        stream.seek(0)
        if fstat(stream.fileno()).st_size != self.size or stream.read(len(self.seen)) != self.seen:
            raise DomainError(
                f"{self.path}: the file has another shape, type or size than when it was looked at first; nothing is released. "
                "Data must not change during a fit; make the Partitions anew for a file that was written anew."
            )


@contextmanager
def looked_at(name: str) -> Iterator[BinaryIO]:
    try:
        if exists(name) and not isfile(name):  # a pipe may never begin
            raise OSError("it is a folder, a device or a pipe")
        with open(name, "rb") as stream:
            yield stream
    except (OSError, ValueError) as error:
        raise DomainError(f"{name}: no array can be read from it ({error}).") from error
