"""What papers say about the excess risk of their mechanisms, to the letter: to be compared with `benchmarks.papers.excess_risk`.

Everything is in the papers' own units: the objective is the *mean* loss plus the regularizer.  The formulas are as printed, and
nothing in the toolkit rests on them.  Where one is not what its own proof gives, the docstring says so; docs/theory.md,
section 14, has the reasons.

- K. Chaudhuri, C. Monteleoni, A. Sarwate, "Differentially private empirical risk minimization", JMLR 12, 2011: lemmas 3 and 5 on
  the regularized empirical risk, theorems 3 and 4 on the number of records.
- M. Pathak, B. Raj, "Large margin Gaussian mixture models with differential privacy", IEEE TDSC 9(4), 2012: theorems 5.2, 5.3.
- Lecture notes on noisy gradient descent: the rate R B / sqrt(T), with the noise put in.
"""

from __future__ import annotations

import math

from benchmarks.published.lecture import lecture_sigma
from dpconvex.errors import TemplateError

__all__ = [
    "chaudhuri_lemma_3",
    "chaudhuri_lemma_5",
    "chaudhuri_theorem_3",
    "chaudhuri_theorem_4",
    "lecture_rate",
    "lecture_requirements",
    "pathak_raj_theorem_5_2",
    "pathak_raj_theorem_5_3",
]


def chaudhuri_lemma_3(
    size: int,
    dimension: int,
    epsilon: float,
    regularization: float,
    curvature: float,
    probability: float,
    smoothness: float = 1.0,
) -> float:
    """Return the bound of lemma 3 on the excess of Algorithm 1 (output perturbation).

    Parameters
    ----------
    size : int
        n.
    dimension : int
        d.
    epsilon : float
    regularization : float
        Lambda.
    curvature : float
        c: the derivative of the loss is c-Lipschitz (1/4 for logistic, 1/(2h) for Huber).
    probability : float
        delta: the bound fails with at most this probability.
    smoothness : float
        eta: bound on the Hessian of the regularizer N; 1 for ``N = ||f||^2 / 2``.

    Returns
    -------
    float
        ``2 d^2 (c + Lambda eta) log(d/delta)^2 / (Lambda n epsilon)^2``, on ``J(f_priv) - J(f*)``.

    Notes
    -----
    The printed proof gives 4 for the constant 2, and the proof of theorem 3 quotes 8.  The lemma is right: with a gradient that
    is L-Lipschitz, the excess is at most ``L ||b||^2 / 2``.

    Examples
    --------
    >>> round(chaudhuri_lemma_3(100, 1, 1.0, 0.5, 0.25, math.exp(-1)), 6)  # 2 (1/4 + 1/2) / 50^2
    0.0006
    """
    check(size=size, dimension=dimension, epsilon=epsilon, regularization=regularization, probability=probability)
    norm = dimension * math.log(dimension / probability) / (regularization * size * epsilon)
    return 2 * (curvature + regularization * smoothness) * norm**2


def chaudhuri_lemma_5(size: int, dimension: int, epsilon: float, regularization: float, probability: float) -> float:
    """Return the bound of lemma 5 on the excess of Algorithm 2 (objective perturbation), where nothing was added.

    Parameters
    ----------
    size, dimension, epsilon, regularization, probability
        As for `chaudhuri_lemma_3`.

    Returns
    -------
    float
        ``4 d^2 log(d/delta)^2 / (Lambda n^2 epsilon^2)``, on ``J(f_priv) - J(f*)``.

    Notes
    -----
    The proof takes ||b|| to have the law Gamma(d, 2/epsilon), but the algorithm draws it with what curvature leaves of epsilon,
    Gamma(d, 2/epsilon').  With epsilon' for `epsilon` the bound holds; as printed it fails where epsilon' is much smaller.

    Examples
    --------
    >>> round(chaudhuri_lemma_5(100, 1, 1.0, 0.5, math.exp(-1)), 6)  # 4 / (0.5 100^2)
    0.0008
    """
    check(size=size, dimension=dimension, epsilon=epsilon, regularization=regularization, probability=probability)
    return (2 * dimension * math.log(dimension / probability) / (size * epsilon)) ** 2 / regularization


