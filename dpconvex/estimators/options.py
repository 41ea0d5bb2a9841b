"""Options by the names that other packages have for them: a `TypeError` says what they are called here."""

from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from typing import Any

LAMBDA = "`regularization`, the factor of half the squared weights beside the mean loss; about"
OTHERS = {
    "C": f"{LAMBDA} 1 / (n C) for n records",
    "alpha": f"{LAMBDA} alpha / n for n records",
    "random_state": "`seed`, for tests alone: with one, a fit is not private",
    "eps": "`epsilon`",
    "data_norm": "`radius`",
    "accountant": "`budget`",
    "class_weight": "a factor of the loss for each label, in a Template of your own (PrivateEstimator)",
    "sample_weight": "a field of the record, with public bounds, in a Template of your own (PrivateEstimator)",
}


def explained(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method refuse options that it has not got by naming those that it has."""
    known = list(signature(function).parameters)[1:]

    @wraps(function)
    def told(self: Any, *arguments: Any, **options: Any) -> Any:
        for option in options:
            if option not in known:
                call = type(self).__name__ + ("" if function.__name__ == "__init__" else f".{function.__name__}")
                near = get_close_matches(option, known, n=1)
                ours = OTHERS.get(option) or (f"did you mean `{near[0]}`?" if near else f"there are {', '.join(known)}")
                raise TypeError(f"{call} has no option {option!r}: {'here it is ' * (option in OTHERS)}{ours}")
        return function(self, *arguments, **options)

    return told
