"""HTML for notebooks: tables with short numbers, in the colours of the reader, light or dark."""

import html
import re
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, Context

# Numbers with decimals; others, such as counts and powers of ten, stay as they are.
DECIMALS = re.compile(r"(?<![\w.^])\d+\.\d+(e[+-]?\d+)?(?![\w.])")
LEFT, RIGHT = "text-align:left", "text-align:right;white-space:nowrap"


def upward(value: float, places: int = 4) -> str:
    """Return a number with `places` digits, rounded up: a smaller cost, or bound on a risk, would be a false claim."""
    rounded = Context(prec=places, rounding=ROUND_CEILING).create_decimal(repr(float(value)))
    return f"{float(rounded):.{places}g}"


def downward(value: float, places: int = 4) -> str:
    """Return a number with `places` digits, rounded down, such as a remaining budget."""
    return upward(-value, places)[1:]


def shorten_numbers(text: str) -> str:
    """Return a text with numbers of four digits, costs rounded up; numbers such as 1.2.3 or 2^-27 are unchanged."""

    def cut(found: re.Match[str]) -> str:
        value = float(found.group())
        if text.endswith(("epsilon = ", "delta = "), 0, found.start()):
            return upward(value)
        return f"{value:.0f}" if 1000 <= value < 1e6 else f"{value:.4g}" if 1e-4 <= value < 1000 else f"{value:.3g}"

    return DECIMALS.sub(cut, text)


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = (1,)) -> str:
    """Return a table; the columns in `numbers` are aligned to the right."""
    right = set(numbers)

    def cell(place: int, text: str, tag: str = "td") -> str:
        return f'<{tag} style="{RIGHT if place in right else LEFT}">{html.escape(shorten_numbers(text))}</{tag}>'

    top = "".join(cell(place, text, "th") for place, text in enumerate(head))
    body = "".join(f"<tr>{''.join(cell(place, text) for place, text in enumerate(row))}</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def paragraph(title: str, text: str = "", warning: bool = False) -> str:
    """Return a paragraph with a bold beginning; a warning has a frame, because colours are those of the reader."""
    frame = ' style="border-left:4px solid #d9534f;padding-left:0.6em"' if warning else ""
    return f"<p{frame}><b>{html.escape(title)}</b>{html.escape(text)}</p>"


def html_list(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{html.escape(shorten_numbers(item))}</li>' for item in items)}</ul>"


def details(title: str, content: str) -> str:
    return f"<details><summary>{html.escape(title)}</summary>{content}</details>"


def progress_bar(part: float) -> str:
    return f'<progress max="1" value="{min(max(part, 0.0), 1.0):.4g}" style="width:16em"></progress>'


def digits(value: float) -> str:
    """Return a number with three digits; from a thousand to a million, with all whole digits.

    >>> digits(2409.2), digits(-12345.6), digits(0.03721)
    ('2,409', '-12,346', '0.0372')
    """
    return f"{value:,.0f}" if 999.5 <= abs(value) < 1e6 else f"{value:.3g}"
