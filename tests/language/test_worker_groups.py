"""Which partitions one task of a worker goes through."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpconvex.language.worker_groups import Bundle, balanced, groups_of


def kept(*sizes: int) -> list[Bundle]:
    return [Bundle(Future(f"p{k}"), k, ((size, None),), 10) for k, size in enumerate(sizes)]


class Future:
    def __init__(self, key: str) -> None:
        self.key = key


class Client:
    """What a client says of two workers, the second of which has twice the threads."""

    def __init__(self, has: dict[str, list[str]], memory: int = 0) -> None:
        self.has, self.memory = has, memory

    def who_has(self, futures: Any) -> dict[str, list[str]]:
        return self.has

    def nthreads(self) -> dict[str, int]:
        return {"a": 1, "b": 2}

    def scheduler_info(self, n_workers: int) -> dict[str, Any]:
        assert n_workers == -1
        workers = {address: {"nthreads": n, "memory_limit": self.memory} for address, n in self.nthreads().items()}
        return {"workers": workers}


def test_a_worker_has_one_task_for_what_it_has() -> None:
    has = {f"p{k}": ["a" if k < 2 else "b"] for k in range(6)}
    groups = groups_of(Client(has), kept(*[5] * 6))
    assert [(g.address, [p.number for p in g.parts], g.threads) for g in groups] == [
        ("a", [0, 1], 1),
        ("b", [2, 3, 4, 5], 2),
    ]
    assert len(groups_of(Client(has, memory=4 * 20), kept(*[5] * 6))) == 3  # two at a time, in a quarter of the memory


def test_work_is_shared_by_threads_whoever_has_what() -> None:
    rng = np.random.default_rng(0)
    known = Client({}).scheduler_info(-1)["workers"]
    for _ in range(50):
        parts = kept(*rng.integers(1, 100, rng.integers(1, 30)).tolist())
        holders = [rng.choice(["a", "b", "gone"], 1).tolist() for _ in parts]
        places = balanced(parts, holders, known)
        assert sorted(p.number for held in places.values() for p in held) == list(range(len(parts)))
        whole, largest = sum(p.size for p in parts), max(p.size for p in parts)
        for address, share in (("a", whole / 3), ("b", 2 * whole / 3)):
            assert sum(p.size for p in places[address]) <= share + largest
