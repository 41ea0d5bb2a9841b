"""Faster imports of CVXPY, in half of the time: seldom used modules are refused, or imported on first use."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class DeferredStatistics(ModuleType):
    """The module `scipy.stats`, imported on first use: CVXPY needs one of its functions, for one atom."""

    def entropy(self, *arguments: Any) -> Any:
        return self.__getattr__("entropy")(*arguments)

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


class Unasked:
    """Import finder that refuses or defers modules that CVXPY imports and seldom uses."""

    deferred = False  # Whether scipy.stats was asked for, once

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, *_: object) -> ModuleSpec | None:
        """Refuse JAX to the solver MPAX if MPAX is not installed, and defer `scipy.stats` for an atom that imports it."""
        if name not in ("jax", "scipy.stats"):
            return None
        from traceback import walk_stack  # here, so that `import dpconvex` is quick

        asking = [frame.f_globals.get("__name__", "") for frame, _ in walk_stack(None)]
        if name == "jax" and find_spec("mpax") is None and any(one.endswith(".mpax_qpif") for one in asking):
            raise ModuleNotFoundError("MPAX is not installed", name=name)
        if name == "jax" or cls.deferred or "cvxpy.atoms.quantum_rel_entr" not in asking:
            return None
        cls.deferred, found = True, PathFinder.find_spec(name, path)
        if found is not None:
            found.loader = cls()  # type: ignore[assignment]
        return found

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None, so that Python makes the module."""

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = DeferredStatistics


sys.meta_path.insert(0, Unasked)
