"""Reads a proof, strictly: known keys of known types, exact numbers, arguments before what is made of them."""

import json
import re
from fractions import Fraction
from typing import Any

MOST_BYTES, MOST_NODES, MOST_BITS, MOST_STEPS = 2**23, 5_000, 2200, 500_000
KEYS = {
    "format",
    "claim",
    "record",
    "nodes",
    "losses",
    "regularizer",
    "constraints",
    "cells",
    "parts",
    "centres",
    "tangents",
}
KEYS |= {"modulus", "moments", "sampled", "layout"}
HEXADECIMAL = re.compile(r"(-?)0x([01])(?:\.([0-9a-f]+))?p([+-]?[0-9]{1,4})")


class Said(Exception):
    """What is said of a proof, in characters that no terminal obeys: names in it are whatever its author wrote."""

    def __str__(self) -> str:
        return "".join(c if " " <= c <= "~" else ascii(c)[1:-1] for c in super().__str__())


class Rejected(Said):
    """The first step that does not follow, or a file that is no proof."""


class Unreplayed(Said):
    """A step for which the checker has no rule: it says nothing about it."""


class Steps:
    """How many steps are left: a hostile proof ends."""

    left = MOST_STEPS


def spend(count: int) -> None:
    Steps.left -= count
    if Steps.left < 0:
        raise Unreplayed("the rest of it, for it takes too many steps")


def require(holds: bool, step: str) -> None:
    if not holds:
        raise Rejected(step)


def parsed(text: bytes) -> dict[str, Any]:
    Steps.left = MOST_STEPS
    require(len(text) <= MOST_BYTES, f"the proof is longer than {MOST_BYTES} bytes")
    require(text.count(b"{") + text.count(b"[") <= MOST_STEPS, "the proof has too many parts")
    try:
        hooks: dict[str, Any] = {"parse_float": refused, "parse_constant": refused, "object_pairs_hook": distinct}
        found = json.loads(text.decode("utf-8"), **hooks)
    except (ValueError, RecursionError) as error:
        raise Rejected(f"no JSON of a proof: {error}") from None
    require(isinstance(found, dict) and found.get("format") == "dpconvex proof 1", "it is no 'dpconvex proof 1'")
    require({*found} <= KEYS, "the proof has parts that nothing is known of")
    return found


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    require(len(found) == len(pairs), "a key stands twice in one object")
    return found


def refused(text: str) -> None:
    raise Rejected(f"numbers are whole, or exact ones in hexadecimal texts, not {text}")


def number(text: Any) -> Fraction:
    """Read an exact number: a whole one, or a text such as "0x1.8p-3"."""
    if isinstance(text, Fraction):
        return text
    if type(text) is int:
        require(text.bit_length() <= MOST_BITS, "a number is too long")
        return Fraction(text)
    match = HEXADECIMAL.fullmatch(text) if isinstance(text, str) and len(text) < 60 else None
    require(match is not None, f"no exact number in hexadecimal: {text!r:.50}")
    sign, head, tail, exponent = match.groups("")  # type: ignore[union-attr]
    require(abs(int(exponent)) <= 1100, f"an exponent is too large: {text}")
    return Fraction(int(sign + head + tail, 16)) * Fraction(2) ** (int(exponent) - 4 * len(tail))


def value(found: Any, key: str, missing: int = 0) -> Fraction:
    return number(found.get(key, missing) if isinstance(found, dict) else missing)


def numbers(texts: Any) -> list[Fraction]:
    require(isinstance(texts, list), f"no list of numbers: {texts!r:.50}")
    return [number(text) for text in texts]


def whole(value: Any, most: int, least: int = 0) -> int:
    require(type(value) is int and least <= value <= most, f"not a whole number from {least} to {most}: {value!r:.50}")
    return int(value)


def wholes(values: Any, most: int) -> list[int]:
    require(isinstance(values, list), f"no list of whole numbers: {values!r:.50}")
    return [whole(value, most) for value in values]


def part(found: Any, key: str, kind: type = list) -> Any:
    require(isinstance(found, dict) and isinstance(found.get(key), kind), f"the proof has no {key!r} of the right type")
    return found[key]
