"""The core language: what a template is read into, and what every proof and every program is made from."""

import sys
from importlib.util import find_spec
from types import FrameType


class NoSolver:
    """Refuse to import JAX for CVXPY, which asks for it to see whether MPAX is there, where MPAX is not."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        frame: FrameType | None = sys._getframe() if name == "jax" else None
        while frame is not None and not frame.f_globals.get("__name__", "").endswith(".mpax_qpif"):
            frame = frame.f_back
        if frame is not None and find_spec("mpax") is None:
            raise ModuleNotFoundError("MPAX is not installed", name=name)


sys.meta_path.insert(0, NoSolver)
