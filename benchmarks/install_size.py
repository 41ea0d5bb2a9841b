"""What an install takes on disk, package by package: ``python -m benchmarks.install_size [EXTRA ...]``.

Makes an environment in a temporary folder, installs this checkout into it with the extras, and adds up the files of each package.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import chosen

ROOT = Path(__file__).resolve().parent.parent
LEAST = 5.0  # MB; smaller packages are added up
SIZES = """
import argparse
import json
from importlib.metadata import distributions
files = {d.name: [d.locate_file(f) for f in d.files or ()] for d in distributions()}
sizes = {name: sum(f.stat().st_size for f in found if f.is_file()) for name, found in files.items()}
print(json.dumps(sizes))
"""


def sizes(extras: list[str], small: bool) -> dict[str, float]:
    """Return megabytes of each package of a fresh environment, or of this one, the largest first."""
    if small:
        here = json.loads(subprocess.run([sys.executable, "-c", SIZES], check=True, capture_output=True).stdout)
        return {name: size / 1e6 for name, size in here.items()}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = Path(folder) / "bin" / "python"
        before = json.loads(subprocess.run([python, "-c", SIZES], check=True, capture_output=True).stdout)
        what = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-compile", what], check=True)
        found = json.loads(subprocess.run([python, "-c", SIZES], check=True, capture_output=True).stdout)
    added = {name: size / 1e6 for name, size in found.items() if name not in before}
    return dict(sorted(added.items(), key=lambda item: -item[1]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*")
    options = chosen(parser, arguments)
    found = sizes(options.extras, options.small)
    for name, size in found.items():
        if size >= LEAST:
            print(f"{name:24} {size:7.0f} MB")
    few = [size for size in found.values() if size < LEAST]
    print(f"{f'{len(few)} smaller ones':24} {sum(few):7.0f} MB")
    print(f"{'in all':24} {sum(found.values()):7.0f} MB")


if __name__ == "__main__":
    main()
