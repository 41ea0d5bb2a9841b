"""Labels and probabilities from scores, for templates that declare a decision function."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.errors import TemplateError

Array = NDArray[np.float64]
Predict = Callable[[Mapping[str, Array], Array], NDArray[Any]]


def labels_from(decision: Predict, labels: Sequence[Any] | None) -> Predict:
    """Return the function that predicts by scores: above 0 the second label, or that of the largest; without labels, scores."""
    if labels is None:
        return decision
    names = np.array(list(labels))

    def predict(parameters: Mapping[str, Array], x: Array) -> NDArray[Any]:
        scores = np.asarray(decision(parameters, x))
        if scores.ndim == 1 and len(names) == 2:
            return names[(scores > 0).astype(int)]
        if scores.ndim == 2 and scores.shape[1] == len(names):
            return names[np.argmax(scores, axis=1)]
        raise TemplateError(
            f"predict: the decision function must return one score per record for two labels, or one for each of the "
            f"{len(names)} labels, not shape {scores.shape}."
        )

    return predict


def softmax_of(decision: Predict) -> Predict:
    """Return the function of probabilities whose logarithms differ as the scores do, shape (n, labels)."""

    def probabilities(parameters: Mapping[str, Array], x: Array) -> Array:
        scores = np.asarray(decision(parameters, x), dtype=float)
        if scores.ndim == 1:
            scores = np.column_stack([np.zeros(len(scores)), scores])
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    return probabilities
