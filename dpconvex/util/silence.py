"""Suppression of output by third-party code, which could reveal data."""

import ctypes
import logging
import os
import sys
import warnings
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from threading import get_ident

from dpconvex.util.runtime import Shared


def muted() -> Generator[None]:
    """Until closed, suppress file descriptors 1 and 2, streams, warnings and loggers of the process."""
    flush()
    with ExitStack() as stack:
        nowhere = stack.enter_context(open(os.devnull, "w"))
        for number in (1, 2):
            with suppress(OSError):  # some processes have none
                kept = os.dup(number)
                stack.callback(os.close, kept)
                stack.callback(os.dup2, kept, number)
                os.dup2(nowhere.fileno(), number)
        stack.callback(flush)  # flush streams kept elsewhere, after the descriptors are back
        for entered in (redirect_stdout(nowhere), redirect_stderr(nowhere), warnings.catch_warnings()):
            stack.enter_context(entered)
        warnings.simplefilter("ignore")
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(sys.maxsize)
        stack.callback(flush)
        yield


def flush() -> None:
    """Flush the streams of Python and of C to their present targets."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with suppress(Exception):
            stream.flush()  # type: ignore[union-attr]
    with suppress(Exception):  # some platforms lack the function
        ctypes.CDLL(None).fflush(None)


SILENT = Shared(muted)


def _forked() -> None:
    """End a silence that other threads began, because threads do not survive a fork."""
    silent, own = SILENT.users, get_ident()
    SILENT.users = {use: thread for use, thread in silent.items() if thread == own}
    if silent and not SILENT.users:  # only lost threads held the silence; one that this thread began stays
        SILENT.context.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


@contextmanager
def silence() -> Iterator[None]:
    """Context for third-party code: no thread can print, warn or log, because the text could reveal data."""
    import numpy as np

    with SILENT.held(), np.errstate(all="ignore"):
        yield
