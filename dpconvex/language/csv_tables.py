"""CSV files of records, read through a public declaration of their columns.

Which columns there are, between which bounds they lie and which labels occur is declared, never read off the data: the
largest value in a column, or the list of labels that happen to occur, is an answer that nobody paid for.  Every cell is
checked against the declaration.  Messages name lines and values, so they are for the owner of the data.
"""

from __future__ import annotations

import csv
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.errors import DomainError, TemplateError
from dpconvex.language.datasets import unit_ball

__all__ = ["Table", "read_settings"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """What is publicly known about a table of labelled records.

    Examples
    --------
    >>> table = Table({"age": (0, 120), "hours": (0, 168)}, label="sick", labels=["no", "yes"])
    >>> Table.from_dict(table.to_dict()) == table
    True
    """

    features: Mapping[str, tuple[float, float]]
    label: str
    labels: Sequence[str]
    clip: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.features, Mapping) or not self.features:
            raise TemplateError("declare the feature columns with their public bounds; there is none.")
        for name in (*self.features, self.label):
            if not isinstance(name, str) or not name:
                raise TemplateError(f"the name of a column must be a text, not {name!r}.")
        if self.label in self.features:
            raise TemplateError(f"the column {self.label!r} is declared both as a feature and as the label.")
        object.__setattr__(self, "features", {name: interval(name, pair) for name, pair in self.features.items()})
        if isinstance(self.labels, str) or not isinstance(self.labels, Sequence):
            raise TemplateError(f"declare the labels as a list, not {self.labels!r}.")
        object.__setattr__(self, "labels", tuple(label_text(value) for value in self.labels))
        if len(self.labels) < 2 or len(set(self.labels)) != len(self.labels):
            raise TemplateError(f"declare at least two labels, all of them different, not {list(self.labels)!r}.")
        if not isinstance(self.clip, bool):
            raise TemplateError(f"clip must be true or false, not {self.clip!r}.")

    def to_dict(self) -> dict[str, Any]:
        """Return the declaration as JSON-able data."""
        return {
            "features": [[name, *pair] for name, pair in self.features.items()],
            "label": self.label,
            "labels": list(self.labels),
            "clip": self.clip,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Table:
        """Rebuild from `to_dict`."""
        try:
            features = {name: (lower, upper) for name, lower, upper in fields["features"]}
            return cls(features, fields["label"], fields["labels"], fields["clip"])
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, TemplateError):
                raise
            raise TemplateError(f"this does not declare a table: {fields!r}.") from error

    def read(
        self, path: str | Path, labelled: bool = True, clip: bool | None = None, empty: bool = False
    ) -> tuple[Array, list[str]]:
        """Read a CSV file with a header line; columns that are not declared are passed over."""
        rows = cells(Path(path), [*self.features, *([self.label] if labelled else [])], empty)
        bounds = list(self.features.values())
        names, values, labels = list(self.features), [], []
        clipped = self.clip if clip is None else clip
        for where, row in rows:
            values.append(
                [
                    entry(f"{where}, column {name!r}", text, pair, clipped)
                    for name, text, pair in zip(names, row, bounds, strict=False)
                ]
            )
            if labelled:
                labels.append(known(f"{where}, column {self.label!r}", row[-1], self.labels))
        lower, upper = zip(*bounds, strict=True)
        if not values:
            return np.zeros((0, len(names))), labels
        return unit_ball(np.array(values), lower, upper, clip=clipped), labels


def cells(path: Path, columns: Sequence[str], empty: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield, for each record of a CSV file, where it is and the text in the named columns."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, strict=True)
            header = [name.strip() for name in next(reader, [])]
            if not header:
                raise DomainError(f"{path}: the file is empty; its first line must name the columns.")
            places = [place(path, header, name) for name in columns]
            count = 0
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    raise DomainError(
                        f"{path}, line {reader.line_num}: {len(row)} cells, but the header has {len(header)}."
                    )
                count += 1
                yield f"{path}, line {reader.line_num}", [row[index].strip() for index in places]
            if not count and not empty:
                raise DomainError(f"{path}: there is no record below the header.")
    except UnicodeDecodeError as error:
        raise DomainError(f"{path}: not a text file in UTF-8 ({error.reason} at byte {error.start}).") from error
    except csv.Error as error:
        raise DomainError(f"{path}, line {reader.line_num}: not valid CSV ({error}).") from error


def place(path: Path, header: list[str], name: str) -> int:
    """Return the position of a column."""
    if header.count(name) > 1:
        raise DomainError(f"{path}: {header.count(name)} columns are called {name!r}.")
    if name not in header:
        raise DomainError(f"{path}: there is no column {name!r}; the columns are {', '.join(header)}.")
    return header.index(name)


def entry(where: str, text: str, bounds: tuple[float, float], clip: bool) -> float:
    """Return the number in a cell, or say what is wrong with it."""
    try:
        value = float(text) if "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        what = f"{text!r} is not a finite number" if text else "the cell is empty"
        raise DomainError(f"{where}: {what}; remove such records or fill them in with public values.")
    lower, upper = bounds
    if not (clip or lower <= value <= upper):
        raise DomainError(
            f"{where}: {text} is outside the declared bounds {lower:g} to {upper:g}; clip it, or declare bounds that hold "
            "by definition."
        )
    return value


def known(where: str, text: str, labels: Sequence[str]) -> str:
    """Return a label that was declared, or say that it was not."""
    if text not in labels:
        raise DomainError(f"{where}: the label {text!r} was not declared; declared are {', '.join(labels)}.")
    return text


def interval(name: str, pair: Any) -> tuple[float, float]:
    """Return a pair of bounds as floats."""
    try:
        if isinstance(pair, str):
            raise TypeError
        lower, upper = (float(value) for value in pair)
    except (TypeError, ValueError) as error:
        raise TemplateError(
            f"the bounds of {name!r} must be two numbers, a lower and an upper one, not {pair!r}."
        ) from error
    if not (lower < upper and math.isfinite(lower) and math.isfinite(upper)):
        raise TemplateError(f"the bounds of {name!r} must be finite, the lower one below the upper one, not {pair!r}.")
    return lower, upper


def label_text(value: Any) -> str:
    """Return a declared label as the text that stands in a file."""
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise TemplateError(f"a label must be a text or an integer, not {value!r}.")
    return str(value)


def read_settings(path: str | Path, allowed: Sequence[str]) -> dict[str, Any]:
    """Read a TOML file of settings."""
    try:
        settings = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TemplateError(f"{path}: not valid TOML ({error}).") from error
    unknown = [key for key in settings if key not in allowed]
    if unknown:
        raise TemplateError(f"{path}: unknown setting {unknown[0]!r}; settings are {', '.join(allowed)}.")
    return settings
