"""Measured performance: one command, one table, a few pictures (see docs/performance.md)."""

from pathlib import Path

__all__ = ["RESULTS"]

# Where tables and pictures go, unless a command is told otherwise; not tracked.
RESULTS = Path(__file__).parent / "results"
