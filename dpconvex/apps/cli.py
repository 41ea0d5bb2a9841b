"""The command line: list problems, prove privacy, fit to a table, predict, evaluate, and keep count of budgets.

Exit status: 0 if all went well, 1 if there is no proof, no budget or no certified solution, 2 for bad usage or bad data.
Whatever goes wrong, nothing is written.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import dpconvex as dp
from dpconvex.apps import applying, budgets, demo, fitting, proving
from dpconvex.apps.arguments import Commands
from dpconvex.errors import BudgetExceeded, DPConvexError, NotConverged, NotPrivate

REFUSED, MISTAKEN, INTERRUPTED = 1, 2, 130

ABOUT = """
An epsilon says how much one person's record can change what is released: whatever a reader thought the odds of anything about
that person were, they change by a factor of at most exp(epsilon). 0.1 is very strong, 1 strong, 10 weak. A delta is a small
probability with which this may fail; it should be far below one over the number of people, such as 1e-6. Each further release
about the same people adds to what is spent: give --ledger to keep count.

dpconvex COMMAND --help explains a command, with examples.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    chosen = parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], None] = chosen.command
    try:
        command(chosen)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads the output has seen enough
        sys.stdout = None
        return REFUSED
    except KeyboardInterrupt:
        print(
            f"dpconvex {chosen.name}: interrupted; nothing was written, and what was paid stays paid.", file=sys.stderr
        )
        return INTERRUPTED
    except (DPConvexError, OSError) as error:
        if chosen.json:
            print(json.dumps(complaint(error)))
        print(f"dpconvex {chosen.name}: {message(error)}", file=sys.stderr)
        return REFUSED if isinstance(error, NotPrivate | NotConverged | BudgetExceeded) else MISTAKEN
    return 0


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    top = argparse.ArgumentParser(
        prog="dpconvex",
        description="Convex learners that are proved differentially private, fitted and released.",
        epilog=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"dpconvex {dp.__version__}")
    if find_spec("shtab") is not None:
        import shtab

        shtab.add_argument_to(top, ["--print-completion"], help="print what completes commands in bash, zsh or tcsh")
    commands = Commands(top)
    for module in (proving, budgets, fitting, applying):
        module.add_commands(commands)
    demo.add_arguments(commands.add("demo", demo.run, demo.SUMMARY))
    return top


# From objects to text


def message(error: Exception) -> str:
    """Return what a person is told."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}."
    return str(error)


def complaint(error: Exception) -> dict[str, Any]:
    """Return what a program is told."""
    told: dict[str, Any] = {"error": type(error).__name__, "message": message(error)}
    if isinstance(error, NotPrivate):
        told |= {"private": False, "reason": error.reason, "where": error.expression, "remedy": error.remedy}
    return told


if __name__ == "__main__":
    sys.exit(main())
