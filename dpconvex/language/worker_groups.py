"""Which partitions one task of a worker goes through: those that it has, so many that its memory holds them all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Kept", "groups_of", "neighbours"]

# The partitions of the tasks that a worker does at the same time take this share of its memory: Dask loads what a task needs
# before it begins, from disks too.
SHARE = 0.25


@dataclass(frozen=True)
class Kept:
    """A partition that a worker has read: its future, its number, how many records it has, and how many bytes they take there."""

    future: Any
    number: int
    size: int
    bytes: int


def neighbours(client: Any, count: int) -> list[str]:
    """Return a worker for each of so many partitions: neighbours go to one worker, which can then add up their sums."""
    threads = [address for address, number in sorted(client.nthreads().items()) for _ in range(number)]
    return [threads[k * len(threads) // count] for k in range(count)] if threads else [""] * count


def groups_of(client: Any, parts: Sequence[Kept]) -> list[tuple[str, list[Kept]]]:
    """Return groups of partitions, each with the worker that has them; without name if none has."""
    holders = client.who_has([part.future for part in parts])
    known = client.scheduler_info(n_workers=-1)["workers"]
    by_worker: dict[str, list[Kept]] = {}
    for part in parts:
        found = [address for address in holders.get(part.future.key, ()) if address in known]
        by_worker.setdefault(min(found, default=""), []).append(part)
    groups: list[tuple[str, list[Kept]]] = []
    for address, held in by_worker.items():
        if not address:
            groups += [(address, [part]) for part in held]
            continue
        threads = known[address]["nthreads"]
        limit = known[address]["memory_limit"] or np.inf
        groups += [(address, group) for group in cut(held, threads, SHARE * limit / threads)]
    return groups


def cut(parts: Sequence[Kept], count: int, limit: float) -> list[list[Kept]]:
    """Cut a list of partitions into so many pieces with about as many records each; more, where they take too many bytes."""
    sizes = np.array([part.size for part in parts], dtype=float)
    places = (np.cumsum(sizes) - sizes / 2) * count // sizes.sum()
    groups: list[list[Kept]] = []
    last, used = -1.0, 0
    for part, place in zip(parts, places.tolist(), strict=True):
        used += part.bytes
        if place != last or used > limit:
            groups.append([])
            last, used = place, part.bytes
        groups[-1].append(part)
    return groups
