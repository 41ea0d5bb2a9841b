"""A ledger in a file of JSON lines that several processes append to.  Confirmed lines survive a crash."""

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
from dpconvex.util.arguments import recast, require
from dpconvex.util.places import unique_fields, write_atomically


def line_of(fields: Mapping[str, Any], content: bytes = b"") -> bytes:
    """Return a line with a checksum of itself and the line before, which detects changed and removed lines."""
    return sealed(json.dumps(fields).encode("ascii"), last_of(content)) + b"\n"


def without_last(content: bytes) -> bytes:
    return content[: content.rfind(b"\n", 0, -1) + 1]


def last_of(content: bytes) -> bytes:
    return content[content.rfind(b"\n", 0, -1) + 1 : -1]


def sealed(body: bytes, before: bytes) -> bytes:
    return body[:-1] + b', "sum": "%s"}' % sha256(before + body).hexdigest()[:16].encode()


REMEDIES = {
    errno.ENOENT: "restore it, or state a total (--budget 3) to make a new one in a folder that exists",
    errno.ELOOP: "its symbolic links form a loop; name a file",
    errno.EACCES: "let your user read and write it (chmod u+rw), and its folder if it is new",
    errno.EROFS: "keep it on a disk that can be written",
    errno.ENOSPC: "make room on the disk",
}


def failed(path: Path, what: str, error: OSError) -> DPConvexError:
    """Return the error to raise for a failed system call on a ledger, with a remedy."""
    broken = os.path.islink(path) and not os.path.exists(path) and error.errno != errno.ELOOP
    remedy = "it is a broken link; remove the link, or restore its target" if broken else REMEDIES.get(error.errno or 0)
    return DPConvexError(f"{path}: the ledger cannot be {what} ({error.strerror}); {remedy or 'name another file'}.")


@dataclass(frozen=True)
class FileLedger:
    """A ledger in a file."""

    address: Path

    def __str__(self) -> str:
        return str(self.address)

    @property
    def file(self) -> str:
        return str(self.address)

    def exists(self) -> bool:
        return os.path.exists(self.address)

    def create(self, content: bytes) -> None:
        """Create the file with these lines, unless it exists; after a crash it is complete or absent."""
        try:
            if not os.path.lexists(self.address):
                with suppress(FileExistsError):  # another process was first
                    write_atomically(self.address, content, over=False)
        except OSError as error:
            raise failed(self.address, "made", error) from error

    def read(self) -> bytes:
        with locked(self.address, writing=False) as descriptor:
            return read(descriptor)

    def append(self, make: Callable[[bytes], bytes]) -> bytes:
        """Append the line that `make` returns for the current content; return the new content."""
        with locked(self.address) as descriptor:
            line = make(content := read(descriptor))
            append(descriptor, line, self.address)
        return content + line


@contextmanager
def locked(path: Path, writing: bool = True) -> Iterator[int]:
    """Open an existing ledger, with an exclusive lock for writing or a shared one for reading; yield the file descriptor.

    A missing ledger is an error, as a new one would lose its entries.  If the file was replaced while waiting for the lock,
    open the new one.
    """
    with recast("this platform has no POSIX file locks; keep the budget without a path", ImportError):
        import fcntl
    mode, lock = (os.O_RDWR | os.O_APPEND, fcntl.LOCK_EX) if writing else (os.O_RDONLY | os.O_NONBLOCK, fcntl.LOCK_SH)
    while True:
        try:
            descriptor = os.open(path, mode)
        except OSError as error:
            raise failed(path, "opened" if writing else "read", error) from error
        try:
            with recast(f"{path}: the ledger cannot be locked; keep it on a disk of this machine", OSError):
                fcntl.flock(descriptor, lock)
            if not is_at(descriptor, path):
                continue
            yield descriptor
            if not is_at(descriptor, path):
                why = "the ledger was replaced during the spend, which may be lost; release nothing"
                raise DPConvexError(f"{path}: {why}. Find out who replaced it, and record the spend again.")
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
    """Append to an open ledger and force the data to the disk.  An incomplete write is undone, and raises an error."""
    size = os.fstat(descriptor).st_size
    try:
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, "the disk is full")
    except OSError as error:
        os.ftruncate(descriptor, size)
        why = f"the spend could not be recorded ({error.strerror}), and a partial write was undone"
        raise DPConvexError(f"{path}: {why}; release nothing.") from error
    with recast(f"{path}: the entry was written, but perhaps not to the disk; it counts, but release nothing", OSError):
        os.fsync(descriptor)


def mend(descriptor: int, path: Path) -> str:
    """Repair the torn last line.  A complete line gets its missing newline; a fragment is removed and returned."""
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
    said = "this file is an SQLite database; write its address, such as sqlite:///spent.db"
    require(not content.startswith(b"SQLite format 3"), f"{said}.")
    return bytes(content)


def lines_of(content: bytes, path: object, start: int = 0) -> list[tuple[bytes, bytes]]:
    """Return pairs (line, line before) from byte `start` on; raise if the last line is torn."""
    require(b"\n" in content, f"{path}: this ledger has no complete line; restore it from a copy.", DPConvexError)
    why = "the last line is torn, so lines may be missing. If the only cause is a crash during a write"
    repair = "Budget.repair(path), or `dpconvex budget repair`, repairs the file"
    remedy = f"nothing was released on that line, and {repair}. Otherwise restore a copy"
    require(content.endswith(b"\n"), f"{path}: {why}, {remedy}.", DPConvexError)
    lines = content[start:].split(b"\n")[:-1]
    return list(zip(lines, [last_of(content[:start]), *lines], strict=False))


def decoded(line: bytes, before: bytes) -> Any:
    """Return the JSON value of a line, or raise `ValueError`; the checksum also covers `before`, the line before."""
    try:
        value = json.loads(line, object_pairs_hook=unique_fields)
    except RecursionError as error:
        raise ValueError("its brackets are nested too deeply") from error
    if line != sealed(line[:-28] + b"}", before):
        raise ValueError("its checksum is wrong or missing: a line was changed; restore the file from a copy")
    value.pop("sum")
    return value
