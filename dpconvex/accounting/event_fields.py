"""Events as the fields of a file, read strictly: an event that says too little would cost too little."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from dpconvex.accounting.events import Approximate, Composition, Concentrated, Event, Gaussian, Pure, Selected, Tail
from dpconvex.accounting.perturbation import Hull, Kind, Perturbation
from dpconvex.errors import TemplateError

# Compositions of compositions are read down to here.
DEEPEST = 50

KINDS: dict[str, type[Event]] = {
    item.kind: item for item in (Pure, Approximate, Gaussian, Concentrated, Selected, Perturbation, Tail, Composition)
}


def event_of(values: Any, depth: int = 0) -> Event:
    """Rebuild an event from `to_dict`, or say what is wrong with it."""
    kind = values.get("kind") if isinstance(values, Mapping) else values
    if not (isinstance(values, Mapping) and isinstance(kind, str) and kind in KINDS):
        raise TemplateError(f"no event that this program knows: {kind!r}")
    if depth > DEEPEST:
        raise TemplateError("its compositions are nested too deeply")
    cls = KINDS[kind]
    given = {name: value for name, value in values.items() if name != "kind"}
    if set(given) != {item.name for item in fields(cls)}:  # type: ignore[arg-type]
        raise TemplateError(f"an event of kind {cls.kind!r} has other fields than {sorted(given)}")
    try:
        if cls is Composition:
            return Composition(tuple(event_of(part, depth + 1) for part in listed(given["parts"])))
        if cls is Perturbation:
            return Perturbation(given["sigma"], tuple(kind_of(item) for item in listed(given["kinds"])))
        return cls(**given)
    except TemplateError:
        raise
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise TemplateError(f"not an event of kind {cls.kind!r} ({error})") from error


def kind_of(values: Any) -> Kind:
    """Rebuild a kind of neighbours."""
    if type(values["dimension"]) is not int or values["dimension"] < 0:
        raise TemplateError("a dimension must be an integer, 0 or above")
    names = [item.name for item in fields(Hull)]
    # What was written before `behind` was known, or while more was, costs no less without it.
    if any((set(hull) | {"behind"}) - {"cap"} != set(names) for hull in listed(values["hulls"])):
        raise TemplateError(f"a hull has the fields {', '.join(names)}, and no others")
    known = [hull if "behind" in hull else {**hull, "margin": None} for hull in values["hulls"]]
    hulls = [[frozen(hull.get(name)) for name in names] for hull in known]
    return Kind(values["dimension"], tuple(Hull(*hull) for hull in hulls))


def listed(value: Any) -> list[Any]:
    """Return a list that is not empty: an event of nothing would cost nothing."""
    if not isinstance(value, list) or not value:
        raise TemplateError("an event has a list of what it consists of, and that is not empty")
    return value


def frozen(value: Any) -> Any:
    """Turn a list into a tuple."""
    return tuple(value) if isinstance(value, list) else value
