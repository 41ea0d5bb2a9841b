"""Halving of an interval."""

from collections.abc import Callable


def bisect(holds: Callable[[float], bool], low: float, high: float, steps: int) -> tuple[float, float]:
    """Narrow an interval at whose lower end something holds, and at whose upper end it need not.

    >>> low, high = bisect(lambda t: t * t <= 2, 0.0, 2.0, 50)
    >>> round(low, 9), round(high, 9)
    (1.414213562, 1.414213562)
    """
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high
