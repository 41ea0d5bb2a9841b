"""Centres that say which component of its class a record belongs to: released, or declared without data.

The component of a record is the nearest centre of its class.  Given the centres it is a function of that record alone, so a
learner that uses it pays nothing for it; what the centres cost, if they were learnt, was paid when they were released.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpconvex.core.derivation import Derivation
from dpconvex.core.plain_data import built, is_real
from dpconvex.core.runtime import frozen
from dpconvex.errors import DomainError, DPConvexError, TemplateError
from dpconvex.language.privacy import Privacy
from dpconvex.language.validation import SINGLE_ROUNDING, check_labels, numbers
from dpconvex.mechanisms.noisy_kmeans import ASSUMED, ClusteringNoise, grid_step, nearest
from dpconvex.release.files import Released, content_of

Array = NDArray[np.float64]

FORMAT, VERSION = "dpconvex components", 1
# Centres may start outside of the ball of records, but not far.
FARTHEST = 2.0


@dataclass(frozen=True, eq=False, repr=False)
class Components(Released):
    """K centres for each of C classes.

    Parameters
    ----------
    centers : array_like, shape (C, K, d)
        Finite, at most twice the radius away from the middle of the domain.  They are rounded to the grid.
    classes : sequence, optional
        The declared labels, in the order of the first axis; none if there is one clustering of all records.
    radius : float
        Public bound on the distance of a record's features from the middle of the domain.
    middle : float or array_like, shape (d,)
    step : float
        Grid step that records and centres are rounded to, a power of two; 0 picks between 2^-17 and 2^-16 of the radius.
    noise : ClusteringNoise, optional
        How they were learnt; None if they were declared.
    derivation : Derivation, optional
        Why that was private.
    spent : Privacy, optional
        What they cost; None if they were declared, or are not private.
    not_private_because : str
        Why they are not, such as "drawn with a seed".

    Raises
    ------
    TemplateError
        If shapes or numbers make no sense.

    Examples
    --------
    >>> places = Components([[[-0.5], [0.5]]], radius=1.0)  # declared: these cost nothing
    >>> places.assign([[-0.9], [0.1], [0.7]])
    array([0, 1, 1])
    >>> places
    Components(classes 1, centres each 2, features 1; declared without data)
    """

    centers: Array
    classes: Sequence[Hashable] = ()
    radius: float = 1.0
    middle: Any = 0.0
    step: float = 0.0
    noise: ClusteringNoise | None = None
    derivation: Derivation | None = None
    spent: Privacy | None = None
    not_private_because: str = ""

    def __post_init__(self) -> None:
        centers, middle, classes = array("the centres", self.centers), array("the middle", self.middle), self.classes
        if centers.ndim != 3 or 0 in centers.shape:
            raise TemplateError(f"Components: centres have three axes, (classes, K, d), not the shape {centers.shape}.")
        if not (is_real(self.radius) and 1e-100 < self.radius < 1e100):
            raise TemplateError(f"Components: the radius must lie between 1e-100 and 1e100, not {self.radius!r}.")
        if middle.shape not in ((), centers.shape[2:]):
            raise TemplateError(f"Components: {centers.shape[2]} features, but a middle of shape {middle.shape}.")
        middle = np.array(np.broadcast_to(middle, centers.shape[2:]))
        listed = isinstance(classes, Sequence | np.ndarray) and not isinstance(classes, str | bytes)
        if not listed or getattr(classes, "ndim", 1) != 1 or not all(isinstance(value, Hashable) for value in classes):
            raise TemplateError(
                f"Components: declare the classes as a list of labels, texts or numbers, not {classes!r}."
            )
        classes = tuple(classes)
        if len(classes or (None,)) != len(centers) or len(set(classes)) != len(classes):
            raise TemplateError(f"Components: centres for {len(centers)} classes, but the classes are {classes!r}.")
        step = float(self.step) or grid_step(self.radius) if is_real(self.step) else math.nan
        if not (0 < step < 1e300 and np.frexp(step)[0] == 0.5):
            raise TemplateError(f"Components: the grid's step must be a power of two, not {self.step!r}.")
        reach = np.linalg.norm(centers - middle, axis=2).max()
        if reach > FARTHEST * self.radius + step * np.sqrt(centers.shape[2]):
            raise TemplateError(
                f"Components: a centre lies {reach:.3g} from the middle, and the radius is {self.radius:g}."
            )
        learnt = (self.spent is not None) + bool(self.not_private_because)
        if learnt != (self.noise is not None):
            raise TemplateError(
                "Components: centres that were learnt say how, and either what they cost or why they are not private."
            )
        centers = np.rint((centers - middle) / step) * step + middle
        settled = {"centers": frozen(centers), "classes": classes, "middle": frozen(middle)}
        for name, value in {**settled, "radius": float(self.radius), "step": step}.items():
            object.__setattr__(self, name, value)

    @property
    def count(self) -> int:
        """K: number of centres for each class."""
        return int(self.centers.shape[1])

    @property
    def declared(self) -> bool:
        """Whether the centres were declared without data, and cost nothing."""
        return self.noise is None

    @property
    def status(self) -> str:
        """What they cost, or a warning, in one line."""
        return "declared without data" if self.declared else super().status

    def __repr__(self) -> str:
        classes, count, features = self.centers.shape
        return f"Components(classes {classes}, centres each {count}, features {features}; {self.status})"

    def __str__(self) -> str:
        if self.derivation is None:
            return repr(self)
        lines = [repr(self), "", "Derivation", *(f"  {line}" for line in self.derivation.lines())]
        return "\n".join([*lines, "", "Assumed", f"  - {ASSUMED}"])

    def assign(self, x: ArrayLike, y: ArrayLike | None = None) -> NDArray[np.int64]:
        """Return the component of each record: the index of the nearest centre of its class.

        Parameters
        ----------
        x : array_like, shape (n, d)
            Features within the declared domain.
        y : array_like, shape (n,), optional
            Labels; needed if the centres have classes.

        Returns
        -------
        ndarray of int, shape (n,)
            Exact, whatever the order of the records.
        """
        values = np.asarray(numbers("x", x), dtype=float)
        if values.ndim == 0:
            raise DomainError("assign: the features must have an axis for the records, and are a single number.")
        records = values.reshape(len(values), math.prod(values.shape[1:]))
        if records.shape[1] != self.centers.shape[2]:
            raise DomainError(f"assign: expected {self.centers.shape[2]} features, got the shape {values.shape}.")
        if not np.isfinite(records).all():
            raise DomainError("assign: the features must be finite; some are NaN or infinite.")
        far = np.linalg.norm(records - self.middle, axis=1) > self.radius * (1 + SINGLE_ROUNDING)
        if far.any():
            raise DomainError(
                f"assign: {int(far.sum())} records lie outside of the domain (first: row {int(np.argmax(far))})."
            )
        if self.classes and y is None:
            raise DomainError("assign: these centres belong to classes; pass the labels too.")
        codes = check_labels("y", self.classes, y) if self.classes else np.zeros(len(records), dtype=np.int64)
        if len(codes) != len(records):
            raise DomainError(f"assign: {len(records)} records, but {len(codes)} labels.")
        return self.of(in_steps(records, self.middle, self.step), codes)

    def of(self, steps: Array, codes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Do the same for records in steps of the grid, shape (n, d), with the codes of their classes."""
        centers = np.rint((self.centers - self.middle) / self.step)
        found = np.zeros(len(steps), dtype=np.int64)
        for code, mine in enumerate(centers):
            rows = codes == code
            found[rows] = nearest(steps[rows], mine)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able data."""
        arrays = {"centers": self.centers.tolist(), "classes": list(self.classes), "middle": self.middle.tolist()}
        proofs = {
            name: value and value.to_dict() for name, value in vars(self).items() if name in ("derivation", "spent")
        }
        noise = None if self.noise is None else asdict(self.noise)
        return {"format": FORMAT, "version": VERSION, **vars(self), **arrays, **proofs, "noise": noise}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Components:
        """Rebuild from `to_dict`, or raise `TemplateError`."""
        try:
            values = dict(fields)
            if (values.pop("format"), values.pop("version")) != (FORMAT, VERSION):
                raise ValueError("they have another format")
            for name, kind in (("noise", ClusteringNoise), ("derivation", Derivation), ("spent", Privacy)):
                values[name] = built(kind | None, values[name])
            return cls(**values)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise TemplateError(f"Components: these are not the fields of saved components ({error}).") from error

    def to_bytes(self) -> bytes:
        """Return the bytes that `save` writes, in JSON, which must be able to hold the labels."""
        try:
            text = json.dumps(self.to_dict(), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise TemplateError(f"Components: JSON cannot hold these classes ({error}).") from error
        if tuple(json.loads(text)["classes"]) != self.classes:
            raise TemplateError(f"Components: JSON cannot hold the classes {self.classes!r} as they are.")
        return text.encode()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Components:
        """Read saved centres, or raise `DPConvexError`."""
        content = content_of(path)
        try:
            return cls.from_dict(json.loads(content.decode()))
        except (UnicodeDecodeError, ValueError, RecursionError) as error:
            raise DPConvexError(f"{path}: the file is damaged, or does not hold components ({error}).") from error


def in_steps(records: Array, middle: Array, step: float) -> Array:
    """Round records towards the middle of their domain, to whole steps of the grid, each by itself; shape (n, d)."""
    return np.asarray(np.trunc((records - middle) / step))


def array(what: str, value: ArrayLike) -> Array:
    """Copy an array of finite numbers."""
    try:
        found = np.array(value, dtype=float)
    except (TypeError, ValueError, OverflowError) as error:
        raise TemplateError(f"Components: {what} must be an array of numbers ({error}).") from error
    if not np.isfinite(found).all():
        raise TemplateError(f"Components: {what} must be finite numbers.")
    return found
