"""One line for a call that must be refused, or that warns."""

import warnings
from contextlib import suppress

import pytest


def refused(kind, match, call, *arguments, **options):
    """Call it: it must raise an error of this kind, whose words match."""
    with pytest.raises(kind, match=match):
        call(*arguments, **options)


def warnings_of(call, *arguments, may_raise=(), **options):
    """Call it, and return the words of its warnings."""
    with warnings.catch_warnings(record=True) as found, suppress(*may_raise):
        warnings.simplefilter("always")
        call(*arguments, **options)
    return [str(one.message) for one in found]
