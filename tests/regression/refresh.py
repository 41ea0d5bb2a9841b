"""Golden files: numbers as they were when somebody last looked, and how far each may be from them.

    make golden                             # show what moved
    make golden ARGUMENTS="--write iris"    # refresh one file

Run it when a test in this folder fails.  Each number that moved is a question: was it meant to?  Data sets that are not shipped
are looked for in the folder named by DPCONVEX_DATA; what is not measured stays as it is.  A tolerance says how well a number is
determined on any machine, not how well it happened to agree on one:

- A constant that a rule derives is exact but for rounding: `DERIVED`.
- The quadratic that a mechanism adds is the minimiser of a prediction, found to six digits.  It, and what is calibrated to it,
  may move by `CHOSEN`.  Most certificates of the gallery fix it, and are compared to `DERIVED`.
- An objective is certified to be nearer to its minimum than `DERIVED`.
- Parameters of a fit without noise move by the certified distances from the minimiser; those of a private fit with a seed by the
  noise of the cover too, and by `DRAWN` of their norm, or by `CHOSEN` if a quadratic was added.
- A count of mistakes may move by one, and by one more for each 10,000 records: some lie next to the boundary.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from golden_cases import CASES, GALLERY
from golden_measures import Measured, certificates, draws

from benchmarks import public_data as loaders
from dpconvex.errors import DomainError

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
    *("strong_convexity", "jacobian_epsilon", "noise_epsilon", "noise_scale", "expected_noise", "predicted_risk"),
    *("tolerance", "smoothing", "derivation_logarithms", "cover_distance", "cover_size", "cover_noise_cap"),
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


def expected(name: str) -> list[str] | None:
    """List what a golden file of cases should hold; None for the other files, which are measured as a whole."""
    return [case.name for case in CASES if case.golden == name] or None


def load(name: str) -> Golden:
    """Read a golden file; one that does not exist is empty."""
    file = FOLDER / f"{name}.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}


def save(name: str, golden: Golden) -> None:
    file = FOLDER / f"{name}.json"
    file.write_text(json.dumps(rounded(golden), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def rounded(value: Any) -> Any:
    """Keep `DIGITS` digits of every number."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def measured(name: str, quick: bool) -> Golden:
    """Measure one golden file; what is left out is missing."""
    if name == "draws":
        return draws()
    if name.startswith(CERTIFICATES):
        return certificates(name.removeprefix(CERTIFICATES))
    found = {}
    for case in CASES:
        if case.golden != name or (quick and case.slow):
            continue
        try:
            data = case.data(loaders.find)
        except DomainError:
            print(f"  {case.name}: left out, its data are not here", file=sys.stderr)
            continue
        print(f"  {case.name}", file=sys.stderr, flush=True)
        found[case.name] = Measured(case, data).everything()
    return found


def refresh(name: str, write: bool, quick: bool) -> int:
    """Compare one golden file with what is measured now; returns how many numbers moved."""
    old, new = load(name), measured(name, quick)
    cases = expected(name)
    if cases is not None:  # what was left out stays as it is
        new = {case: new.get(case, old.get(case)) for case in cases if case in new or case in old}
    moved = list(compare(old, new))
    print("\n  ".join([f"{name}: {len(moved) or 'nothing'} moved", *map(str, moved)]))
    if write and moved:
        save(name, merge(old, new))
    return len(moved)


def against(folder: Path) -> int:
    """Print which certificates have another noise than in an older checkout, as ratios; returns how many."""
    moved = 0
    for file in sorted((folder / "tests" / "regression" / "golden" / "gallery").glob("*.json")):
        old, new = json.loads(file.read_text(encoding="utf-8")), load(f"gallery/{file.stem}")
        for case in sorted(old.keys() & new.keys()):
            before, after = (side[case].get("noise_scale") for side in (old, new))
            if before and after and abs(after / before - 1) > 1e-6:
                moved += 1
                print(f"{file.stem}, {case}: noise x {after / before:.4f}")
    return moved


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 1 if something moved and was not written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help="golden file without .json; by default all")
    parser.add_argument("--write", action="store_true", help="write what moved")
    parser.add_argument("--quick", action="store_true", help="leave out what takes long")
    parser.add_argument("--against", type=Path, metavar="DIR", help="an older checkout: only compare noise")
    options = parser.parse_args(arguments)
    if options.against is not None:
        return int(bool(against(options.against)))
    names = ["draws", *(CERTIFICATES + name for name in GALLERY), *dict.fromkeys(case.golden for case in CASES)]
    if unknown := set(options.names) - set(names):
        parser.error(f"no golden file is called {', '.join(sorted(unknown))}")
    moved = sum(refresh(name, options.write, options.quick) for name in options.names or names)
    return int(bool(moved) and not options.write)


if __name__ == "__main__":
    sys.exit(main())
