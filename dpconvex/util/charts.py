"""Small charts as SVG, in the colours of their page: curves with bands, points with intervals, and bars with intervals."""

import html
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from dpconvex.util.arrays import Array
from dpconvex.util.markup import digits

WIDE, HIGH, LEFT, RIGHT, BELOW = 340, 260, 56, 18, 40  # Labels of three digits have room


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
    """Return a chart of a curve with its band, or of points with intervals, in a box; `line` has the ends of a dotted line."""
    known = np.isfinite(np.asarray(y, dtype=float))
    x, y, lower, upper = (np.asarray(part, dtype=float)[known] for part in (x, y, lower, upper))
    (left, middle), (_, low), (_, high) = (placed(x, part, box) for part in (y, lower, upper))
    parts = [f'<polyline class="guide" points="{path(*placed(line[::2], line[1::2], box))}"/>']
    if points:
        ends = zip(left, low, high, strict=True)
        parts += [f'<path class="reach" d="M{a:.1f} {b:.1f}V{c:.1f}"/>' for a, b, c in ends]
        centres = zip(left, middle, strict=True)
        parts += [f'<circle class="mark" cx="{a:.1f}" cy="{b:.1f}" r="3.5"/>' for a, b in centres]
    else:
        band = path(np.concatenate([left, left[::-1]]), np.concatenate([low, high[::-1]]))
        parts += [f'<polygon class="band" points="{band}"/>', f'<polyline class="line" points="{path(left, middle)}"/>']
    ticks = np.linspace(box[0], box[1], 3), np.linspace(box[2], box[3], 3)
    for across_at, up_at, first, second in zip(*placed(*ticks, box), *ticks, strict=True):
        parts.append(text(across_at, HIGH - BELOW + 14, digits(first), "middle"))
        parts.append(text(LEFT - 5, up_at + 4, digits(second), "end"))
    parts.append(f'<path class="axis" d="M{LEFT} 10V{HIGH - BELOW}H{WIDE - RIGHT + 2}"/>')
    parts.append(text(WIDE / 2 + 10, HIGH - 8, across, "middle"))
    parts.append(f'<g transform="translate(11 {HIGH / 2 - 10}) rotate(-90)">{text(0, 0, up, "middle")}</g>')
    label, content = html.escape(title), "".join(parts)
    svg = f'<svg viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="{label}">{content}</svg>'
    return f"<figure>{svg}<figcaption>{label}</figcaption></figure>"


def placed(x: ArrayLike, y: ArrayLike, box: Sequence[float]) -> tuple[Array, Array]:
    """Return the coordinates of points of a box in the picture; points above or below the box lie on its edge."""
    first, last, least, most = box
    across, up = (np.asarray(x) - first) / (last - first), (np.clip(y, least, most) - least) / (most - least)
    return LEFT + across * (WIDE - LEFT - RIGHT), HIGH - BELOW - up * (HIGH - BELOW - 12)


def path(x: ArrayLike, y: ArrayLike) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(np.asarray(x), np.asarray(y), strict=True))


def text(x: float, y: float, said: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(said)}</text>'


def bar_of(value: float, low: float, high: float, most: float) -> str:
    """Return a bar from 0 to a value, with its interval, in a strip from -most to most."""
    at, start, end = (50 + 48 * max(min(part / most, 1.0), -1.0) for part in (value, low, high))
    bar = f'<rect class="mark" x="{min(50.0, at):.1f}" y="3" width="{abs(at - 50):.1f}" height="6"/>'
    reach = f'<path class="reach" d="M{start:.1f} 6H{end:.1f}"/>' if high > low else ""
    return f'<svg class="strip" viewBox="0 0 100 12" aria-hidden="true"><path class="axis" d="M50 0V12"/>{bar}{reach}</svg>'
