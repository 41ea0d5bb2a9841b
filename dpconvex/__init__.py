"""Differentially private convex learning: declared in CVXPY, proved by rules, solved, and certified.

The public names are listed in ``__init__.pyi``.  Each is imported from its module on first use, so that
``import dpconvex`` is quick and brings in no engine or plotting library that a program does not use.
"""

import re
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import lazy_loader

import dpconvex.util.cvxpy_imports  # noqa: F401  (before CVXPY)

__version__ = "0.2.0"

_load, _, _names = lazy_loader.attach_stub(__name__, __file__)
__all__ = sorted([*_names, "__version__"])

if find_spec("sklearn") is None:  # names that need it are not listed, and raise when they are used
    _stub = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    _blocks = re.findall(r"^from \.(?:estimators|features)\.\w+ import (\([^)]*\)|.*)$", _stub, flags=re.MULTILINE)
    _optional = {name for block in _blocks for name in re.findall(r"(\w+) as", block)}
    __all__ = [name for name in __all__ if name not in _optional]
if find_spec("matplotlib") is None:
    __all__.remove("plots")


def __getattr__(name: str) -> object:
    if name in ("datasets", "interop", "plots"):  # modules that are not listed
        return import_module(f"{__name__}.{name}")
    if name not in _names:
        near = "".join(f"Did you mean {found!r}? " for found in get_close_matches(name, __all__, n=1))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}. {near}All names: dir({__name__}).")
    try:
        value = globals()[name] = _load(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "sklearn":
            raise
        raise ImportError(f"dpconvex.{name} needs scikit-learn: pip install 'dpconvex[estimators]'.") from error
    return value


def __dir__() -> list[str]:
    return list(__all__)
