"""The file of a saved release: an uncompressed NPZ archive of one array per parameter and a JSON header, read without pickle."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.errors import DPConvexError
from dpconvex.language.privacy import Privacy
from dpconvex.language.schema import Schema
from dpconvex.mechanisms.bound_certificate import BoundCertificate
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.release.whitening import Whitening

Array = NDArray[np.float64]

FORMAT, VERSION = "dpconvex release", 1
HEADER = "header"
KEYS = {"format", "version", "names", "certificate", "spent", "not_private_because", "source", "table", "whitening"}
# Entries that files of earlier versions do not have.
LATER = {"whitening": None}


def pack(header: Mapping[str, Any], arrays: Sequence[Array]) -> bytes:
    """Return the bytes of a file; equal releases make equal files."""
    text = json.dumps({"format": FORMAT, "version": VERSION, **header}, default=plain_value)
    members: dict[str, Any] = {member(index): value for index, value in enumerate(arrays)}
    buffer = io.BytesIO()
    np.savez(buffer, **{HEADER: np.array(text), **members})
    return buffer.getvalue()


def member(index: int) -> str:
    """Name an array in the archive; variable names can be anything, so they are in the header."""
    return f"parameter_{index}"


def plain_value(value: object) -> object:
    """Return NumPy numbers and arrays, and ranges, as plain Python values."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, range):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def unpack(content: bytes, path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read the bytes of a saved release into the constructor's arguments."""
    damaged = f"{path}: the file is damaged, or is not a release that was saved by this program"
    try:
        members = dict(read(content))
        header = json.loads(str(members.pop(HEADER)))
        if header["format"] != FORMAT:
            raise ValueError(f"its format is {header['format']!r}")
        version = header["version"]
    # Bytes from outside can fail in the parsers of ZIP, NPY and JSON in more ways than these document.
    except Exception as error:
        raise DPConvexError(f"{damaged} ({type(error).__name__}: {error}).") from error
    if version != VERSION:
        raise DPConvexError(
            f"{path}: written in version {version!r} of the format, and this program reads version {VERSION}; "
            "read it with the dpconvex that wrote it, or a later one."
        )
    try:
        header = {**LATER, **header}
        if set(header) != KEYS:
            raise ValueError(f"its header has the entries {sorted(header)}")
        names, whitening = header["names"], header["whitening"]
        arrays = len(names) + (whitening is not None)
        if set(members) != {member(index) for index in range(arrays)} or len(set(names)) != len(names):
            raise ValueError("names and arrays do not match")
        fields = {
            "certificate": None if header["certificate"] is None else proof(header["certificate"]),
            "spent": None if header["spent"] is None else Privacy.from_dict(header["spent"]),
            "not_private_because": str(header["not_private_because"]),
            "source": None if header["source"] is None else tuple(header["source"]),
            "schema": None if header["table"] is None else Schema.from_dict(header["table"]),
            "whitening": None
            if whitening is None
            else Whitening(str(whitening[0]), float(whitening[1]), members[member(len(names))]),
        }
        return fields, {name: members[member(index)] for index, name in enumerate(names)}
    except Exception as error:
        raise DPConvexError(f"{damaged} ({type(error).__name__}: {error}).") from error


def proof(fields: dict[str, Any]) -> Certificate | BoundCertificate:
    """Rebuild a certificate; that of private bounds has a noise for each."""
    return BoundCertificate.from_dict(fields) if "noises" in fields else Certificate.from_dict(fields)


def read(content: bytes) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays of an uncompressed NPZ archive; each is checked against its checksum before it is parsed."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for info in archive.infolist():
            if info.compress_type != zipfile.ZIP_STORED or not info.filename.endswith(".npy"):
                raise ValueError(f"unexpected member {info.filename!r}")
            stream = io.BytesIO(archive.read(info))
            array = np.lib.format.read_array(stream, allow_pickle=False)
            if stream.read(1):
                raise ValueError(f"member {info.filename!r} is too long")
            yield info.filename.removesuffix(".npy"), array
