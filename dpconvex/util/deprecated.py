"""Names that were replaced: the old ones work, and warn."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar
from warnings import warn

from dpconvex.util.arrays import quietly

P = ParamSpec("P")
R = TypeVar("R")
NAMES = {"Chunks": "ChunkedColumn", "Components": "ComponentCenters", "Conic": "ConicSolver"}
NAMES |= {"Cover": "ResidualNoise", "Shared": "Calibration", "minimize": "solve_without_privacy"}
ARGUMENTS = {"cover": "residual_noise", "label": "entry", "name": "entry"}


def public(function: Callable[P, R]) -> Callable[P, R]:
    """Let a public function compute quietly, and take arguments by the names that they had."""
    known, run = signature(function).parameters, quietly(function)

    @wraps(function)
    def call(*args: P.args, **given: P.kwargs) -> R:
        for old in [name for name in given if name not in known and ARGUMENTS.get(name) in known]:
            warn(f"{function.__name__}: {old}= is now {ARGUMENTS[old]}=.", DeprecationWarning, stacklevel=2)
            given[ARGUMENTS[old]] = given.pop(old)
        return run(*args, **given)

    return call
