"""Files of releases: an NPZ archive of the fields, which is read without running code."""

import io
import json
import os
import zipfile
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from dpconvex.accounting.budget import charge_schema
from dpconvex.accounting.events import Event, event_of
from dpconvex.certificates.certificate import Certificate
from dpconvex.data.encoded import learnt_cost
from dpconvex.data.learnt import Learnt
from dpconvex.data.schema import Schema
from dpconvex.errors import DPConvexError, TemplateError
from dpconvex.model.privacy import Privacy
from dpconvex.model.template import Template
from dpconvex.util.arguments import NOT_JSON, recast, require
from dpconvex.util.arrays import Array, Indices
from dpconvex.util.places import read_content, replaceable_path, unique_fields, write_atomically
from dpconvex.util.plain_data import build

VERSION = 2
PROOF = "proof.json"  # the member of the archive with the proof of the certificate
UNPROVED = "The file has no proof of this certificate: nobody can check its numbers."
UNCERTIFIED = "without a certificate: nobody can check this"


class Stated:
    """Base class of objects with a guarantee, or with a reason for none, and with the cost of a learnt schema."""

    spent: Privacy | None
    not_private_because: str
    learnt: Learnt | None

    @property
    def private(self) -> bool:
        """Whether the guarantee holds, for a learnt schema too. If not, `status` says why."""
        costs = self.learnt.costs if self.learnt else []
        return not (self.not_private_because or any(one.not_private_because for one in costs))

    @property
    def status(self) -> str:
        """The guarantee, or a warning, in one line."""
        said = f"spent: {self.spent or 'nothing'}"
        said = f"NOT PRIVATE: {self.not_private_because}" if self.not_private_because else said
        certificate: Any = getattr(self, "certificate", self)
        said += "" if getattr(certificate, "proved", True) else f". {certificate.replayed.rstrip('.')}"
        said += f" ({UNCERTIFIED})" * (certificate is None and self.private)
        return said if self.learnt is None else f"{said}; to learn the schema, {self.learnt.status}"


