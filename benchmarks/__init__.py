"""Measured performance: one command, one table, a few pictures (see docs/performance.md)."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["RESULTS", "chosen", "fewer"]

# Where tables and pictures go, unless a command is told otherwise; not tracked.
RESULTS = Path(__file__).parent / "results"
MOST = 200  # records of a small run


class Run:
    """Whether this run is a small one."""

    small = False


def chosen(parser: ArgumentParser, arguments: Sequence[str] | None, **small: Any) -> Namespace:
    """Parse arguments; with ``--small``, every program ends within seconds: few records, and these options."""
    parser.add_argument("--small", action="store_true", help="on little data, in seconds: to see that the program runs")
    found = parser.parse_args(arguments)
    Run.small = found.small
    if found.small:
        vars(found).update(small)
    return found


def fewer(records: int) -> int:
    """Return a number of records, or what a small run has of them."""
    return min(records, MOST) if Run.small else records
