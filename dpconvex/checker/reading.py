"""Strict reading of proofs: only known keys and types, exact numbers, and arguments before the nodes that use them."""

import json
import math
import re
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import cache, partial, wraps
from typing import Any, ClassVar, TypeVar, cast

from dpconvex.checker.table import TABLES

F = TypeVar("F", bound=Callable[..., Any])
MOST_BYTES, MOST_NODES, MOST_BITS, MOST_STEPS, MOST_PARTS = 2**23, 5_000, 2200, 300_000, 250_000
UNBOUNDED = tuple((math.inf, key) for key in ("hessian_bound", "records", "radius", "tolerance"))
HEXADECIMAL = re.compile(r"(-?)0x([01])(?:\.([0-9a-f]+))?p([+-]?[0-9]{1,4})")


class Said(Exception):
    """An error with a message in printable ASCII, as names in a proof may contain any characters."""

    def __str__(self) -> str:
        return "".join(c if " " <= c <= "~" else ascii(c)[1:-1] for c in super().__str__())


class Rejected(Said):
    """The first step that does not follow, or a file that is no proof."""


class Unreplayed(Said):
    """A step for which the checker has no rule.  The proof may still be right."""


class Steps:
    """The remaining steps of a replay, about 3 microseconds each, which bound its time; and cached results of functions."""

    left = MOST_STEPS
    coarse = False  # whether a loose bound was used because there were many numbers
    known: ClassVar[dict[Any, Any]] = {}


def spend(count: int) -> None:
    Steps.left -= count
    if Steps.left < 0:
        raise Unreplayed("it takes too many steps")


def cached(function: F) -> F:
    """Return a function that caches its results during one replay."""

    def found(*args: Any) -> Any:
        spend(1)
        if (function, args) not in Steps.known:
            Steps.known[function, args] = function(*args)
        return Steps.known[function, args]

    return cast(F, wraps(function)(found))


