"""Answers that are computed once for an object, and forgotten with it."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def once(function: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """Compute a function of an object, and of further hashable arguments, once for each of them."""
    known: WeakKeyDictionary[T, dict[object, R]] = WeakKeyDictionary()

    @wraps(function)
    def remembered(subject: T, /, *arguments: P.args, **options: P.kwargs) -> R:
        answers = known.setdefault(subject, {})
        key = arguments, tuple(sorted(options.items()))
        if key not in answers:
            answers[key] = function(subject, *arguments, **options)
        return answers[key]

    return remembered
