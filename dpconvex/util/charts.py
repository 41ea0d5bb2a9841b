"""Small pictures as SVG, in the colours of the page that holds them: curves with bands, points and bars with intervals."""

import html
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

WIDE, HIGH, LEFT, BELOW = 340, 260, 44, 40


def chart(
    title: str,
    across: str,
    up: str,
    x: ArrayLike,
    y: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    *,
    line: Sequence[float] = (0.0, 0.0, 1.0, 1.0),
    points: bool = False,
    box: Sequence[float] = (0.0, 1.0, 0.0, 1.0),
) -> str:
    """Return a picture of a curve and its band, or of points and their intervals, in a box; a dotted line has two ends (x, y)."""
    first, last, least, most = box
    known = np.isfinite(np.asarray(y, dtype=float))
    places = [np.asarray(part, dtype=float)[known] for part in (x, y, lower, upper)]
    left, (middle, low, high) = (
        LEFT + (places[0] - first) / (last - first) * (WIDE - LEFT - 10),
        (
            HIGH - BELOW - (np.clip(part, least, most) - least) / (most - least) * (HIGH - BELOW - 12)
            for part in places[1:]
        ),
    )
    ends = np.array(line, dtype=float).reshape(2, 2)
    ends[:, 0] = LEFT + (ends[:, 0] - first) / (last - first) * (WIDE - LEFT - 10)
    ends[:, 1] = HIGH - BELOW - (ends[:, 1] - least) / (most - least) * (HIGH - BELOW - 12)
    parts = [f'<polyline class="guide" points="{path(*ends.T)}"/>']
    if points:
        parts += [
            f'<path class="reach" d="M{a:.1f} {b:.1f}V{c:.1f}"/>' for a, b, c in zip(left, low, high, strict=True)
        ]
        parts += [
            f'<circle class="mark" cx="{a:.1f}" cy="{b:.1f}" r="3.5"/>' for a, b in zip(left, middle, strict=True)
        ]
    else:
        band = path(np.concatenate([left, left[::-1]]), np.concatenate([low, high[::-1]]))
        parts += [f'<polygon class="band" points="{band}"/>', f'<polyline class="line" points="{path(left, middle)}"/>']
    for share in (0.0, 0.5, 1.0):
        at, height = LEFT + share * (WIDE - LEFT - 10), HIGH - BELOW - share * (HIGH - BELOW - 12)
        parts.append(text(at, HIGH - BELOW + 14, f"{first + share * (last - first):.3g}", "middle"))
        parts.append(text(LEFT - 5, height + 4, f"{least + share * (most - least):.3g}", "end"))
    parts += [
        f'<path class="axis" d="M{LEFT} 10V{HIGH - BELOW}H{WIDE - 8}"/>',
        text(WIDE / 2 + 10, HIGH - 8, across, "middle"),
    ]
    parts.append(f'<g transform="translate(11 {HIGH / 2 - 10}) rotate(-90)">{text(0, 0, up, "middle")}</g>')
    label, content = html.escape(title), "".join(parts)
    svg = f'<svg viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="{label}">{content}</svg>'
    return f"<figure>{svg}<figcaption>{label}</figcaption></figure>"


def path(x: ArrayLike, y: ArrayLike) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(np.asarray(x), np.asarray(y), strict=True))


def text(x: float, y: float, said: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(said)}</text>'


def interval(value: float, low: float, high: float, most: float) -> str:
    """Return a bar from 0 to a value, with its interval, in a strip from -most to most."""
    at, start, end = (50 + 48 * max(min(part / most, 1.0), -1.0) for part in (value, low, high))
    bar = f'<rect class="mark" x="{min(50.0, at):.1f}" y="3" width="{abs(at - 50):.1f}" height="6"/>'
    reach = f'<path class="reach" d="M{start:.1f} 6H{end:.1f}"/>' if high > low else ""
    return f'<svg class="strip" viewBox="0 0 100 12" aria-hidden="true"><path class="axis" d="M50 0V12"/>{bar}{reach}</svg>'
