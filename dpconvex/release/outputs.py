"""Where a command may write: found out before anything is paid, and never over what it reads."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from dpconvex.errors import TemplateError


def writable(path: str, inputs: Mapping[str, str | None]) -> Path:
    """Return the path of a file that can be made, so that no fit is paid for and then lost."""
    file = Path(path)
    for what, other in inputs.items():
        if other is not None and same_file(file, Path(other)):
            raise TemplateError(f"{path}: this is {what}, and would be written over; name another file.")
    try:
        if file.exists() and not file.is_file():
            raise TemplateError(f"{path}: no file can be made there; it is a folder or a device. Name another file.")
        if not file.absolute().parent.is_dir():
            raise TemplateError(
                f"{path}: no file can be made there; its folder is missing. Make it, or name another file."
            )
        if file.exists() and not os.access(file, os.W_OK):
            raise PermissionError(0, "the file there may not be written to")
        draft = draft_of(file)
        try:
            draft.touch(exist_ok=False)
        finally:
            draft.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        if isinstance(error, TemplateError):
            raise
        why = getattr(error, "strerror", None) or error
        raise TemplateError(f"{path}: no file can be made there ({why}); name another file.") from error
    return file


def replaceable(path: object) -> Path:
    """Return the path of a file that is not there yet, or is a regular one: nothing else is ever replaced."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise TemplateError(f"the path of a file must be a text or a path, and not empty, not {path!r}.")
    file = Path(text)
    if file.exists() and not file.is_file():
        raise TemplateError(f"{path}: no file can be made there; it is a folder or a device. Name another file.")
    return file


def same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, through links of any kind; it need not be there yet."""
    try:
        if os.path.realpath(one) == os.path.realpath(other):
            return True
        return os.path.samefile(one, other)
    except (OSError, ValueError):
        return False


def draft_of(file: Path) -> Path:
    """Return a fresh name beside a file, to write it under at first."""
    return file.with_name(f".{file.name}.{secrets.token_hex(8)}")


def write_whole(file: Path, content: bytes) -> None:
    draft = draft_of(file)
    try:
        with draft.open("xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, file)
    finally:
        draft.unlink(missing_ok=True)
