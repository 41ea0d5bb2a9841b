"""Files appear whole, where a path leads, with the permissions that they had, and nothing is left beside them."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dpconvex as dp
from dpconvex.learners.components import Components

RELEASE = dp.Release({"w": [0.5]}, not_private_because="no noise was added")
SAVES: dict[str, Callable[[Any], None]] = {"release": RELEASE.save, "components": Components([[[0.5]]]).save}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES)
@pytest.mark.parametrize("before", [0o600, 0o640, 0o444, 0o666])
def test_a_file_keeps_its_permissions(tmp_path: Path, save: Callable[[Any], None], before: int) -> None:
    path = tmp_path / "model.npz"
    path.write_bytes(b"before")
    path.chmod(before)
    save(path)
    assert path.read_bytes() != b"before"
    assert mode(path) == before


def test_a_new_file_has_usual_permissions(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        RELEASE.save(tmp_path / "model.npz")
    finally:
        os.umask(before)
    assert mode(tmp_path / "model.npz") == 0o640


@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES)
@pytest.mark.parametrize("there", [True, False])
def test_links_stay_and_what_they_lead_to_is_written(tmp_path: Path, save: Callable[[Any], None], there: bool) -> None:
    (tmp_path / "store").mkdir()
    target, link, second = tmp_path / "store" / "model.npz", tmp_path / "link.npz", tmp_path / "second.npz"
    link.symlink_to(target)
    second.symlink_to("link.npz")
    if there:
        target.write_bytes(b"before")
        target.chmod(0o600)
    save(second)
    assert link.is_symlink()
    assert second.is_symlink()
    assert target.stat().st_size > 10
    assert not there or mode(target) == 0o600
    assert os.listdir(tmp_path / "store") == ["model.npz"]
