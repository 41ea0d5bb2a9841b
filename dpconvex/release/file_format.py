"""The file of a saved release: an uncompressed NPZ archive of one array per parameter and a JSON header, read without pickle."""

import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.accounting.events import Event, event_of
from dpconvex.core.plain_data import built
from dpconvex.errors import DPConvexError
from dpconvex.language.privacy import Privacy
from dpconvex.language.schema import Schema
from dpconvex.mechanisms.bound_certificate import BoundCertificate
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.release.ledger import distinct
from dpconvex.release.whitening import Whitening

Array = NDArray[np.float64]

FORMAT, VERSION = "dpconvex release", 1
HEADER = "header"


@dataclass(frozen=True)
class Header:
    """What a file says beside its arrays."""

    format: str
    version: int
    names: tuple[str, ...]
    certificate: Certificate | BoundCertificate | None
    spent: Privacy | None
    not_private_because: str
    source: tuple[str, dict[str, Any]] | None
    table: Schema | None
    whitening: tuple[str, float] | None = None


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
    # Bytes from outside can fail in the parsers of ZIP, NPY and JSON in more ways than these document.
    try:
        members = dict(read(content))
        values = header_of(members.pop(HEADER), FORMAT)
        version = values["version"]
        if version == VERSION:
            header: Header = built(Header, values, {Schema: Schema.from_dict, Event: event_of})
            names = header.names
            if len(set(names)) != len(names):
                raise ValueError("a name is there twice")
            expected = [member(k) for k in range(len(names) + (header.whitening is not None))]
            if set(members) != set(expected):
                raise ValueError("names and arrays do not match")
            kept = ("certificate", "spent", "not_private_because", "source")
            fields = {name: getattr(header, name) for name in kept} | {"schema": header.table}
            fields["whitening"] = header.whitening and Whitening(*header.whitening, members[expected[-1]])
            check_certificate(header.certificate, header.spent)
            return fields, {name: members[member(k)] for k, name in enumerate(names)}
    except Exception as error:
        raise DPConvexError(f"{damaged} ({type(error).__name__}: {error}).") from error
    raise DPConvexError(
        f"{path}: written in version {version!r} of the format, and this program reads version {VERSION}; "
        "read it with the dpconvex that wrote it, or a later one."
    )


def check_certificate(certificate: Certificate | BoundCertificate | None, spent: Privacy | None) -> None:
    """Refuse a certificate that cannot be read, or that promises another thing than what is said to be spent."""
    if certificate is not None:
        str(certificate), certificate._repr_html_()
        if spent not in (None, certificate.privacy):
            raise ValueError(f"it says that {spent} was spent, and its certificate is for {certificate.privacy}")


def header_of(member: NDArray[Any], form: str) -> dict[str, Any]:
    """Return the header of a file, as JSON has it; not a number, and what is there twice, have no place in one."""
    if member.shape != () or member.dtype.kind != "U":
        raise ValueError("its header is no text")
    values = json.loads(str(member), object_pairs_hook=distinct, parse_constant=infinite)
    if not isinstance(values, dict) or values["format"] != form:
        raise ValueError("it has another format")
    return values


def infinite(text: str) -> float:
    if text == "NaN":
        raise ValueError("its header has a number that is none")
    return float(text)


def read(content: bytes) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays of an uncompressed NPZ archive; each is checked against its checksum before it is parsed."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if len(set(archive.namelist())) != len(archive.namelist()):
            raise ValueError("a member is there twice")
        for info in archive.infolist():
            if info.compress_type != zipfile.ZIP_STORED or not info.filename.endswith(".npy"):
                raise ValueError(f"unexpected member {info.filename!r}")
            stream = io.BytesIO(archive.read(info))
            array = np.lib.format.read_array(stream, allow_pickle=False)
            if stream.read(1):
                raise ValueError(f"member {info.filename!r} is too long")
            yield info.filename.removesuffix(".npy"), array
