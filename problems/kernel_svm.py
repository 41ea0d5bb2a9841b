"""Kernel support vector machine through random Fourier features, two classes."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    classes: int = 2,
    components: int = 50,
    kernel: str = "gaussian",
    gamma: float = 1.0,
    paired: bool = True,
    seed: int = 0,
    regularization: float = 1e-6,
    width: float = 0.5,
    labels: tuple = (-1, 1),
    constant: float = 0.0,
) -> dp.Template:
    """Return the template (Chaudhuri, Monteleoni & Sarwate 2011, algorithm 3).

    Records are declared and fitted in mapped coordinates: pass ``dp.RandomFourierFeatures(...).transform(X)`` with the same
    options.  Prediction takes raw features, which it maps itself, or mapped ones.

    Parameters
    ----------
    features : int
        Number of raw features.
    classes : int
        Two.
    components, kernel, gamma, paired, seed
        Options of `dpconvex.RandomFourierFeatures`; the seed is public.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 ||w||^2``.
    width : float
        Half-width of the quadratic piece of the Huber hinge.
    labels : tuple
        The negative and the positive label.
    constant : float
        Factor of a parameter b: the score of mapped features is ``x @ w + constant * b``, and b has a penalty of 1e-6 at most.
        By default there is none.
    """
    if classes != 2:
        raise dp.TemplateError(f"kernel_svm has two classes, not {classes}; see the multi-class problems.")
    negative, positive = labels
    mapping = dp.RandomFourierFeatures(features, components, kernel, gamma, paired, seed)
    w = cp.Variable(mapping.dim, name="w")
    b = cp.Variable(name="b") if constant else 0.0
    free = min(regularization, 1e-6)

    def loss(x, y):
        sign = 1 if y == positive else -1
        return dp.huber_hinge(1 - sign * (x @ w + constant * b), width=width)

    def decision(parameters, x):
        mapped = x if np.shape(x)[1:] == (mapping.dim,) != (features,) else mapping.transform(x)
        return mapped @ parameters["w"] + constant * parameters.get("b", 0.0)

    return dp.Template(
        record=dp.Record(x=dp.Ball(mapping.dim, radius=mapping.radius), y=dp.Choice([negative, positive])),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(w) + (free / 2 * cp.square(b) if constant else 0.0),
        decision=decision,
    )
