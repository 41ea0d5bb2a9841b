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
from pathlib import Path

from golden_cases import CASES, GALLERY
from golden_measures import Measured, certificates

from dpconvex.errors import DomainError

FOLDER = Path(__file__).parent / "golden"
CERTIFICATES = "gallery/"
DERIVED, CHOSEN, DRAWN = 1e-9, 1e-5, 1e-7
DIGITS = 11

# What is calibrated to the added quadratic.
CALIBRATED = {
    *("added", "strong_convexity", "jacobian_epsilon", "noise_epsilon", "noise_scale", "expected_noise", "tolerance"),
    *("predicted_risk", "smoothing", "derivation_logarithms", "cover_distance", "cover_size", "cover_noise_cap"),
}


def allowed(name, old, around):
    """Return how far a number may be from the golden one, in the golden group that it belongs to."""
    certificate = around.get("certificate")
    if name == "test_mistakes":
        return 1.0 + around["test_records"] // 10_000
    if isinstance(old, int):
        return 0.0
    if certificate is not None:  # a private fit
        # The slope of the mean objective: one record's, and the regularizer's.
        slope = certificate["gradient_bound"] + 1 if name == "objective" else 1.0
        drawn = (CHOSEN if certificate["added"] > 0 else DRAWN) * max(1.0, around["norm"])
        return slope * (2 * certificate["tolerance"] + 2 * certificate.get("cover_size", 0.0) + drawn)
    if "records" in around:
        return (0.0 if name == "objective" else 2 * around["distance"]) + DERIVED * abs(old)
    unit = {"jacobian_epsilon": 1.0, "noise_epsilon": 1.0, "derivation_logarithms": around.get("derivation_steps", 0)}
    if name in CALIBRATED and around.get("added", 0.0) > 0 and not around.get("given", False):
        return CHOSEN * max(abs(old), around["strong_convexity"] if name == "added" else unit.get(name, 0.0))
    return DERIVED * max(abs(old), unit.get(name, 0.0))


def compare(old, new, place="", around=None):
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
        yield place, old, new


def told(old, new):
    """Say what moved, one line each; of whole groups only that they are there."""
    moved = [(place, *("..." if isinstance(v, dict) else v for v in pair)) for place, *pair in compare(old, new)]
    return "\n".join(f"{place}: {before} -> {after}" for place, before, after in moved)


def merge(old, new, around=None, name=""):
    """Return the golden numbers with those replaced that moved, so that a refreshed file shows nothing else."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {key: merge(old.get(key), value, old, key) for key, value in new.items()}
    return new if list(compare(old, new, name, around)) else old


def load(name):
    """Read a golden file; one that does not exist is empty."""
    file = FOLDER / f"{name}.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}


def rounded(value):
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def measured(name, old):
    """Measure one golden file; what is left out stays as it was."""
    if name.startswith(CERTIFICATES):
        return certificates(name.removeprefix(CERTIFICATES))
    found = {}
    for case in CASES:
        if case.golden != name:
            continue
        if case.name in old:
            found[case.name] = old[case.name]
        print(f"  {case.name}", file=sys.stderr, flush=True)
        try:
            found[case.name] = Measured(case, case.data()).everything()
        except DomainError:
            print("    left out, its data are not here", file=sys.stderr)
    return found


def main(arguments=None):
    """Run the command line; the exit status is 1 if something moved and was not written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help="golden file without .json; by default all")
    parser.add_argument("--write", action="store_true", help="write what moved")
    options = parser.parse_args(arguments)
    names = [*(CERTIFICATES + name for name in GALLERY), *dict.fromkeys(case.golden for case in CASES)]
    if unknown := set(options.names) - set(names):
        parser.error(f"no golden file is called {', '.join(sorted(unknown))}")
    moved = False
    for name in options.names or names:
        old = load(name)
        new = measured(name, old)
        if change := told(old, new):
            moved = True
            if options.write:
                text = json.dumps(rounded(merge(old, new)), indent=1, ensure_ascii=False)
                (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(f"{name}:\n{change}" if change else f"{name}: nothing moved")
    return int(moved and not options.write)


if __name__ == "__main__":
    sys.exit(main())
