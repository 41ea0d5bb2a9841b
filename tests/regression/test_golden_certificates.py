"""Every constant of every certificate of the gallery is where it was."""

import pytest
from golden_cases import GALLERY
from golden_files import CERTIFICATES, compare, load
from golden_measures import certificates

from dpconvex.calculus import analysis

REMEDY = "\n`make golden` shows all that moved; CONTRIBUTING.md says what to do about it."


@pytest.mark.parametrize("name", GALLERY)
def test_no_certificate_has_moved(name: str) -> None:
    moved = list(compare(load(CERTIFICATES + name), certificates(name)))
    assert not moved, "\n".join(map(str, moved)) + REMEDY


def test_a_looser_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "ROUNDING_SLACK", 1e-6)
    moved = {
        change.place.split(": ")[-1] for change in compare(load(CERTIFICATES + "huber_svm"), certificates("huber_svm"))
    }
    assert {"gradient_bound", "sensitivity", "noise_scale", "derivation_logarithms"} <= moved
