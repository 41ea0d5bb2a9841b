"""Draw from the 10 % file of KDD Cup 1999 what a random subset of the full file would be.

The 10 % file keeps rare labels whole and a tenth of the seven frequent ones, so its mix of labels is another one: it has more of
the rare attacks than the full file.  A random subset of the full file has label counts with a multivariate hypergeometric law;
given these, its records are random records of each label.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from benchmarks.public_data import Table
from dpconvex.errors import DomainError

__all__ = ["FULL_COUNTS", "full_mix", "rows_of"]

# How often each label occurs in the full file.
FULL_COUNTS = {
    "smurf": 2_807_886,
    "neptune": 1_072_017,
    "normal": 972_781,
    "satan": 15_892,
    "ipsweep": 12_481,
    "portsweep": 10_413,
    "nmap": 2_316,
    "back": 2_203,
    "warezclient": 1_020,
    "teardrop": 979,
    "pod": 264,
    "guess_passwd": 53,
    "buffer_overflow": 30,
    "land": 21,
    "warezmaster": 20,
    "imap": 12,
    "rootkit": 10,
    "loadmodule": 9,
    "ftp_write": 8,
    "multihop": 7,
    "phf": 4,
    "perl": 3,
    "spy": 2,
}


def full_mix(labels: ArrayLike, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return numbers of records with the full file's mix of labels, in random order and without repetition, shape (count,).

    Raises
    ------
    DomainError
        If the file has fewer records of a label than were drawn.
    """
    labels = np.asarray(labels)
    wanted = rng.multivariate_hypergeometric(list(FULL_COUNTS.values()), count)
    found = []
    for label, number in zip(FULL_COUNTS, wanted, strict=True):
        rows = np.flatnonzero(labels == label)
        if number > len(rows):
            raise DomainError(
                f"{count:,} records of the full file would hold {number:,} of {label!r}, and this file has {len(rows):,}; draw "
                "fewer."
            )
        found.append(rng.choice(rows, number, replace=False))
    return np.asarray(rng.permutation(np.concatenate(found)))


def rows_of(table: Table, rows: NDArray[np.int64]) -> Table:
    """Return some records of a table."""
    return Table(table.numeric[rows], table.lower, table.upper, table.codes[rows], table.levels, table.y[rows])
