"""Warnings where usual idioms of scikit-learn leak: steps that learn from data before a private one, and repeated fits."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

from dpconvex.errors import PrivacyWarning

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
