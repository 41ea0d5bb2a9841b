"""What notebooks show: every element closed, everything escaped, numbers for people, and no colours of our own for text."""

import re
from html.parser import HTMLParser

import numpy as np

import dpconvex as dp


class Closed(HTMLParser):
    """Raises unless every element is closed where it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


def test_everything_is_shown_well() -> None:
    learner = dp.load("logistic_regression", features=2)
    certificate, budget = dp.verify(learner, dp.Privacy(1.0), 100), dp.Budget(dp.Privacy(3.0))
    data = {"x": np.zeros((100, 2)), "y": np.ones(100)}
    release = dp.solve(learner, data, dp.Privacy(1.0), budget=budget, label="<first>")
    shown = {
        "certificate": certificate,
        "release": release,
        "budget": budget,
        "baseline": dp.minimize(learner, data),
    }
    found = {}
    for name, thing in shown.items():
        page = Closed()
        page.feed(thing._repr_html_())
        assert page.open == [], name
        assert not re.search(r"(?<!-)color:|background", thing._repr_html_()), name  # the reader's theme has colours
        assert not re.search(r"[1-9]\d*\.\d{4,}|0\.0*[1-9]\d{4,}", page.text), name
        found[name] = page.text
    assert "33 % spent" in found["budget"]
    assert "<first>" in found["budget"]
    assert "NOT PRIVATE" in found["baseline"]
