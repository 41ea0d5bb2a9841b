"""Measured performance: one command, one table, a few pictures (see docs/performance.md)."""

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["RESULTS", "chosen", "fewer", "heading", "heads", "row", "some_of"]

# Where tables and pictures go, unless a command is told otherwise; not tracked.
RESULTS = Path(__file__).parent / "results"
MOST = 200  # records of a small run


class Run:
    """Whether this run is a small one."""

    small = False


def chosen(about: str | None, given: Sequence[str] | None, options: Mapping[str, Any], **small: Any) -> Namespace:
    """Parse arguments; with ``--small``, every program ends within seconds: few records, and these options.

    An option is its default, which tells its type (a list takes several, False is a switch), or the default and what it is for,
    or what `ArgumentParser.add_argument` takes.
    """
    parser = ArgumentParser("benchmarks", description=about, formatter_class=RawDescriptionHelpFormatter)
    for name, told in options.items():
        default, purpose = told if isinstance(told, tuple) else (told, None)
        kind: dict[str, Any] = {"action": "store_true"}
        if isinstance(default, dict):
            kind = default
        elif isinstance(default, list):
            kind = {"nargs": "*", "type": type(default[0]), "default": default}
        elif default is not False:
            kind = {"type": type(default), "default": default}
        parser.add_argument(name, **{"help": purpose, **kind})
    parser.add_argument("--small", action="store_true", help="on little data, in seconds: to see that the program runs")
    found = parser.parse_args(given)
    Run.small = found.small
    if found.small:
        vars(found).update(small)
    return found


def some_of(names: Collection[str]) -> dict[str, Any]:
    """Return what a parser asks for where some of these may be named."""
    return {"nargs": "*", "choices": [*names, []], "help": "which; all by default"}


def fewer(records: int) -> int:
    """Return a number of records, or what a small run has of them."""
    return min(records, MOST) if Run.small else records


def row(*cells: Any) -> None:
    """Print a row of a Markdown table."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def heading(*cells: Any) -> None:
    """Print the head of a Markdown table."""
    row(*cells)
    print("|---" * len(cells) + "|")


def heads(epsilons: Sequence[float]) -> list[str]:
    """Return what columns of a table are called that differ in epsilon."""
    return [f"ε = {epsilon:g}" for epsilon in epsilons]
