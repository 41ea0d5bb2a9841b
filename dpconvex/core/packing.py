"""Expressions, and what is made of them, as bytes for another process of the same fit: never for a file."""

import io
import pickle
from collections.abc import Hashable
from importlib import import_module
from importlib.util import find_spec
from mmap import mmap
from types import MappingProxyType
from typing import Any

import numpy as np

from dpconvex.core.atom import Atom
from dpconvex.core.atoms import ATOMS
from dpconvex.core.declared_atoms import Atom as Declared
from dpconvex.core.expression import Constant, Expression, Field, Shape, Variable, constant, node
from dpconvex.core.interpolation import PiecewiseQuadratic


def packed(value: Any) -> bytes:
    """Return an object as bytes; the expressions in it become nodes of the process that unpacks them.

    With cloudpickle, functions may be in it that no module defines.
    """
    base: Any = pickle.Pickler if find_spec("cloudpickle") is None else import_module("cloudpickle").Pickler

    class Packer(base):
        def reducer_override(self, thing: Any) -> Any:
            known = reduced(thing)
            if known is not None:
                return known
            return NotImplemented if base is pickle.Pickler else super().reducer_override(thing)

    with io.BytesIO() as stream:
        Packer(stream, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
        return stream.getvalue()


def unpacked(value: bytes) -> Any:
    """Return the object that `packed` was given; only for bytes that came from there."""
    return pickle.loads(value)


def reduced(thing: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """Return a function that makes an object again, and its arguments; None for what needs no help."""
    if isinstance(thing, Variable):
        return Variable.of, (thing.shape, thing.name, thing.key, dict(thing.attributes))
    if isinstance(thing, Field):
        return Field.of, (thing.shape, thing.name, thing.key, thing.sign)
    if isinstance(thing, Constant):
        return constant, (thing.value,)
    if isinstance(thing, Expression):
        assert thing.atom is not None
        return made, (thing.atom, thing.args, thing.options, thing.shape)
    if isinstance(thing, Atom):
        return atom_of, (thing.name,)
    if isinstance(thing, Declared):
        return declared, (thing.name, thing.slope, thing.curvature, thing.lower, thing.running)
    if isinstance(thing, MappingProxyType):
        return MappingProxyType, (dict(thing),)
    mapped = type(thing) is np.memmap and isinstance(vars(thing)["_mmap"], mmap) and thing.base is vars(thing)["_mmap"]
    if mapped and thing.mode != "c":  # what was written to a private copy is not in the file
        order = "C" if thing.flags.c_contiguous else "F"
        return np.memmap, (thing.filename, thing.dtype, "r", thing.offset, thing.shape, order)
    return None


def atom_of(name: str) -> Atom:
    return ATOMS[name]


def made(
    atom: Atom, args: tuple[Expression, ...], options: tuple[tuple[str, Hashable], ...], shape: Shape
) -> Expression:
    """Return the node of an atom, as it was: nothing about it is decided anew."""
    return node(atom, args, options, shape)


def declared(
    name: str, slope: tuple[float, float], curvature: float, lower: float, running: PiecewiseQuadratic
) -> Declared:
    """Return a user's atom as what runs, without the function that it was read off."""
    found = Declared(name, running.apply, slope, curvature, lower)
    vars(found)["running"] = running
    return found
