"""On which devices compiled functions sum over records, and how much of the data may lie there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from dpconvex.core.plain_data import is_whole
from dpconvex.core.runtime import double_precision
from dpconvex.errors import TemplateError

# Bytes of a block of records, unless others are asked for.
BLOCK = 2**26
# Blocks on their way for each device: one that is computed, and the next.
AHEAD = 2
# A block has at least so many records.
FEWEST = 128
# Records take at most this share of a device's memory, unless a limit is given: what is made of a block lies there too.
SHARE = 0.5
# Platforms whose arithmetic in double precision is IEEE's, which bounds on rounding rest on.
EXACT = ("cpu", "gpu", "cuda", "rocm")


@dataclass(frozen=True)
class Placement:
    """What `devices` was asked for; by default the accelerators that there are, or else one processor."""

    count: int | None = None
    memory: int | None = None
    block: int = BLOCK
    asked: bool = False

    def found(self) -> list[Any]:
        """Return the devices, or say that there are not as many."""
        with double_precision():
            import jax
        there = jax.devices()
        if not self.asked and jax.default_backend() == "cpu":
            return there[:1]
        if self.count is not None and self.count > len(there):
            raise TemplateError(f"devices: {self.count} were asked for, and JAX finds {len(there)}.")
        if there[0].platform not in EXACT:
            raise TemplateError(
                f"devices: {there[0].device_kind} has no double precision of IEEE 754, which bounds on rounding rest on; "
                "use a GPU or processors (JAX_PLATFORMS=cpu)."
            )
        for device in there[: self.count]:
            if self.memory is not None and self.memory > (most := memory_of(device)):
                raise TemplateError(
                    f"devices: memory is {self.memory} bytes, and {device.device_kind} has {most:.0f}; leave room for what the "
                    "functions make of a block."
                )
        return there[: self.count]

    def check(self, scalars: int) -> None:
        """Refuse what no fit on records of so many scalars could go by, whatever they are; before anything is paid."""
        if not self.asked:
            return
        self.found()
        block = max(self.block, 8 * FEWEST * (scalars + 1))
        if self.memory is not None and self.memory < AHEAD * block:
            raise TemplateError(
                f"devices: a block of up to {block} bytes is sent while the last one is used, and two of them do not fit into "
                f"the memory limit of {self.memory} bytes; raise `memory`, or lower `block`."
            )

    def limit(self, device: Any) -> float:
        """Return how many bytes of records may lie on a device."""
        if self.memory is not None:
            return self.memory
        return SHARE * memory_of(device) if device.platform != "cpu" else float("inf")


def memory_of(device: Any) -> float:
    """Return how many bytes a device has; infinity where nobody says so."""
    if device.platform != "cpu":
        return float((device.memory_stats() or {}).get("bytes_limit", np.inf))
    known = hasattr(os, "sysconf") and {"SC_PAGE_SIZE", "SC_PHYS_PAGES"} <= os.sysconf_names.keys()
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) if known else np.inf


_CURRENT: ContextVar[Placement | None] = ContextVar("devices", default=None)


def current() -> Placement:
    """Return what holds here."""
    return _CURRENT.get() or Placement()


@contextmanager
def devices(*, count: int | None = None, memory: int | None = None, block: int = BLOCK) -> Iterator[None]:
    """Within this context, sums over records are compiled, and run on JAX's devices.

    Without it, this happens where JAX's default device is a GPU, the columns are dense and the data are not small, on all GPUs;
    with it, wherever columns are dense.  Records are dealt to the devices in blocks.  Blocks that fit into the memory limit are
    sent once and stay; the others are sent in every pass, while those before them are computed.  Blocks' sums are added on the
    processor in the order of the records.  All of this holds in this process: workers of a cluster choose for themselves.

    Parameters
    ----------
    count : int, optional
        How many of ``jax.devices()``, from the first; by default all.
    memory : int, optional
        Bytes of records that may lie on each device at a time; at least those of two blocks.  What the
        functions make of a block needs memory besides.  By default half of a device's memory; unlimited on processors.
    block : int
        Bytes of records in a block.  Only this decides in which order records are summed: for one number, all
        counts of equal devices and all memory limits give the same bits.

    Raises
    ------
    TemplateError
        If an option makes no sense; from a fit, before anything is paid, if JAX is not installed, finds fewer devices or none
        with double precision, or if the memory limit is less than two blocks or more than a device has.

    Examples
    --------
    >>> import dpconvex as dp
    >>> learner = dp.load("logistic_regression", features=2)
    >>> data = {"x": [[1.0, 0.0], [0.0, 1.0]] * 50, "y": [1, -1] * 50}
    >>> with dp.devices(memory=2**30):
    ...     release = dp.solve(learner, data, dp.Privacy(1.0))
    >>> release["w"].shape
    (2,)
    """
    for name, value in (("count", count), ("memory", memory), ("block", block)):
        if not is_whole(value, 1) and not (value is None and name != "block"):
            raise TemplateError(f"devices: {name} must be a positive integer, not {value!r}.")
    token = _CURRENT.set(Placement(count, memory, block, asked=True))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def has_accelerator() -> bool:
    """Whether JAX finds a device with double precision besides the processor."""
    try:
        if find_spec("jax") is None:
            return False
    except ImportError:  # somebody forbids it
        return False
    import jax

    return jax.default_backend() in EXACT[1:]