class StatedNumbers(Stated):
    """Base class of dataclasses of numbers with their guarantee, which are saved in a JSON file of the `form`."""

    form: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able data, with None for NaN."""
        own: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(cast(Any, self))}
        for name, value in own.items():
            if hasattr(value, "to_dict"):
                own[name] = value.to_dict()
            elif isinstance(value, np.ndarray):
                own[name] = np.where(np.isnan(value), np.array(None), value).tolist()
        return {"format": self.form, **own}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """Return the object that `to_dict` described, or raise `TemplateError`."""
        known = dict(given) if isinstance(given, Mapping) else {}
        said = f"{cls.__name__}: expected what to_dict returns, not {given!r:.60}."
        require(known.pop("format", None) == cls.form, said)
        return build(cls, known, {Array: lambda part: np.array(part, dtype=float), Privacy: Privacy.from_dict})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the released numbers to a JSON file, atomically."""
        write_atomically(replaceable_path(path), json.dumps(self.to_dict(), indent=1, default=str).encode("utf-8"))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file that `save` wrote. Nothing in the file proves its numbers and its cost."""
        with recast(f"{path}: no {cls.__name__.lower()} can be read from it", *NOT_JSON):
            return cls.from_dict(json.loads(read_content(path), object_pairs_hook=unique_fields))


class Released(Stated):
    """Base class of releases, private or not; a file of the `form` holds the fields in `kept`."""

    form: ClassVar[str]
    kept: ClassVar[tuple[str, ...]]

    def check_paid(self) -> None:
        typed = isinstance(self.spent, Privacy | None) and isinstance(self.not_private_because, str)
        if not typed or (self.spent is None) == (not self.not_private_because):
            raise TemplateError(f"{type(self).__name__}: pass either `spent`, or `not_private_because`.")
        certificate = getattr(self, "certificate", None)
        object.__setattr__(self, "learnt", learnt_cost([self.learnt, getattr(self, "schema", None)]))
        charge_schema(None, self.learnt)  # raises if the cost was edited
        if self.learnt is not None and isinstance(certificate, Certificate):
            object.__setattr__(self, "certificate", certificate.with_costs(self.learnt))

    def compare(self, proof: Mapping[str, Any]) -> None:
        """Raise if the numbers of a file are not those of which its proof speaks; an empty proof speaks of none."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to a file atomically; replace a regular file, and raise `TemplateError` for other kinds of files."""
        write_atomically(replaceable_path(path), self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the bytes that `save` writes: fields in JSON, which name arrays by number. Equal releases have equal bytes."""
        arrays: dict[str, Any] = {}

        def plain(value: Any) -> Any:
            if not isinstance(value, np.ndarray):
                return value.to_dict() if hasattr(value, "to_dict") else asdict(value)
            arrays[str(len(arrays))] = value
            return len(arrays) - 1

        own = [name for name in self.kept if name not in ("learnt", "fields") or getattr(self, name)]
        fields = {name: getattr(self, name) for name in own}
        text = json.dumps({"format": self.form, "version": VERSION, **fields}, default=plain)
        buffer = io.BytesIO()
        np.savez(buffer, header=np.array(text), **arrays)
        proof = getattr(fields.get("certificate"), "proof", None)
        if proof is not None:
            with zipfile.ZipFile(buffer, "a") as archive, archive.open(PROOF, "w") as stream:
                stream.write(proof)
        return buffer.getvalue()

    @classmethod
    def load(cls, path: str | os.PathLike[str], template: Template | Callable[..., Template] | None = None) -> Self:
        """Read a file that `save` wrote; raise `DPConvexError` if it is damaged, or of another template.

        Reading runs no code from the file. Methods that need functions, such as `predict`, need the template again.

        Parameters
        ----------
        path : str or path
        template : Template or callable, optional
            The template of the release.  For a `Release` of a shipped problem, also a function of (name, **options) that returns
            the template, such as `dpconvex.load`.

        Examples
        --------
        >>> import tempfile
        >>> import dpconvex as dp
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     dp.Release({"w": [0.5]}, not_private_because="no noise was added").save(folder + "/fit.npz")
        ...     dp.Release.load(folder + "/fit.npz")
        Release(w (1,); NOT PRIVATE: no noise was added)
        """
        return cls.from_bytes(read_content(path), template, path)

    @classmethod
    def from_bytes(
        cls, content: bytes, template: Template | Callable[..., Template] | None = None, name: object = "saved bytes"
    ) -> Self:
        """Read the bytes that `to_bytes` returned, as `load` does; errors begin with `name`."""
        readers: dict[Any, Any] = {Schema: Schema.from_dict, Event: event_of, Sequence[Hashable]: tuple}
        readers[Certificate] = Certificate.from_dict

        def taken(kind: str, place: Any) -> NDArray[Any]:
            array = arrays.pop(str(place))
            if array.dtype.kind != kind:
                raise ValueError("an array has another type")
            return array

        # Bytes from outside can fail in the parsers of ZIP, NPY and JSON in more ways than these document.
        try:
            arrays: dict[str, Any] = dict(members(content))
            proof = arrays.pop(PROOF, None)
            fields = json.loads(str(arrays.pop("header")), object_pairs_hook=unique_fields)
            if fields.pop("format") != cls.form:
                raise ValueError("it has another format")
            version = fields.pop("version")
            if version != VERSION:
                raise ValueError(f"version {version!r} of the format, but this program reads version {VERSION}")
            fields.pop("whitening", None)  # in files from before 0.2.0; a certificate with this raises
            found = build(cls, fields, {**readers, Array: partial(taken, "f"), Indices: partial(taken, "i")})
            if arrays or not set(fields) <= set(cls.kept):
                raise ValueError("there are unknown arrays or fields")
            certificate = getattr(found, "certificate", None)
            if certificate is not None and hasattr(certificate, "noted"):  # only such certificates have proofs
                certificate = certificate.noted(UNPROVED, False) if proof is None else certificate.with_proof(proof)
                object.__setattr__(found, "certificate", certificate)
                found.compare(json.loads(proof or b"{}"))
            if certificate is not None:
                str(certificate), certificate._repr_html_()
                if found.spent not in (None, certificate.privacy):
                    raise ValueError(f"{found.spent} was spent, but its certificate is for {certificate.privacy}")
        except Exception as error:
            what = f"the file is damaged, or is not a {cls.form.partition(' ')[2]} that this version of dpconvex saved"
            raise DPConvexError(f"{name}: {what} ({type(error).__name__}: {error}).") from error
        return found if template is None else found.with_template(template)

    def with_template(self, template: Any) -> Self:
        """Return a copy with the functions of a template; raise if the template does not match."""
        raise TemplateError(f"{type(self).__name__}: load it without a template.")


def members(content: bytes) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of an uncompressed NPZ archive, and its proof, each read with its checksum."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if len(set(archive.namelist())) != len(archive.namelist()):
            raise ValueError("a member occurs twice")
        for info in archive.infolist():
            if info.compress_type == zipfile.ZIP_STORED and info.filename == PROOF:
                yield PROOF, archive.read(info)
                continue
            if info.compress_type != zipfile.ZIP_STORED or not info.filename.endswith(".npy"):
                raise ValueError(f"unexpected member {info.filename!r}")
            stream = io.BytesIO(archive.read(info))
            array = np.lib.format.read_array(stream, allow_pickle=False)
            if stream.read(1):
                raise ValueError(f"member {info.filename!r} is too long")
            yield info.filename.removesuffix(".npy"), array
