"""The README keeps its word: its example runs as printed, and its table of problems is complete."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import dpconvex as dp

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_examples_run_as_printed() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    certificate, release = names["certificate"], names["release"]
    assert isinstance(certificate, dp.Certificate)
    assert isinstance(release, dp.Release)
    assert np.shape(release["Phi_0"]) == (10, 10)


def test_every_shipped_problem_is_in_the_table() -> None:
    assert set(re.findall(r'^\| `"(\w+)"` \|', README, flags=re.MULTILINE)) == set(dp.problems())
