"""Arrays in .npy files, read block by block: not through a memory map, whose pages count as memory of whoever touches them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from os import PathLike, fspath, fstat
from os.path import abspath, exists, isfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.errors import DomainError


@dataclass(frozen=True)
class FileRows:
    """An array in an .npy file, records first, of which any rows can be read; `header` is how the file began at first."""

    path: str
    header: bytes
    size: int  # of the file
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, path: str | PathLike[str]) -> FileRows:
        name = abspath(fspath(path))  # workers may stand elsewhere
        try:
            if exists(name) and not isfile(name):  # a pipe may never begin
                raise OSError("it is a folder, a device or a pipe")
            found: Any = np.load(name, mmap_mode="r", allow_pickle=False)
            if type(found) is not np.memmap or not found.ndim or not found.flags.c_contiguous:
                raise ValueError("expected an array of numbers, records first, in the order of C")
            with open(name, "rb") as stream:
                return cls(name, stream.read(found.offset), fstat(stream.fileno()).st_size, found.dtype, found.shape)
        except (OSError, ValueError, EOFError) as error:
            raise DomainError(f"{name}: no array can be read from it ({error}).") from error

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or self.dtype, copy=False)

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        if not isinstance(rows, slice):
            index = np.arange(len(self))[rows]
            low, high = (int(index.min()), int(index.max()) + 1) if len(index) else (0, 0)
            return self[low:high][index - low]
        start, stop, step = rows.indices(len(self))
        found = np.empty((max(stop - start, 0), *self.shape[1:]), self.dtype)
        left = found.reshape(-1).view(np.uint8).data
        with open(self.path, "rb", buffering=0) as stream:
            same = self._is_same(stream)
            stream.seek(len(self.header) + start * prod(self.shape[1:]) * self.dtype.itemsize)
            while count := stream.readinto(left):
                left = left[count:]
            if not (same and self._is_same(stream)):  # it may be written to while it is read
                raise DomainError(
                    f"{self.path}: the file has another shape, type or size than when it was looked at first; nothing is "
                    "released. Data must not change during a fit; make the Partitions anew for a file that was written anew."
                )
        return found[::step]

    def _is_same(self, stream: Any) -> bool:
        stream.seek(0)
        return fstat(stream.fileno()).st_size == self.size and stream.read(len(self.header)) == self.header
