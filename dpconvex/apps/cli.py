"""The command line: list problems, prove privacy, fit to a table, predict, evaluate, and keep count of budgets.

Exit status: 0 if all went well, 1 if there is no proof, no budget or no certified solution, 2 for bad usage or bad data, 130
if it was interrupted.  Whatever goes wrong, nothing is written.
"""

import json
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from dpconvex.apps.arguments import parser
from dpconvex.errors import BudgetExceeded, DPConvexError, NotConverged, NotPrivate

REFUSED, MISTAKEN, INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    chosen = parser().parse_args(arguments)
    module, _, function = chosen.command.partition(":")
    try:
        getattr(import_module(f"dpconvex.apps.{module}"), function)(chosen)
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


def message(error: Exception) -> str:
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