def effort(values: Iterable[Fraction]) -> int:
    """Return the number of steps for one addition or multiplication of each number."""
    lengths = (a.numerator.bit_length() + a.denominator.bit_length() for a in values)
    return sum(1 + bits // 200 + (bits * bits >> 19) for bits in lengths)


def require(holds: bool, step: str) -> None:
    if not holds:
        raise Rejected(step)


def read_proof(text: bytes) -> dict[str, Any]:
    """Return the proof in a text, read by the table of keys, with exact numbers; reject every other text."""
    return dict(reader("proof")(object_in(text)))


def object_in(text: bytes) -> dict[str, Any]:
    """Return the object in the text of a proof, with its numbers as texts, before it is read by the table of keys."""
    Steps.left = MOST_STEPS
    Steps.coarse = False
    require(len(text) <= MOST_BYTES, f"the proof is longer than {MOST_BYTES} bytes")
    try:
        found = read_json(text, parse_float=refused, parse_constant=refused)
    except (ValueError, RecursionError) as error:
        raise Rejected(f"not a proof as JSON: {error}") from None
    require(isinstance(found, dict), f"not a proof: {found!r:.50}")
    return dict(found)


def read_json(text: bytes, **hooks: Any) -> Any:
    require(text.count(b"{") + text.count(b"[") <= MOST_PARTS, "the proof has too many parts")
    return json.loads(text.decode("utf-8"), object_pairs_hook=distinct, **hooks)


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    require(len(found) == len(pairs), "an object has the same key twice")
    return found


def refused(text: str) -> None:
    raise Rejected(f"numbers must be integers or exact hexadecimal texts, not {text}")


@cache
def reader(kind: str) -> Callable[[Any], Any]:
    """Return a function that reads values of this kind, and rejects all other values."""
    if kind.startswith("list of "):
        return partial(listed, reader(kind[8:]))
    if kind.startswith("map of "):
        return partial(mapped, reader(kind[7:]))
    if kind in TABLES:
        return partial(tabled, kind, [{key: reader(name) for key, name in group.items()} for group in TABLES[kind]])
    return KINDS[kind] if kind in KINDS else partial(one_of, [json.loads(word) for word in kind.split(" | ")])


def listed(read: Callable[[Any], Any], found: Any) -> list[Any]:
    if not isinstance(found, list):
        raise Rejected(f"not a list: {found!r:.50}")
    spend(len(found))
    return [read(item) for item in found]


def mapped(read: Callable[[Any], Any], found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise Rejected(f"not an object: {found!r:.50}")
    return {name: read(item) for name, item in found.items()}


def tabled(kind: str, groups: list[dict[str, Callable[[Any], Any]]], found: Any) -> dict[str, Any]:
    """Read an object with all keys of the first group, all or none of every other group, and no further keys."""
    if not isinstance(found, dict):
        raise Rejected(f"{kind}: not an object: {found!r:.50}")
    spend(5 + len(found))
    given = {}
    for k, group in enumerate(groups):
        missing = [key for key in group if key not in found]
        if missing and (k == 0 or len(missing) < len(group)):
            raise Rejected(f"{kind}: {', '.join(missing)} is missing")
        for key in group if not missing else ():
            try:
                given[key] = group[key](found[key])
            except Rejected as error:
                raise Rejected(f"{kind}: {key}: {error.args[0]}") from None
    if len(given) < len(found):
        raise Rejected(f"{kind}: unknown keys {', '.join({*found} - {*given}):.50}")
    return given


def one_of(words: list[Any], found: Any) -> Any:
    if not any(type(found) is type(word) and found == word for word in words):
        raise Rejected(f"not one of {words}: {found!r:.50}")
    return found


def variant(prefix: str, key: str, found: Any) -> dict[str, Any]:
    """Read an object by the table that the value of `key` selects."""
    name = found.get(key) if isinstance(found, dict) else None
    require(isinstance(name, str), f"{prefix}: {key} is missing")
    if f"{prefix}{name}" not in TABLES:
        require(prefix == "node ", f"{prefix}{name!r:.50}: unknown")
        raise Unreplayed(f"there is no rule for {name:.50}")
    return dict(reader(f"{prefix}{name}")(found))


def domain(found: Any) -> dict[str, Any]:
    return dict(reader("ball" if isinstance(found, dict) and "radius" in found else "box")(found))


def within(holds: Callable[[Fraction], bool], said: str) -> Callable[[Any], Fraction]:
    def read(found: Any) -> Fraction:
        given = number(found)
        if not holds(given):
            raise Rejected(f"a number is {said}: {found!r:.50}")
        return given

    return read


def triple(*kinds: str) -> Callable[[Any], tuple[Any, ...]]:
    def read(found: Any) -> tuple[Any, ...]:
        if not (isinstance(found, list) and len(found) == len(kinds)):
            raise Rejected(f"not {len(kinds)} numbers: {found!r:.50}")
        spend(5)
        return tuple(reader(kind)(item) for kind, item in zip(kinds, found, strict=True))

    return read


def text(found: Any) -> str:
    if not isinstance(found, str):
        raise Rejected(f"not a text: {found!r:.50}")
    return found


def number(text: Any) -> Fraction:
    """Read an exact number: an integer, or a text such as "0x1.8p-3"."""
    if isinstance(text, Fraction):
        return text
    if type(text) is int:
        require(text.bit_length() <= MOST_BITS, "a number is too long")
        return Fraction(text)
    match = HEXADECIMAL.fullmatch(text) if isinstance(text, str) and len(text) < 60 else None
    if match is None or abs(int(match[4])) > 1100:
        raise Rejected(f"no exact number in hexadecimal, or too large an exponent: {text!r:.50}")
    sign, head, tail, exponent = match.groups("")
    return Fraction(int(sign + head + tail, 16)) * Fraction(2) ** (int(exponent) - 4 * len(tail))


def whole(value: Any, most: int, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= most:
        raise Rejected(f"not a whole number from {least} to {most}: {value!r:.50}")
    return value


def as_exact(value: Any, key: str = "") -> Any:
    """Return the data of a certificate with exact numbers, without missing values and permitted infinities."""
    if isinstance(value, dict):
        return {k: as_exact(v, k) for k, v in value.items() if v is not None and (v, k) not in UNBOUNDED}
    if isinstance(value, list):
        return [as_exact(item) for item in value]
    exact = isinstance(value, float) and math.isfinite(value)
    return value if not exact else int(value) if value.is_integer() else Fraction(value)


def indices(values: list[int], count: int) -> list[int]:
    """Return `values` if all are indices of a list of length `count`; otherwise reject them."""
    if max(values, default=-1) >= count:
        raise Rejected(f"an index in {values!r:.50} is not below {count}")
    return values


KINDS: dict[str, Callable[[Any], Any]] = {
    "number": number,
    "amount": within(lambda x: x >= 0, "negative"),
    "positive": within(lambda x: x > 0, "negative or 0"),
    "probability": within(lambda x: 0 <= x < 1, "negative, or 1 or more"),
    "share": within(lambda x: 0 < x < 1, "not between 0 and 1"),
    "whole": partial(whole, most=10**18),
    "count": partial(whole, most=10**18, least=1),
    "text": text,
    "term": triple("whole", "whole", "number"),
    "tangent": triple("positive", "amount", "amount"),
    "claim": partial(variant, "claim of ", "perturbed"),
    "node": partial(variant, "node ", "op"),
    "domain": domain,
    "event": partial(variant, "event of ", "kind"),
}
