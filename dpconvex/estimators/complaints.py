"""What scikit-learn's users are told: what is wrong with a table, and where usual idioms leak."""

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

from dpconvex.errors import DomainError, PrivacyWarning
from dpconvex.language.entries import TIMES, has_masked

# A pipeline calls its last step from its own `fit`, through a few wrappers.
DEPTH = 12


def warn_of_clones(estimator: Any) -> None:
    """Warn where a copy is fitted without a budget, as cross-validation and searches do."""
    if getattr(estimator, "_is_clone", False) and estimator.budget is None and estimator.seed is None:
        warnings.warn(
            f"a copy of {type(estimator).__name__} is fitted, as cross-validation and searches do: each fit spends epsilon = "
            f"{estimator.epsilon:g} on the same people, and the scores are not private. Count the fits with budget=..., or "
            "choose privately with dpconvex.tune.",
            PrivacyWarning,
            stacklevel=4,
        )


def warn_of_pipelines(estimator: Any) -> None:
    """Warn where an earlier step of a pipeline learns from the data without paying for it."""
    for step in steps_before(estimator):
        if learns(step):
            warnings.warn(
                f"{type(step).__name__} learns from the data before the private step, and nobody pays for that: what it "
                "learnt is part of the model. Scale with public bounds (dpconvex.SchemaEncoder, dpconvex.datasets.unit_ball).",
                PrivacyWarning,
                stacklevel=4,
            )


def steps_before(estimator: Any) -> list[Any]:
    """Return the earlier steps of the pipeline that is fitting an estimator, none if there is none."""
    frame = inspect.currentframe()
    for _ in range(DEPTH):
        frame = None if frame is None else frame.f_back
        if frame is None:
            return []
        owner = frame.f_locals.get("self")
        if isinstance(owner, Pipeline) and owner.steps and owner.steps[-1][1] is estimator:
            return [step for _, step in owner.steps[:-1]]
    return []


def learns(step: Any) -> bool:
    """Say whether a transformer takes anything from the data that it is fitted to."""
    if step is None or step == "passthrough" or getattr(step, "data_independent", False):
        return False
    try:
        return bool(get_tags(step).requires_fit)
    except Exception:  # a transformer of somebody else's that says nothing about itself
        return True


@contextmanager
def explained(caller: str, X: Any) -> Iterator[None]:
    """Context in which scikit-learn reads a table: what it says of missing values and of texts gets a place and a remedy."""
    try:
        yield
    except OverflowError as error:
        raise DomainError(f"{caller}: an entry is larger than floating-point numbers go.") from error
    except ValueError as error:
        text = str(error).splitlines()[0]
        if text.startswith("could not convert"):
            remedy = (
                "declare what texts stand for in a dpconvex.Schema, and encode the table with dpconvex.SchemaEncoder"
            )
        elif text.startswith("Input X contains"):
            remedy = (
                f"{first_bad(X)}leave such records out, fill them in with public values, or declare in a dpconvex.Schema what is "
                "missing, and encode the table with dpconvex.SchemaEncoder"
            )
        elif text.startswith("Input y contains"):
            remedy = "leave such records out"
        else:
            raise
        raise DomainError(f"{caller}: {text.rstrip('.')}: {remedy}.") from error


def first_bad(X: Any) -> str:
    """Say where the first number of a table is that is none."""
    try:
        rows, column = np.nonzero(~np.isfinite(np.asarray(X, dtype=float)))
    except (TypeError, ValueError):
        return ""
    return f"the first is in row {rows[0]}, column {column[0]}; " if len(rows) else ""


def plain(caller: str, name: str, values: Any, texts: bool = False) -> None:
    """Refuse masked entries, dates, durations and, except as labels, texts: scikit-learn would make numbers of them."""
    if has_masked(values):
        raise DomainError(f"{caller}: entries of {name} are masked; leave such records out, or fill them in.")
    if values is None or sp.issparse(values):
        return
    try:
        array = np.asarray(values)
    except Exception:  # what is no array, scikit-learn refuses with its own words
        return
    kind, wrong = array.dtype.kind, TIMES if texts else (*TIMES, str, bytes)
    odd = any(isinstance(entry, wrong) for entry in array.ravel().tolist()) if kind == "O" else False
    if odd or kind in "Mm" or (kind in "US" and not texts):
        remedy = (
            "targets are numbers between declared bounds, and labels are for a classifier, such as LogisticRegression"
            if name == "y"
            else "declare what they stand for in a dpconvex.Schema, and encode the table with dpconvex.SchemaEncoder"
        )
        raise DomainError(f"{caller}: {name} has {'' if texts else 'texts, '}dates or durations for numbers: {remedy}.")
