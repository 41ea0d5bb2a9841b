"""Differentially private convex learning: declared in CVXPY, proved by rules, solved, and certified.

The public names are listed in ``__init__.pyi``.  Each is imported from its module on first use, so that
``import dpconvex`` is quick and brings in no engine or plotting library that a program does not use.
"""

from __future__ import annotations

import lazy_loader

__version__ = "0.1.0"

_load, _, _names = lazy_loader.attach_stub(__name__, __file__)
__all__ = sorted([*_names, "__version__"])


def __getattr__(name: str) -> object:
    if name not in _names:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; public names: {', '.join(__all__)}")
    value = globals()[name] = _load(name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
