"""Which partitions one task of a worker goes through: all that it has, if its memory holds them at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# The partitions of a task take this share of its worker's memory: Dask loads what a task needs before it begins, from disks too.
SHARE = 0.25


@dataclass(frozen=True)
class Bundle:
    """Neighbouring partitions that one task of a worker has read.

    Attributes
    ----------
    future : future or delayed object
        Of a list of their records.
    number : int
        Of the first of them.
    seen : tuple of (int, int or None)
        Number of records and fingerprint of each.
    bytes : int
        Of all of them, there.
    """

    future: Any
    number: int
    seen: tuple[tuple[int, int | None], ...]
    bytes: int

    @property
    def size(self) -> int:
        return sum(size for size, _ in self.seen)

    @property
    def numbers(self) -> range:
        return range(self.number, self.number + len(self.seen))


@dataclass(frozen=True)
class Group:
    """Bundles of one task, the worker that has them (without name if none has), and threads that go through them."""

    parts: list[Bundle]
    address: str = ""
    threads: int = 1


def neighbours(client: Any, count: int) -> list[str]:
    """Return a worker for each of so many bundles: neighbours go to one worker, which can then add up their sums."""
    threads = [address for address, number in sorted(client.nthreads().items()) for _ in range(number)]
    return [threads[k * len(threads) // count] for k in range(count)] if threads else [""] * count


def groups_of(client: Any, parts: Sequence[Bundle]) -> list[Group]:
    """Return groups of bundles that lie together: all that a worker has, as far as its memory allows."""
    holders = client.who_has([part.future for part in parts])
    known = client.scheduler_info(n_workers=-1)["workers"]
    if not known:
        return [Group([part]) for part in parts]
    places = balanced(parts, [holders.get(part.future.key, ()) for part in parts], known)
    groups = []
    for address, held in places.items():
        cut = within(held, SHARE * (known[address]["memory_limit"] or np.inf))
        threads = -(-known[address]["nthreads"] // max(len(cut), 1))
        groups += [Group(some, address, min(threads, sum(len(part.seen) for part in some))) for some in cut]
    return groups


def balanced(
    parts: Sequence[Bundle], holders: Sequence[Sequence[str]], known: Mapping[str, Any]
) -> dict[str, list[Bundle]]:
    """Give each worker what it has, up to its part of all records, and what is left to whoever has least.

    What a worker does not have is sent to it once.
    """
    threads = {address: float(worker["nthreads"]) for address, worker in sorted(known.items())}
    scale = sum(part.size for part in parts) / sum(threads.values())
    room = {address: scale * number for address, number in threads.items()}
    places: dict[str, list[Bundle]] = {address: [] for address in room}
    left = []
    for part, found in zip(parts, holders, strict=True):
        address = max((a for a in found if a in room), key=room.__getitem__, default="")
        if address and room[address] >= part.size / 2:
            places[address].append(part)
            room[address] -= part.size
        else:
            left.append(part)
    for part in left:
        address = max(room, key=room.__getitem__)
        places[address].append(part)
        room[address] -= part.size
    return {address: sorted(held, key=lambda part: part.number) for address, held in places.items()}


def within(parts: Sequence[Bundle], limit: float) -> list[list[Bundle]]:
    groups: list[list[Bundle]] = []
    used = 0
    for part in parts:
        used += part.bytes
        if not groups or used > limit:
            groups.append([])
            used = part.bytes
        groups[-1].append(part)
    return groups