def chaudhuri_theorem_3(
    comparator_norm: float, target: float, dimension: int, epsilon: float, curvature: float, probability: float
) -> tuple[float, float, float]:
    """Return the three numbers of records that theorem 3 asks of Algorithm 1; n has to exceed C times their maximum.

    Parameters
    ----------
    comparator_norm : float
        ||f_0||, of the classifier to be compared with.
    target : float
        epsilon_g: by how much the expected loss may exceed that of f_0.
    dimension, epsilon, curvature, probability
        As for `chaudhuri_lemma_3`.  The statement fails with probability 2 delta.

    Returns
    -------
    tuple of float
        ``||f_0||^2 log(1/delta) / epsilon_g^2``, ``d log(d/delta) ||f_0|| / (epsilon_g epsilon)`` and
        ``d log(d/delta) c^(1/2) ||f_0||^2 / (epsilon_g^(3/2) epsilon)``.  The constant C is not given in the paper.

    Examples
    --------
    >>> [round(n, 1) for n in chaudhuri_theorem_3(2.0, 0.1, 1, 0.5, 0.25, math.exp(-1))]
    [400.0, 40.0, 126.5]
    """
    check(dimension=dimension, epsilon=epsilon, probability=probability, comparator_norm=comparator_norm, target=target)
    noise = dimension * math.log(dimension / probability)
    return (
        comparator_norm**2 * math.log(1 / probability) / target**2,
        noise * comparator_norm / (target * epsilon),
        noise * math.sqrt(curvature) * comparator_norm**2 / (target**1.5 * epsilon),
    )


def chaudhuri_theorem_4(
    comparator_norm: float, target: float, dimension: int, epsilon: float, curvature: float, probability: float
) -> tuple[float, float, float]:
    """Return the three numbers of records that theorem 4 asks of Algorithm 2; n has to exceed C times their maximum.

    Parameters
    ----------
    comparator_norm, target, dimension, epsilon, curvature, probability
        As for `chaudhuri_theorem_3`.

    Returns
    -------
    tuple of float
        ``||f_0||^2 log(1/delta) / epsilon_g^2``, ``c ||f_0||^2 / (epsilon_g epsilon)`` and
        ``d log(d/delta) ||f_0|| / (epsilon_g epsilon)``.  The constant C is not given in the paper.

    Examples
    --------
    >>> [round(n, 1) for n in chaudhuri_theorem_4(2.0, 0.1, 1, 0.5, 0.25, math.exp(-1))]
    [400.0, 20.0, 40.0]
    """
    check(dimension=dimension, epsilon=epsilon, probability=probability, comparator_norm=comparator_norm, target=target)
    return (
        comparator_norm**2 * math.log(1 / probability) / target**2,
        curvature * comparator_norm**2 / (target * epsilon),
        dimension * math.log(dimension / probability) * comparator_norm / (target * epsilon),
    )


def pathak_raj_theorem_5_2(
    features: int, classes: int, epsilon: float, regularization: float, probability: float
) -> float:
    """Return the bound of theorem 5.2 on the regularized empirical excess risk of the published mechanism.

    Parameters
    ----------
    features : int
        d: a class has a (d + 1) x (d + 1) matrix.
    classes : int
        C.
    epsilon : float
        Of the density ``exp(-epsilon ||b||)`` of the noise.
    regularization : float
        lambda: the regularizer has the term ``lambda sum_c ||Phi_c||^2``.
    probability : float
        delta: the bound fails with at most this probability.

    Returns
    -------
    float
        ``8 (d + 1)^4 C log(d/delta)^2 / (epsilon^2 lambda)``, on ``J(Phi_p) - J(Phi*)``.

    Notes
    -----
    It does not fall with the number of records, because the paper adds its noise to the mean of the losses.

    Examples
    --------
    >>> round(pathak_raj_theorem_5_2(1, 2, 1.0, 0.5, math.exp(-1)), 6)  # 8 2^4 2 / 0.5
    512.0
    """
    check(features=features, classes=classes, epsilon=epsilon, regularization=regularization, probability=probability)
    return 8 * (features + 1) ** 4 * classes * math.log(features / probability) ** 2 / (epsilon**2 * regularization)


