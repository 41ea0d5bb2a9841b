"""Golden files: numbers as they were when somebody last looked, and how far each may be from them.

A tolerance says how well a number is determined on any machine, not how well it happened to agree on one:

- A constant that a rule derives is exact but for rounding: `DERIVED`.
- The quadratic that a mechanism adds is the minimiser of a prediction, found to six digits.  It, and what is calibrated to it,
  may move by `CHOSEN`.  Most certificates of the gallery fix it, and are compared to `DERIVED`.
- An objective is certified to be nearer to its minimum than `DERIVED`.
- Parameters of a fit without noise move by the certified distances from the minimiser; those of a private fit with a seed by the
  noise of the cover too, and by `DRAWN` of their norm, or by `CHOSEN` if a quadratic was added.
- A count of mistakes may move by one, and by one more for each 10,000 records: some lie next to the boundary.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from golden_cases import CASES, GALLERY

FOLDER = Path(__file__).parent / "golden"
CERTIFICATES = "gallery/"
DERIVED = 1e-9
CHOSEN = 1e-5
DRAWN = 1e-7
# Of the conic solver's objective, at its default settings.
ORACLE = 1e-6
DIGITS = 11

# What is calibrated to the added quadratic.
CALIBRATED = {
    *(
        "strong_convexity",
        "jacobian_epsilon",
        "noise_epsilon",
        "noise_scale",
        "expected_noise",
        "predicted_risk",
        "tolerance",
    ),
    *("smoothing", "derivation_logarithms", "cover_distance", "cover_size", "cover_noise_cap"),
}
Golden = dict[str, Any]


@dataclass(frozen=True)
class Moved:
    """A number that is not where it was, None if there is or was none, and the largest difference that would mean nothing."""

    place: str
    old: Any
    new: Any
    allowed: float

    def __str__(self) -> str:
        if isinstance(self.old, float | int) and isinstance(self.new, float | int):
            change = abs(self.new - self.old)
            return f"{self.place}: {self.old:.12g} -> {self.new:.12g} (by {change:.2g}; {self.allowed:.2g} is allowed)"
        if isinstance(self.old, dict) or isinstance(self.new, dict):
            return f"{self.place}: {'new' if self.old is None else 'gone' if self.new is None else 'another kind'}"
        return f"{self.place}: {self.old!r} -> {self.new!r}"


def allowed(name: str, old: float, around: Mapping[str, Any]) -> float:
    """Return how far a number may be from the golden one, in the golden group that it belongs to."""
    if name == "test_mistakes":
        return 1.0 + around["test_records"] // 10_000
    if isinstance(old, int):
        return 0.0
    if "certificate" in around or "records" in around:  # a fit, private or not
        return of_a_fit(name, old, around)
    if name in ("added", *CALIBRATED) and around.get("added", 0.0) > 0 and not around.get("given", False):
        unit = {"added": around["strong_convexity"], "jacobian_epsilon": 1.0, "noise_epsilon": 1.0}
        return CHOSEN * max(abs(old), unit.get(name, 0.0))
    unit = {"jacobian_epsilon": 1.0, "noise_epsilon": 1.0, "derivation_logarithms": around.get("derivation_steps", 0)}
    return DERIVED * max(abs(old), unit.get(name, 0.0))


def of_a_fit(name: str, old: float, around: Mapping[str, Any]) -> float:
    """Return how far a number that describes fitted parameters may move."""
    certificate = around.get("certificate")
    if certificate is None:
        if name == "objective":
            return (DERIVED if "norm" in around else ORACLE) * abs(old)
        return 2 * around["distance"] + DERIVED * abs(old)
    # The slope of the mean objective: one record's, and the regularizer's.
    slope = certificate["gradient_bound"] + 1 if name == "objective" else 1.0
    drawn = (CHOSEN if certificate["added"] > 0 else DRAWN) * max(1.0, around["norm"])
    return slope * (2 * certificate["tolerance"] + 2 * certificate.get("cover_size", 0.0) + drawn)


def compare(old: Any, new: Any, place: str = "", around: Mapping[str, Any] | None = None) -> Iterator[Moved]:
    """Yield what differs between golden and measured numbers by more than it may."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(name for name in new if name not in old)]:
            yield from compare(old.get(name), new.get(name), f"{place}: {name}" if place else name, old)
        return
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for k, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from compare(one, other, f"{place} {k}", around)
        return
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (old, new))
    far = allowed(place.split(": ")[-1].rstrip("0123456789 "), old, around or {}) if numbers else 0.0
    if not (abs(new - old) <= far if numbers else old == new):  # NaN is nowhere near
        yield Moved(place, old, new, far)


def merge(old: Any, new: Any, around: Mapping[str, Any] | None = None, name: str = "") -> Any:
    """Return the golden numbers with those replaced that moved, so that a refreshed file shows nothing else."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {key: merge(old.get(key), value, old, key) for key, value in new.items()}
    return new if list(compare(old, new, name, around)) else old


def names() -> list[str]:
    """List the golden files that there should be."""
    return ["draws", *(CERTIFICATES + name for name in GALLERY), *dict.fromkeys(case.golden for case in CASES)]


def expected(name: str) -> list[str] | None:
    """List what a golden file of cases should hold; None for the other files, which are measured as a whole."""
    return [case.name for case in CASES if case.golden == name] or None


def load(name: str) -> Golden:
    """Read a golden file; one that does not exist is empty."""
    file = FOLDER / f"{name}.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}


def save(name: str, golden: Golden) -> None:
    file = FOLDER / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(rounded(golden), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def rounded(value: Any) -> Any:
    """Keep `DIGITS` digits of every number."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
