"""What a long command is doing, on standard error: a stage and whole seconds, and nothing else that the data decide."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic

from dpconvex.util.runtime import Stage

FIRST, OFTEN, SELDOM = 2.0, 1.0, 10.0  # seconds before the first word, and between words on a terminal and elsewhere


@contextmanager
def progress(name: str, asked: bool) -> Iterator[None]:
    """Context of a command that says what it is at, if it takes long and stands at a terminal, or was asked to."""
    Stage.name = "preparing"
    terminal, done, begun = sys.stderr.isatty(), Event(), monotonic()

    def watch() -> None:
        pause = FIRST
        while not done.wait(pause):
            said = f"dpconvex {name}: {Stage.name}, {monotonic() - begun:.0f} s"
            print(f"\r\033[K{said}" if terminal else said, end="" if terminal else "\n", file=sys.stderr, flush=True)
            pause = OFTEN if terminal else SELDOM
        if terminal and pause != FIRST:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    thread = Thread(target=watch, daemon=True)
    if asked or terminal:
        thread.start()
    try:
        yield
    finally:
        done.set()
        if asked or terminal:
            thread.join()
