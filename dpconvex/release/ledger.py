"""A file of JSON lines that several processes append to and that loses nothing it has confirmed.

Every line is written under an exclusive lock and forced to the disk before `append` returns.  A process that dies in
the middle of a write leaves a torn last line, which `read` refuses and `mend` repairs.  `Budget` keeps its spends here.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from dpconvex.errors import DPConvexError
from dpconvex.release.files import distinct, draft_of, force_name


def create(path: Path, first: Mapping[str, Any]) -> None:
    """Make a ledger with its first line, unless there is one; the file appears whole or not at all."""
    file_locks()
    draft = draft_of(path)
    try:
        if path.exists():
            return
        if path.is_symlink():
            raise DPConvexError(f"{path}: this is a link to {os.readlink(path)}, which is not there; name a file.")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            append(descriptor, first, draft)
        finally:
            os.close(descriptor)
        os.link(draft, path)
        force_name(path)
    except FileExistsError:
        return  # another process was first
    except (OSError, ValueError) as error:
        raise DPConvexError(f"{path}: the ledger cannot be made ({reason(error)}).") from error
    finally:
        with suppress(OSError, ValueError):
            draft.unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Open an existing ledger for one process, and one thread of it, alone; yields the file descriptor.

    A ledger that is not there is an error and not a new ledger: that would forget what it held.  Whoever waits for the lock may
    find that the file was replaced meanwhile, and that the lock is on one that nobody will read again: then it begins anew.
    """
    fcntl = file_locks()
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        except (OSError, ValueError) as error:
            remedy = "; restore it, or state a total to make a new one" if isinstance(error, FileNotFoundError) else ""
            raise DPConvexError(f"{path}: the ledger cannot be opened ({reason(error)}){remedy}.") from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError as error:
                raise DPConvexError(
                    f"{path}: the ledger cannot be locked ({reason(error)}); keep it on a disk of this machine."
                ) from error
            if not is_at(descriptor, path):
                continue
            yield descriptor
            if not is_at(descriptor, path):
                raise DPConvexError(
                    f"{path}: the ledger was replaced while it was in use, and what was recorded may be lost; release nothing. "
                    "Find out who replaced it, and record the spend anew."
                )
            return
        finally:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough if a thread forked meanwhile
            os.close(descriptor)


def file_locks() -> ModuleType:
    try:
        import fcntl
    except ImportError as error:
        raise DPConvexError("this platform has no POSIX file locks; keep the budget without a path.") from error
    return fcntl


def reason(error: Exception) -> str:
    """Say in words what the operating system said."""
    return str(getattr(error, "strerror", None) or error)


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one that a path leads to."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def append(descriptor: int, fields: Mapping[str, Any], path: Path) -> bytes:
    """Write one line at the end of an open ledger and force it to the disk; a write that did not fit is undone."""
    line = json.dumps(fields).encode("ascii") + b"\n"
    write(descriptor, line, path)
    return line


def write(descriptor: int, data: bytes, path: Path) -> None:
    """Write bytes at the end of an open file and force them to the disk."""
    size, problem = os.fstat(descriptor).st_size, "the disk is full"
    try:
        whole = os.write(descriptor, data) == len(data)
    except OSError as error:
        whole, problem = False, reason(error)
    if not whole:
        os.ftruncate(descriptor, size)
        raise DPConvexError(
            f"{path}: nothing could be recorded ({problem}); what was written is undone; release nothing."
        )
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise DPConvexError(
            f"{path}: a line is written but perhaps not on the disk ({reason(error)}); it counts, but release nothing."
        ) from error


def read(descriptor: int, path: Path) -> bytes:
    """Return the lines of an open ledger, all of which are whole."""
    content = content_of(descriptor, path)
    if not content.endswith(b"\n"):
        raise DPConvexError(
            f"{path}: the last line is torn, so lines may be missing. If a crash in the middle of a write is all that happened, "
            "nothing was released on the torn line, and Budget.repair(path) mends it. Otherwise restore a copy."
        )
    return content


def mend(descriptor: int, path: Path) -> str:
    """Repair the torn last line of an open ledger; return the fragment that was taken off, if one was.

    A line that is whole but for its end stays (no proper part of a JSON object is itself JSON); a fragment goes.
    """
    whole, _, tail = content_of(descriptor, path).rpartition(b"\n")
    parse(whole + b"\n", path)
    if not tail:
        return ""
    try:
        decoded(tail)
    except ValueError:
        os.ftruncate(descriptor, len(whole) + 1)
        os.fsync(descriptor)
        return tail.decode("utf-8", errors="backslashreplace")
    write(descriptor, b"\n", path)
    return ""


def content_of(descriptor: int, path: Path) -> bytes:
    """Read an open file from its beginning to its end."""
    content = b""
    while part := os.pread(descriptor, 2**30, len(content)):
        content += part
    if b"\n" not in content:
        raise DPConvexError(f"{path}: no line of this ledger is whole; restore it from a copy.")
    return content


def parse(content: bytes, path: Path) -> list[Any]:
    """Return the values in whole lines, or say which of them is wrong."""
    values = []
    for position, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            values.append(decoded(line))
        except ValueError as error:
            raise DPConvexError(f"{path}, line {position}: not the line of a ledger ({error}).") from error
    return values


def decoded(line: bytes) -> Any:
    """Return the value that a line holds, or raise `ValueError`."""
    try:
        return json.loads(line, object_pairs_hook=distinct)
    except RecursionError as error:
        raise ValueError("its brackets are nested too deeply") from error
