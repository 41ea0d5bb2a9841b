"""Which process this is.

A fork copies whatever is in memory: budgets, generators of noise, sweeps half way.  What must not be there twice remembers where
it was made, and refuses to go on anywhere else.
"""

import os

_forks = 0


def this_process() -> tuple[int, int]:
    """Return the number of this process, and of the forks that led to it: numbers are used again."""
    return os.getpid(), _forks


def _forked() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
