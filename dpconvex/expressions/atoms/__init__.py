"""The atoms, one family per file.  Importing the package imports every file and so registers all atoms."""

from importlib import import_module
from pkgutil import iter_modules

from dpconvex.expressions.atom import ATOMS

__all__ = ["ATOMS"]

for _file in iter_modules(__path__, f"{__name__}."):
    import_module(_file.name)