def pathak_raj_theorem_5_3(
    size: int, features: int, classes: int, epsilon: float, regularization: float, probability: float
) -> float:
    """Return the bound of theorem 5.3 on the true excess risk: theorem 5.2 plus ``16 (32 + log(1/delta)) / (lambda n)``.

    Parameters
    ----------
    size : int
        n.
    features, classes, epsilon, regularization, probability
        As for `pathak_raj_theorem_5_2`.

    Notes
    -----
    Its proof doubles the empirical excess and then puts theorem 5.2 in without the factor 2; and it uses two events that fail
    with probability delta each.

    Examples
    --------
    >>> round(pathak_raj_theorem_5_3(528, 1, 2, 1.0, 0.5, math.exp(-1)), 6)  # 512 + 16 33 / (0.5 528)
    514.0
    """
    check(size=size)
    empirical = pathak_raj_theorem_5_2(features, classes, epsilon, regularization, probability)
    return empirical + 16 * (32 + math.log(1 / probability)) / (regularization * size)


def lecture_rate(
    radius: float, gradient_bound: float, steps: int, dimension: int, size: int, epsilon: float, delta: float
) -> float:
    """Return the lecture's bound on the expected excess of the mean loss.

    Parameters
    ----------
    radius : float
        R of the ball of parameters.
    gradient_bound : float
        C: bound on the gradient of one record.
    steps : int
        T.
    dimension : int
        Of the parameters (the lecture's d + 1).
    size : int
        n.
    epsilon, delta : float
        Of the guarantee; the noise is `benchmarks.published.lecture.lecture_sigma`.

    Returns
    -------
    float
        ``R B / sqrt(T)`` with ``B^2 = C^2 (1 + T sigma_(epsilon, delta)^2 dimension / n^2)``.

    Examples
    --------
    >>> round(lecture_rate(2.0, 1.0, 400, 3, 10**9, 0.5, 1e-6), 3)  # without noise: 2 / 20
    0.1
    """
    check(radius=radius, gradient_bound=gradient_bound, steps=steps, dimension=dimension, size=size)
    each = lecture_sigma(epsilon, delta, gradient_bound, steps) / size
    return radius * math.hypot(gradient_bound, math.sqrt(dimension) * each) / math.sqrt(steps)


def lecture_requirements(
    radius: float, gradient_bound: float, target: float, dimension: int, epsilon: float, delta: float
) -> tuple[float, float]:
    """Return the steps T and the records n that the lecture asks for an expected excess of at most alpha.

    Parameters
    ----------
    target : float
        alpha.
    radius, gradient_bound, dimension, epsilon, delta
        As for `lecture_rate`.

    Returns
    -------
    steps : float
        ``4 R^2 C^2 / alpha^2``.
    size : float
        ``2 R C sigma_(epsilon, delta) sqrt(dimension) / alpha``.

    Examples
    --------
    >>> steps, size = lecture_requirements(2.0, 1.0, 0.1, 3, 0.5, 1e-6)
    >>> steps == 1600, lecture_rate(2.0, 1.0, 1600, 3, int(size), 0.5, 1e-6) <= 0.1
    (True, True)
    """
    check(radius=radius, gradient_bound=gradient_bound, target=target, dimension=dimension)
    sigma = lecture_sigma(epsilon, delta, 1.0, 1)
    reach = 2 * radius * gradient_bound / target
    return reach**2, reach * sigma * math.sqrt(dimension)


def check(**numbers: float) -> None:
    """Refuse what is not positive and finite, and probabilities that are none."""
    for name, value in numbers.items():
        if not (0 < value < (1 if name == "probability" else math.inf)):
            raise TemplateError(f"published risk: {name} is out of range: {value!r}.")
