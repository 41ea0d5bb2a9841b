"""What is asked of JAX and the process: double precision, answers found once, forks noticed."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from importlib import import_module
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from dpconvex.errors import TemplateError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

# Contexts of JAX, and what holds in them.  Products of matrices would be rounded to fewer digits, if that was asked for; values
# would be refused by their types, shapes and places, or for being infinite, after a fit is paid for.
CONTEXTS: dict[str, Any] = {
    "default_matmul_precision": "highest",
    "numpy_dtype_promotion": "standard",
    "numpy_rank_promotion": "allow",
    "transfer_guard": "allow",
    "debug_nans": False,
    "debug_infs": False,
}
# And for its compiler: bounds on rounding rest on the order in which terms are added, which XLA_FLAGS can give away.
COMPILER = {"xla_cpu_enable_fast_math": False}


@contextmanager
def double_precision() -> Iterator[None]:
    """Context in which JAX computes in float64, in this thread; its global configuration is left alone."""
    try:
        import jax
    except ImportError as error:
        raise TemplateError("this needs JAX: pip install dpconvex[fast].") from error
    source: Any = jax if hasattr(jax, "enable_x64") else import_module("jax.experimental")  # of older releases
    with ExitStack() as stack:
        stack.enter_context(source.enable_x64(True))
        for name, value in CONTEXTS.items():
            stack.enter_context(getattr(jax, name)(value))
        yield


def once(function: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """Compute a function of an object, and of further hashable arguments, once for each; it is forgotten with the object."""
    known: WeakKeyDictionary[T, dict[object, R]] = WeakKeyDictionary()

    @wraps(function)
    def remembered(subject: T, /, *arguments: P.args, **options: P.kwargs) -> R:
        answers = known.setdefault(subject, {})
        key = arguments, tuple(sorted(options.items()))
        if key not in answers:
            answers[key] = function(subject, *arguments, **options)
        return answers[key]

    return remembered


_forks = 0


def this_process() -> tuple[int, int]:
    """Return the number of this process, and of the forks that led to it, for numbers are used again.

    A fork copies budgets and generators of noise: what must not be there twice remembers where it was made, and stops elsewhere.
    """
    return os.getpid(), _forks


def _forked() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
