"""Silence: what code that is not ours says could tell about the data."""

import ctypes
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from threading import get_ident

from dpconvex.util.runtime import Shared


@contextmanager
def muted() -> Iterator[None]:
    """Let nothing out of the process by its file descriptors 1 and 2, its streams, its warnings and its loggers."""
    flush()
    with ExitStack() as stack:
        nowhere = stack.enter_context(open(os.devnull, "w"))
        for number in (1, 2):
            with suppress(OSError):  # of a process that has none
                kept = os.dup(number)
                stack.callback(os.close, kept)
                stack.callback(os.dup2, kept, number)
                os.dup2(nowhere.fileno(), number)
        stack.callback(flush)  # streams that somebody kept, once they are back
        for entered in (redirect_stdout(nowhere), redirect_stderr(nowhere), warnings.catch_warnings()):
            stack.enter_context(entered)
        warnings.simplefilter("ignore")
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(sys.maxsize)
        stack.callback(flush)
        yield


def flush() -> None:
    """Write what streams of Python and of C still hold to wherever they lead now."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with suppress(Exception):
            stream.flush()  # type: ignore[union-attr]
    with suppress(Exception):  # where there is no such function
        ctypes.CDLL(None).fflush(None)


SILENT = Shared(muted)


def _forked() -> None:
    """End a silence that other threads asked for, which do not survive a fork."""
    silent, SILENT.users = SILENT.users, [thread for thread in SILENT.users if thread == get_ident()]
    if silent and not SILENT.users:  # of threads that did not survive; what one of them starts stays silent
        SILENT.stack.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


@contextmanager
def silence() -> Iterator[None]:
    """Context for code that is not ours: nothing is said, by whatever thread, for it could tell about the data."""
    import numpy as np

    with SILENT.held(), np.errstate(all="ignore"):
        yield
