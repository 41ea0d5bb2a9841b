"""Expressions, and what is made of them, as bytes for another process of the same fit: never for a file."""

from __future__ import annotations

import io
from collections.abc import Hashable
from typing import Any

from dpconvex.core.atom import Atom
from dpconvex.core.atoms import ATOMS
from dpconvex.core.expression import Constant, Expression, Field, Shape, Variable, constant, node

__all__ = ["packed", "unpacked"]


def packed(value: Any) -> bytes:
    """Return an object as bytes; the expressions in it become nodes of the process that unpacks them."""
    import cloudpickle

    class Packer(cloudpickle.Pickler):
        def reducer_override(self, thing: Any) -> Any:
            return reduced(thing) if isinstance(thing, Expression | Atom) else super().reducer_override(thing)

    with io.BytesIO() as stream:
        Packer(stream).dump(value)
        return stream.getvalue()


def unpacked(value: bytes) -> Any:
    """Return the object that `packed` was given; only for bytes that came from there."""
    import cloudpickle

    return cloudpickle.loads(value)


def reduced(thing: Expression | Atom) -> tuple[Any, tuple[Any, ...]]:
    """Return the function that makes an expression or finds an atom again, and its arguments."""
    if isinstance(thing, Atom):
        return atom_of, (thing.name,)
    if isinstance(thing, Variable):
        return Variable.of, (thing.shape, thing.name, thing.key, dict(thing.attributes))
    if isinstance(thing, Field):
        return Field.of, (thing.shape, thing.name, thing.key, thing.sign)
    if isinstance(thing, Constant):
        return constant, (thing.value,)
    assert thing.atom is not None
    return made, (thing.atom, thing.args, thing.options, thing.shape)


def atom_of(name: str) -> Atom:
    """Return a registered atom."""
    return ATOMS[name]


def made(
    atom: Atom, args: tuple[Expression, ...], options: tuple[tuple[str, Hashable], ...], shape: Shape
) -> Expression:
    """Return the node of an atom, as it was: nothing about it is decided anew."""
    return node(atom, args, options, shape)
