"""How certificates put constants and derivations into words."""

from __future__ import annotations

import html
from collections.abc import Iterator

from dpconvex.core.derivation import Derivation
from dpconvex.core.markup import brief
from dpconvex.mechanisms.noisy_kmeans import ClusteringNoise


def clustering_rows(noise: ClusteringNoise) -> Iterator[tuple[str, str, str]]:
    """Yield (constant, value, where it comes from) of a clustering."""
    many = f"{noise.rounds} rounds of {noise.classes} x {noise.components} counts and sums"
    yield "clustering sensitivity", number(noise.sensitivity), f"of one round; {number(noise.composed)} for all: {many}"
    name = f"clustering noise {noise.law.symbol}"
    yield name, number(noise.scale), f"{noise.law.name}; {number(noise.deviation / noise.weight)} records on a count"


def number(value: float) -> str:
    """Format a constant.

    >>> number(2.8284271247461903), number(0.25)
    ('2.82843', '0.25')
    """
    return f"{value:.6g}"


def ratio(value: float) -> str:
    """Format a ratio, or a dash where there is none."""
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
    inner = "".join(tree(child) for child in step.children)
    return f"<ul><li>{head}{inner}</li></ul>"
