"""The core language: what a template is read into, and what every proof and every program is made from."""

import sys
from importlib.util import find_spec
from traceback import walk_stack


class NoSolver:
    """Refuse to import JAX for CVXPY, which asks for it to see whether MPAX is there, where MPAX is not."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        asking = (frame.f_globals.get("__name__", "") for frame, _ in walk_stack(None))
        if name == "jax" and find_spec("mpax") is None and any(one.endswith(".mpax_qpif") for one in asking):
            raise ModuleNotFoundError("MPAX is not installed", name=name)


sys.meta_path.insert(0, NoSolver)
