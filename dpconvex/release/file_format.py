"""The file of what was released: an uncompressed NPZ archive of arrays and a JSON header, read without pickle; no code is run."""

import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpconvex.accounting.events import Event, event_of
from dpconvex.core.plain_data import built
from dpconvex.errors import DPConvexError, TemplateError
from dpconvex.language.privacy import Privacy
from dpconvex.language.schema import Schema
from dpconvex.release.ledger import distinct
from dpconvex.release.outputs import replaceable, write_whole

T = TypeVar("T")

VERSION = 1
HEADER = "header"


class Released:
    """What was released for a promise, or says why it is not private."""

    spent: Privacy | None
    not_private_because: str

    def check_paid(self) -> None:
        if self.spent is not None and not isinstance(self.spent, Privacy):
            raise TemplateError(f"{type(self).__name__}: what was spent must be a Privacy, not {self.spent!r}.")
        if not isinstance(self.not_private_because, str) or (self.spent is None) == (not self.not_private_because):
            raise TemplateError(
                f"{type(self).__name__}: say either what privacy was spent or why the release is not private (a text), not both."
            )

    @property
    def private(self) -> bool:
        """Whether a promise was kept; if not, `not_private_because` says why."""
        return not self.not_private_because

    @property
    def status(self) -> str:
        """The promise, or a warning, in one line."""
        return f"spent: {self.spent}" if self.private else f"NOT PRIVATE: {self.not_private_because}"

    def to_bytes(self) -> bytes:
        """Return the bytes that `save` writes."""
        raise NotImplementedError

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to a file, whole or not at all; an existing file is replaced.

        Parameters
        ----------
        path : str or path
            Used as it is; nothing but a regular file is replaced.
        """
        write_whole(replaceable(path), self.to_bytes())


def packed(form: str, header: Mapping[str, Any], arrays: Mapping[str, ArrayLike]) -> bytes:
    """Return the bytes of a file; equal releases make equal files."""

    def plain(value: Any) -> Any:
        return value.to_dict() if hasattr(value, "to_dict") else plain_value(value)

    text = json.dumps({"format": form, "version": VERSION, **header}, default=plain)
    buffer = io.BytesIO()
    members: dict[str, Any] = {HEADER: np.array(text), **arrays}
    np.savez(buffer, **members)
    return buffer.getvalue()


def plain_value(value: Any) -> Any:
    """Return what JSON has another form for."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, range):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def unpacked(
    content: bytes,
    name: str | os.PathLike[str],
    form: str,
    kind: type,
    build: Callable[[Any, dict[str, NDArray[Any]]], T],
) -> T:
    """Return what is built from the header, which must be of a kind, and from the arrays of a saved file."""
    # Bytes from outside can fail in the parsers of ZIP, NPY and JSON in more ways than these document.
    try:
        members = dict(read(content))
        values = header_of(members.pop(HEADER), form)
        version = values["version"]
        if version == VERSION:
            header = built(kind, values, {Schema: Schema.from_dict, Event: event_of})
            certificate = header.certificate
            if certificate is not None:
                str(certificate), certificate._repr_html_()
                if header.spent not in (None, certificate.privacy):
                    raise ValueError(f"{header.spent} was spent, and its certificate is for {certificate.privacy}")
            return build(header, members)
    except Exception as error:
        raise DPConvexError(
            f"{name}: the file is damaged, or is not a {form.partition(' ')[2]} that was saved by this program "
            f"({type(error).__name__}: {error})."
        ) from error
    raise DPConvexError(
        f"{name}: written in version {version!r} of the format, and this program reads version {VERSION}; "
        "read it with the dpconvex that wrote it, or a later one."
    )


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
