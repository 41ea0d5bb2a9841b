"""The contexts in which all is computed: IEEE's double precision, whatever a user chose of NumPy and of JAX for the process."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import numpy as np

from dpconvex.errors import TemplateError

# Of NumPy, for what proves and what fits: what underflows is 0, for an error could depend on the records.
quietly = np.errstate(under="ignore")

# Contexts of JAX, and what holds in them.  Products of matrices would be rounded to fewer digits, if that was asked for; values
# would be refused by their types, shapes and places, or for being infinite, after a fit is paid for.
CONTEXTS: dict[str, Any] = {
    "default_matmul_precision": "highest",
    "numpy_dtype_promotion": "standard",
    "numpy_rank_promotion": "allow",
    "transfer_guard": "allow",
    "debug_nans": False,
    "debug_infs": False,
}
# And for its compiler: bounds on rounding rest on the order in which terms are added, which XLA_FLAGS can give away.
COMPILER = {"xla_cpu_enable_fast_math": False}


@contextmanager
def double_precision() -> Iterator[None]:
    """Context in which JAX computes in float64, in this thread; its global configuration is left alone."""
    try:
        import jax
    except ImportError as error:
        raise TemplateError(
            "this needs JAX: install dpconvex with the extra 'fast' (pip install dpconvex[fast])."
        ) from error
    with ExitStack() as stack:
        stack.enter_context(wide(jax)(True))
        for name, value in CONTEXTS.items():
            stack.enter_context(getattr(jax, name)(value))
        yield


def wide(jax: Any) -> Callable[[bool], AbstractContextManager[Any]]:
    """Return JAX's switch for float64, wherever a release of it keeps that."""
    found: Any = getattr(jax, "enable_x64", None)
    if found is None:
        from jax import experimental

        found = getattr(experimental, "enable_x64")  # noqa: B009  (newer releases have none)
    return found
