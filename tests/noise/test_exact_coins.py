"""Coins of probability exp(-x) in whole numbers, by enumeration, and the private choice that rests on them."""

from collections.abc import Callable
from fractions import Fraction

import mpmath
import pytest

from dpconvex.mechanisms import private_selection
from dpconvex.noise import samplers
from dpconvex.noise.samplers import accepts, below, coin

DEPTH = 40


def law(program: Callable[[], object], patch: pytest.MonkeyPatch, where: object = samplers) -> dict[object, Fraction]:
    """Return the exact probability of each outcome, by running a program down all paths of coins; deep ones are left out."""
    found: dict[object, Fraction] = {}
    paths: list[tuple[bool, ...]] = [()]
    while paths:
        path, taken, weight = paths.pop(), 0, Fraction(1)

        def flip(probability: Fraction, rng: object = None, path: tuple[bool, ...] = path) -> bool:
            nonlocal taken, weight
            if not 0 < probability < 1:
                return probability == 1
            if taken == len(path):
                raise StopIteration
            heads = path[taken]
            taken, weight = taken + 1, weight * (probability if heads else 1 - probability)
            return heads

        patch.setattr(samplers, "coin", flip)
        try:
            outcome = program()
            found[outcome] = found.get(outcome, Fraction(0)) + weight
        except StopIteration:
            if len(path) < DEPTH:
                paths += [(*path, True), (*path, False)]
    return found


@pytest.mark.parametrize("exponent", [Fraction(0), Fraction(1, 7), Fraction(0.3), Fraction(1)])
def test_a_coin_of_an_exponential_is_exact(exponent: Fraction, monkeypatch: pytest.MonkeyPatch) -> None:
    found = law(lambda: accepts(exponent, None), monkeypatch)
    assert sum(found.values()) > 1 - Fraction(1, 10**30)
    with mpmath.workdps(60):
        exact = mpmath.exp(-mpmath.mpf(exponent.numerator) / exponent.denominator)
        assert abs(mpmath.mpf(found[True].numerator) / found[True].denominator - exact) < 1e-30


def test_whole_numbers_are_equally_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = dict.fromkeys(range(5), 0)

    class Bytes:
        def __init__(self, value: int) -> None:
            self.values = [value, 0]

        def bytes(self, count: int) -> bytes:
            return self.values.pop(0).to_bytes(count, "little")

    for value in range(8):
        source = Bytes(value)
        drawn = below(5, source)  # type: ignore[arg-type]
        counts[drawn] += len(source.values) == 1  # not drawn again
    assert set(counts.values()) == {1}
    assert all(0 <= below(3, None) < 3 for _ in range(50))
    monkeypatch.setattr(samplers, "below", lambda limit, rng: limit - 1)
    assert not coin(Fraction(2**80 - 1, 2**80), None)


@pytest.mark.parametrize("how", private_selection.SELECTIONS)
@pytest.mark.parametrize("mistakes", [(0, 1492), (1, 1491), (4, 2, 3)])
def test_a_choice_asks_for_the_exact_probabilities(
    how: str, mistakes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts that no uniform double tells apart: 2^-54 and 0 would be an infinite ratio."""
    epsilon, fewest = 2 * 37.5 / 1491, min(mistakes)
    asked: set[Fraction] = set()
    monkeypatch.setattr(private_selection, "accepts", lambda exponent, rng: asked.add(exponent) or exponent == 0)
    for first in range(len(mistakes)):
        best = mistakes.index(fewest)
        places = iter([first, *([best] if how == "exponential" else [0] * len(mistakes))])
        monkeypatch.setattr(private_selection, "below", lambda limit, rng, places=places: next(places))
        assert mistakes[private_selection.select(mistakes, epsilon, "replace-one", None, how)] == fewest
    assert set(asked) == {Fraction(epsilon / 2) * (count - fewest) for count in mistakes}
