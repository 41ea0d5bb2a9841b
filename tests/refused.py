"""One line for a call that must be refused."""

import pytest


def refused(kind, match, call, *arguments, **options):
    """Call it: it must raise an error of this kind, whose words match."""
    with pytest.raises(kind, match=match):
        call(*arguments, **options)
