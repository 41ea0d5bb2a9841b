"""Which partitions one task of a worker goes through: all that it has, if its memory holds them at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# The partitions of a task take this share of its worker's memory: Dask loads what a task needs before it begins, from disks too.
SHARE = 0.25


@dataclass(frozen=True)
class Kept:
    """A partition that a worker has read: its future, its number, how many records it has, and how many bytes they take there."""

    future: Any
    number: int
    size: int
    bytes: int


@dataclass(frozen=True)
class Group:
    """Partitions of one task, the worker that has them (without name if none has), and threads that go through them."""

    parts: list[Kept]
    address: str = ""
    threads: int = 1


def neighbours(client: Any, count: int) -> list[str]:
    """Return a worker for each of so many partitions: neighbours go to one worker, which can then add up their sums."""
    threads = [address for address, number in sorted(client.nthreads().items()) for _ in range(number)]
    return [threads[k * len(threads) // count] for k in range(count)] if threads else [""] * count


def groups_of(client: Any, parts: Sequence[Kept]) -> list[Group]:
    """Return groups of partitions that lie together: all that a worker has, as far as its memory allows."""
    holders = client.who_has([part.future for part in parts])
    known = client.scheduler_info(n_workers=-1)["workers"]
    if not known:
        return [Group([part]) for part in parts]
    places = balanced(parts, [holders.get(part.future.key, ()) for part in parts], known)
    groups = []
    for address, held in places.items():
        cut = within(held, SHARE * (known[address]["memory_limit"] or np.inf))
        threads = -(-known[address]["nthreads"] // max(len(cut), 1))
        groups += [Group(some, address, min(threads, len(some))) for some in cut]
    return groups


def balanced(
    parts: Sequence[Kept], holders: Sequence[Sequence[str]], known: Mapping[str, Any]
) -> dict[str, list[Kept]]:
    """Give each worker partitions that it has, up to its part of all records, and those that are left to whoever has least.

    What a worker does not have is sent to it once.
    """
    room = {address: float(worker["nthreads"]) for address, worker in sorted(known.items())}
    scale = sum(part.size for part in parts) / sum(room.values())
    room = {address: scale * threads for address, threads in room.items()}
    places: dict[str, list[Kept]] = {address: [] for address in room}
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


def within(parts: Sequence[Kept], limit: float) -> list[list[Kept]]:
    groups: list[list[Kept]] = []
    used = 0
    for part in parts:
        used += part.bytes
        if not groups or used > limit:
            groups.append([])
            used = part.bytes
        groups[-1].append(part)
    return groups
