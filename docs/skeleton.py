"""Writes a first version of a new problem or atom: ``make new-problem NAME=huber_counts``, ``make new-atom NAME=xexp``."""

import argparse
import keyword
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

PROBLEM = '''"""{title}: say in one line what it learns."""

import cvxpy as cp

import dpconvex as dp


def template(
    *, features: int, regularization: float = 1e-3, radius: float = 1.0, labels: tuple = (-1, 1)
) -> dp.Template:
    """Return the template.

    Cite the source here: paper, section.

    Parameters
    ----------
    features : int
        Number of features.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 ||w||^2``.
    radius : float
        Public bound on the Euclidean norm of a record's features.
    labels : tuple
        The negative and the positive label.
    """
    negative, positive = labels
    w = cp.Variable(features, name="w")

    def loss(x, y):
        return cp.logistic(-(1 if y == positive else -1) * (x @ w))

    def decision(parameters, x):
        return x @ parameters["w"]

    return dp.Template(
        dp.Record(x=dp.Ball(features, radius=radius), y=dp.Choice([negative, positive])),
        loss,
        regularization / 2 * cp.sum_squares(w),
        decision=decision,
    )
'''

ATOM = '''"""{title}: say what the function is, and where learners use it."""

import numpy as np

from dpconvex.errors import NotPrivate
from dpconvex.expressions.abstract_values import AbstractValue
from dpconvex.expressions.atom import AtomDefinition, always
from dpconvex.expressions.atoms import rules
from dpconvex.expressions.expression import Expression
from dpconvex.numerics import Interval

LARGEST = 300.0  # Values and slopes are finite up to this argument


def {name}_bounds(expression: Expression, entry: AbstractValue) -> AbstractValue:
    """Bound value, slope and second derivative of m exp(m), which grow, on an interval of numbers that are not negative."""
    low, high = max(entry.value.low, 0.0), entry.value.high
    if not high <= LARGEST:
        why = f"{name} needs an argument of at most {{LARGEST:g}}, and it goes up to {{high:.4g}}"
        raise NotPrivate(why, None, rules.BOUND_IT)
    value, slope = (Interval(*(float((m + k) * np.exp(m)) for m in (low, high))).rounded() for k in (0, 1))
    return entry.through(value, slope, Interval(0.0, float((high + 2) * np.exp(high))).rounded().high)


{upper} = AtomDefinition(
    name="{name}",
    value=lambda expression, a: a * np.exp(a),
    vjp=lambda expression, value, slope, a: [slope * (1 + a) * np.exp(a)],
    from_cvxpy="elementwise.{name}.{name}",
    entrywise=True,
    domain=always(("not negative",)),
    sign=always(1),
    monotonicity=always(1),
    bounds=rules.entrywise({name}_bounds),
    statement="m exp(m) on 0 <= m <= u: slope at most (1 + u) exp(u), second derivative at most (2 + u) exp(u)",
    example=("{name}(w[0])", lambda cp, w: cp.{name}(w[0])),
)
'''

NEXT = {
    "problem": "Edit it, add a test to tests/test_problems.py and a row to docs/problems.md, then run: make golden "
    "ARGUMENTS='--write gallery/{name}'; "
    "python -m pytest tests/test_problems.py tests/test_tightness.py tests/checker/test_replay.py -k {name}.",
    "atom": "It is m exp(m), CVXPY's xexp, until you edit it; if CVXPY lacks the function, see CONTRIBUTING.md. "
    "Then run: python docs/build_rules.py; "
    "python -m pytest tests/expressions/test_atoms.py -k {name}.",
}


def text_of(kind: str, name: str) -> str:
    """Return the file of a new problem or atom."""
    text, title = PROBLEM if kind == "problem" else ATOM, name.replace("_", " ").capitalize()
    return text.format(name=name, upper=name.upper(), title=title)


def main() -> int:
    """Write the file, unless there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["problem", "atom"])
    parser.add_argument("name")
    asked = parser.parse_args()
    if not asked.name.isidentifier() or keyword.iskeyword(asked.name) or asked.name != asked.name.lower():
        parser.error(f"a name is in small letters with underscores, such as robust_counts, not {asked.name!r}")
    folder = ROOT / "problems" if asked.kind == "problem" else ROOT / "dpconvex" / "expressions" / "atoms"
    file = folder / f"{asked.name}.py"
    if file.exists():
        parser.error(f"{file} exists")
    file.write_text(text_of(asked.kind, asked.name), encoding="utf-8")
    sys.stdout.write(f"Wrote {file.relative_to(ROOT)}. {NEXT[asked.kind].format(name=asked.name)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
