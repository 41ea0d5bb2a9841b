"""A file of JSON lines that processes append to and that loses nothing it has confirmed; `mend` repairs a torn last line."""

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from dpconvex.errors import DPConvexError
from dpconvex.util.arguments import require, retold
from dpconvex.util.places import distinct, write_whole


def line_of(fields: Mapping[str, Any], content: bytes = b"") -> bytes:
    """Return a line with a checksum, its last entry, of it and the line before: what was changed or left out is noticed."""
    return sealed(json.dumps(fields).encode("ascii"), last_of(content)) + b"\n"


def without_last(content: bytes) -> bytes:
    return content[: content.rfind(b"\n", 0, -1) + 1]


def last_of(content: bytes) -> bytes:
    return content[content.rfind(b"\n", 0, -1) + 1 : -1]


def sealed(body: bytes, before: bytes) -> bytes:
    return body[:-1] + b', "sum": "%s"}' % sha256(before + body).hexdigest()[:16].encode()


REMEDIES = {
    errno.ENOENT: "restore it, or state a total (--budget 3) to make a new one in a folder that exists",
    errno.ELOOP: "its links lead in a circle; name a file",
    errno.EACCES: "let your user read and write it (chmod u+rw), and its folder if it is new",
    errno.EROFS: "keep it on a disk that can be written",
    errno.ENOSPC: "make room on the disk",
}


def failed(path: Path, what: str, error: OSError) -> DPConvexError:
    """Return what to raise for a ledger that the system refuses, with a remedy."""
    broken = path.is_symlink() and not path.exists() and error.errno != errno.ELOOP
    remedy = "it is a link to no file; remove it, or restore that file" if broken else REMEDIES.get(error.errno or 0)
    return DPConvexError(f"{path}: the ledger cannot be {what} ({error.strerror}); {remedy or 'name another file'}.")


@dataclass(frozen=True)
class FileLedger:
    """The lines of a ledger in a file."""

    address: Path

    def __str__(self) -> str:
        return str(self.address)

    @property
    def file(self) -> str:
        return str(self.address)

    def exists(self) -> bool:
        return self.address.exists()

    def create(self, content: bytes) -> None:
        """Make a ledger of these lines, unless there is one; the file appears whole or not at all."""
        try:
            if not (self.address.exists() or self.address.is_symlink()):
                with suppress(FileExistsError):  # another process was first
                    write_whole(self.address, content, over=False)
        except OSError as error:
            raise failed(self.address, "made", error) from error

    def read(self) -> bytes:
        with locked(self.address, writing=False) as descriptor:
            return read(descriptor)

    def append(self, make: Callable[[bytes], bytes]) -> bytes:
        """Add the line that `make` returns for the ledger as it is; return the ledger with it."""
        with locked(self.address) as descriptor:
            line = make(content := read(descriptor))
            append(descriptor, line, self.address)
        return content + line


@contextmanager
def locked(path: Path, writing: bool = True) -> Iterator[int]:
    """Open an existing ledger for one process, and one thread of it, alone, or to read it; yields the file descriptor.

    A ledger that is not there is an error: a new one would forget what it held.  Whoever waited for the lock on a file that was
    replaced meanwhile begins anew.
    """
    with retold("this platform has no POSIX file locks; keep the budget without a path", ImportError):
        import fcntl
    mode, lock = (os.O_RDWR | os.O_APPEND, fcntl.LOCK_EX) if writing else (os.O_RDONLY | os.O_NONBLOCK, fcntl.LOCK_SH)
    while True:
        try:
            descriptor = os.open(path, mode)
        except OSError as error:
            raise failed(path, "opened" if writing else "read", error) from error
        try:
            with retold(f"{path}: the ledger cannot be locked; keep it on a disk of this machine", OSError):
                fcntl.flock(descriptor, lock)
            if not is_at(descriptor, path):
                continue
            yield descriptor
            if not is_at(descriptor, path):
                why = "the ledger was replaced while it was in use, and what was recorded may be lost; release nothing"
                raise DPConvexError(f"{path}: {why}. Find out who replaced it, and record the spend anew.")
            return
        finally:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough if a thread forked meanwhile
            os.close(descriptor)


def is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def append(descriptor: int, data: bytes, path: Path) -> None:
    """Write at the end of an open ledger and force it to the disk; a write that did not fit is undone."""
    size = os.fstat(descriptor).st_size
    try:
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, "the disk is full")
    except OSError as error:
        os.ftruncate(descriptor, size)
        why = f"nothing could be recorded ({error.strerror}), and what was written is undone"
        raise DPConvexError(f"{path}: {why}; release nothing.") from error
    with retold(f"{path}: a line is written, but perhaps not on the disk; it counts, but release nothing", OSError):
        os.fsync(descriptor)


def mend(descriptor: int, path: Path) -> str:
    """Repair the torn last line: one that is whole but for its end stays, and a fragment is taken off and returned."""
    whole, _, tail = read(descriptor).rpartition(b"\n")
    if not tail:
        return ""
    try:
        json.loads(tail)  # no proper part of a JSON object is itself JSON
    except (ValueError, RecursionError):
        os.ftruncate(descriptor, len(whole) + 1)
        os.fsync(descriptor)
        return tail.decode("utf-8", errors="backslashreplace")
    append(descriptor, b"\n", path)
    return ""


def read(descriptor: int) -> bytes:
    content = bytearray()
    while part := os.pread(descriptor, 2**20, len(content)):
        content += part
    said = (
        "this is a database of SQLite, and its name stands for a file of lines; write its address, sqlite:///spent.db"
    )
    require(not content.startswith(b"SQLite format 3"), f"{said}.")
    return bytes(content)


def lines_of(content: bytes, path: object, start: int = 0) -> list[tuple[bytes, bytes]]:
    """Return the lines of a ledger from a place on, all of which must be whole, each with the line before."""
    require(b"\n" in content, f"{path}: no line of this ledger is whole; restore it from a copy.", DPConvexError)
    why = "the last line is torn, so lines may be missing. If a crash in the middle of a write is all that happened"
    remedy = "nothing was released on it, and Budget.repair(path) mends it. Otherwise restore a copy"
    require(content.endswith(b"\n"), f"{path}: {why}, {remedy}.", DPConvexError)
    lines = content[start:].split(b"\n")[:-1]
    return list(zip(lines, [last_of(content[:start]), *lines], strict=False))


def decoded(line: bytes, before: bytes) -> Any:
    """Return the value that a line holds, or raise `ValueError`; `before` is the line before it, which its checksum covers."""
    try:
        value = json.loads(line, object_pairs_hook=distinct)
    except RecursionError as error:
        raise ValueError("its brackets are nested too deeply") from error
    if line != sealed(line[:-28] + b"}", before):
        raise ValueError("its checksum is another, or gone: a line was changed; restore the file from a copy")
    value.pop("sum")
    return value
