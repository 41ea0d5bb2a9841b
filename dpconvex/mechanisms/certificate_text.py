"""What mechanisms add noise to, and how certificates put constants and derivations into words."""

import html
from dataclasses import dataclass

from dpconvex.core.derivation import Derivation
from dpconvex.core.markup import brief


@dataclass(frozen=True)
class Place:
    """What a mechanism adds its noise to.

    `minimises` says whether an objective is minimised, `pays` whether the noise also hides the distance that a solver leaves,
    `where` and `drawn` what certificates say of the noise and its drawing, and `foreseen` what a predicted risk is multiplied
    with to foresee what the mechanism does, measured on synthetic data by `benchmarks.utility.choices`.
    """

    minimises: bool
    pays: bool
    where: str
    foreseen: float = 1.0
    drawn: str = (
        "Drawing the mechanism's noise in floating point moves an ideal draw by no more than docs/release.md proves, which is "
        "covered."
    )


PLACES = {
    "objective": Place(True, False, ""),
    "output": Place(True, True, " (on the parameters)", 50.0),
    "gradients": Place(
        False,
        False,
        " (at every step)",
        drawn="The noise of every step is taken to be ideal, although it is drawn and added in floating point; what is covered "
        "are the digits of the answer.",
    ),
    "statistics": Place(False, False, " (on the statistics)"),
}


def number(value: float) -> str:
    return f"{value:.6g}"


def ratio(value: float) -> str:
    return "-" if value != value else f"{value:.3f}"


def source(root: Derivation, key: str) -> str:
    """Return the one-line reason of a constant: the rule of the branch of the derivation that proves it."""
    level = root.children
    while level:
        for step in level:
            if key in step.rule:
                return step.source or step.rule
        level = tuple(child for step in level for child in step.children)
    return root.source


def tree(step: Derivation) -> str:
    """Return a derivation as nested HTML lists."""
    head = html.escape(brief(next(iter(step.lines())).strip()))
    return f"<ul><li>{head}{''.join(tree(child) for child in step.children)}</li></ul>"
