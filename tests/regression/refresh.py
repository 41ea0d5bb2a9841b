"""Measures what the golden files hold, shows what moved, and with ``--write`` writes it.

    make golden                             # show
    make golden ARGUMENTS="--write iris"    # refresh one file

Run it when a test in this folder fails.  Each number that moved is a question: was it meant to?  Data sets that are not shipped
are looked for in the folder named by DPCONVEX_DATA; what is not measured stays as it is.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import golden_files
from golden_cases import CASES
from golden_measures import Measured, certificates, draws

from benchmarks import public_data as loaders
from dpconvex.errors import DomainError


def measured(name: str, quick: bool) -> golden_files.Golden:
    """Measure one golden file; what is left out is missing."""
    if name == "draws":
        return draws()
    if name.startswith(golden_files.CERTIFICATES):
        return certificates(name.removeprefix(golden_files.CERTIFICATES))
    found = {}
    for case in CASES:
        if case.golden != name or (quick and case.slow):
            continue
        try:
            data = case.data(loaders.find)
        except DomainError:
            print(f"  {case.id}: left out, its data are not here", file=sys.stderr)
            continue
        print(f"  {case.id}", file=sys.stderr, flush=True)
        found[case.name] = Measured(case, data).everything()
    return found


def refresh(name: str, write: bool, quick: bool) -> int:
    """Compare one golden file with what is measured now; returns how many numbers moved."""
    old, new = golden_files.load(name), measured(name, quick)
    expected = golden_files.expected(name)
    if expected is not None:  # what was left out stays as it is
        new = {case: new.get(case, old.get(case)) for case in expected if case in new or case in old}
    moved = list(golden_files.compare(old, new))
    print(f"{name}: {len(moved) or 'nothing'} moved")
    for change in moved:
        print(f"  {change}")
    if write and moved:
        golden_files.save(name, golden_files.merge(old, new))
        print(f"  written to {golden_files.FOLDER / name}.json")
    return len(moved)


def against(folder: Path) -> int:
    """Print which certificates have another noise than in an older checkout, as ratios; returns how many."""
    moved = 0
    for file in sorted((folder / "tests" / "regression" / "golden" / "gallery").glob("*.json")):
        old, new = json.loads(file.read_text(encoding="utf-8")), golden_files.load(f"gallery/{file.stem}")
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
    parser.add_argument(
        "--against", type=Path, metavar="DIR", help="an older checkout: only compare its certificates' noise"
    )
    options = parser.parse_args(arguments)
    if options.against is not None:
        return int(bool(against(options.against)))
    unknown = set(options.names) - set(golden_files.names())
    if unknown:
        parser.error(f"no golden file is called {', '.join(sorted(unknown))}")
    moved = sum(refresh(name, options.write, options.quick) for name in options.names or golden_files.names())
    return int(bool(moved) and not options.write)


if __name__ == "__main__":
    sys.exit(main())
