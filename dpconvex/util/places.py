"""Files: checks of paths, and reading and atomic writing."""

import errno
import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpconvex.errors import DPConvexError, TemplateError
from dpconvex.util.arguments import PATH


def read_content(path: str | os.PathLike[str]) -> bytes:
    PATH.check("", path=path)
    file = Path(path)
    try:
        if file.exists() and not file.is_file():  # reading a device or a pipe may block forever
            raise OSError("it is a folder, a device or a pipe")
        return file.read_bytes()
    except FileNotFoundError:
        raise
    except (OSError, ValueError, MemoryError) as error:
        raise DPConvexError(f"{path}: the file cannot be read ({error}); name one that save wrote.") from error


def replaceable_path(path: object) -> Path:
    """Return the path of a new or a regular file; raise `TemplateError` for others, which are never replaced."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise TemplateError(f"no file can be made there: expected a non-empty text or path, not {path!r}.")
    file = Path(text)
    with suppress(OSError):  # a name may be too long: the write raises
        if file.exists() and not file.is_file():
            raise TemplateError(f"{path}: no file can be made there; it is a folder or a device. Name another file.")
    return file


def to_write(path: str, inputs: Mapping[str, str | None]) -> Path:
    """Return the path of a file that can be written, and is no input; raise before a fit is charged and then lost."""
    for what, other in inputs.items():
        if other is not None and leads_to(Path(path), Path(other)):
            folder = os.path.isdir(other) and "a folder with data files; name a file elsewhere"
            raise TemplateError(f"{path}: this is {what}, {folder or 'and would be written over; name another file'}.")
    file = replaceable_path(path)
    try:
        if file.exists() and not os.access(file, os.W_OK):
            raise PermissionError(0, "the file there may not be written to")
        draft = draft_of(Path(os.path.realpath(file)))
        draft.touch(exist_ok=False)
        draft.unlink()
    except OSError as error:
        raise TemplateError(f"{path}: no file can be made there ({error.strerror}); name another file.") from error
    return file


def leads_to(file: Path, other: Path) -> bool:
    """Return whether a path leads to a file, or into a folder, through links of any kind; the path may be new."""
    with suppress(OSError, ValueError):
        mine, its = Path(os.path.realpath(file)), Path(os.path.realpath(other))
        entries = its.iterdir() if its.is_dir() else [its]
        return mine.is_relative_to(its) or any(e.exists() and mine.exists() and mine.samefile(e) for e in entries)
    return False


def draft_of(file: Path) -> Path:
    return file.with_name(f".{file.name}.{secrets.token_hex(8)}")


def write_atomically(path: Path, content: bytes, over: bool = True) -> None:
    """Write a file atomically: over the target of a link, with its permissions, or (without `over`) only if there is no file."""
    file = Path(os.path.realpath(path)) if over else path
    if not file.parent.exists():
        said = f"there is no folder {file.parent}; make it, or name a file elsewhere"
        raise FileNotFoundError(errno.ENOENT, said, os.fspath(path))
    kept = stat.S_IMODE(file.stat().st_mode) if over and file.exists() else None
    draft = draft_of(file)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if kept is not None else 0o666)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            if kept is not None:
                os.fchmod(descriptor, kept)
            stream.write(content)
            stream.flush()
            os.fsync(descriptor)
        (os.replace if over else os.link)(draft, file)
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the directory entry must last as well as the content
        finally:
            os.close(folder)
    finally:
        draft.unlink(missing_ok=True)


def unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field occurs twice")
    return fields
