"""The benchmark of fits on workers: what it writes, and that both ways release the same."""

from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import scale


@pytest.mark.parametrize("classes", [2, 3])
def test_files_hold_records_that_can_be_fitted(tmp_path: Path, classes: int) -> None:
    options = Namespace(folder=tmp_path, features=3, classes=classes, pieces=2, repetitions=1)
    scale.write(tmp_path, 201, 3, classes, 2)
    written = [path.stat().st_mtime_ns for path in sorted(tmp_path.iterdir())]
    scale.write(tmp_path, 201, 3, classes, 2)
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.iterdir())] == written
    assert sum(len(np.load(tmp_path / f"x{k}.npy")) for k in range(2)) == 201
    found = scale.in_memory(options)
    assert found["passes"] > 0
    assert found["seconds"] > 0
    assert set(found["parameters"]) == ({"w"} if classes == 2 else {"Phi_0", "Phi_1", "Phi_2"})
