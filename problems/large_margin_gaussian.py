"""Large-margin Gaussian classifier: one ellipsoid per class, learnt by semidefinite programming."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    classes: int = 2,
    regularization: float = 1e-6,
    trace: float = 1e-4,
    radius: float = 1.0,
    width: float = 0.5,
    competitors: str | None = None,
    labels: tuple | None = None,
) -> dp.Template:
    """Return the template (Sha & Saul 2006; Pathak & Raj 2012, equations 3, 9 and 11, with noise that covers it).

    Class c has a positive semidefinite matrix ``Phi_c`` on z = (x, radius) / (radius sqrt 2), so that ||z|| <= 1; a record
    belongs to the class with the smallest ``z' Phi_c z``.

    A record of class y should be nearer to it than to every other class c, by a margin: ``v_c = z' Phi_y z - z' Phi_c z``
    should be below -1.  The papers add up ``hinge(1 + v_c)`` over all c, so one record can push against C - 1 classes at
    once, and its gradient is as long as sqrt(C (C - 1)).  What a large margin is about is the *nearest* competitor:
    ``hinge(1 + log sum_c exp v_c)`` is convex and at least the largest of these hinges, and its gradient is no longer than
    sqrt 2, whatever C is (docs/theory.md, competing classes).  For two classes both are the same function.

    Parameters
    ----------
    features : int
        Number of features d; matrices have d + 1 rows.
    classes : int
        Number of classes C.
    regularization : float
        Lambda: ``lambda ||Phi_c||^2`` makes the objective strongly convex, with modulus 2 lambda.  The default is too small to
        matter, for any number of records: a mechanism adds the strong convexity that privacy needs beyond it.
    trace : float
        Weight of the trace of the inverse covariances Psi_c.
    radius : float
        Public bound on the Euclidean norm of a record's features.
    width : float
        Half-width h of the quadratic piece of the Huber hinge.
    competitors : {"summed", "soft"}, optional
        How a record's competing classes are put together: a hinge for each, added up, as in the papers, or one hinge of
        their soft maximum.  By default "soft" for more than two classes.
    labels : tuple, optional
        Names of the classes; by default 0, ..., classes - 1.
    """
    names = tuple(range(classes)) if labels is None else tuple(labels)
    if len(names) != classes or classes < 2:
        raise dp.TemplateError(f"large_margin_gaussian needs {classes} labels, at least two, not {names!r}.")
    if competitors not in (None, "summed", "soft"):
        raise dp.TemplateError(f"large_margin_gaussian: competitors must be 'summed' or 'soft', not {competitors!r}.")
    summed = classes == 2 or competitors == "summed"
    size = features + 1
    Phi = [cp.Variable((size, size), PSD=True, name=f"Phi_{c}") for c in range(classes)]

    def loss(x, y):
        z = cp.hstack([x / radius, 1]) / np.sqrt(2)
        own = names.index(y)
        margins = cp.hstack([z @ (Phi[own] - Phi[c]) @ z for c in range(classes) if c != own])
        if summed:
            return cp.sum(dp.huber_hinge(1 + margins, width=width))
        return dp.huber_hinge(1 + cp.log_sum_exp(margins), width=width)

    def decision(parameters, x):
        z = np.column_stack([x / radius, np.ones(len(x))]) / np.sqrt(2)
        return np.column_stack([-np.einsum("ni,ij,nj->n", z, parameters[f"Phi_{c}"], z) for c in range(classes)])

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Choice(names)),
        loss=loss,
        regularizer=sum(trace * cp.trace(P[:features, :features]) + regularization * cp.sum_squares(P) for P in Phi),
        decision=decision,
    )


def gaussian(matrix, *, radius: float = 1.0):
    """Recover a class's Gaussian from its matrix (Pathak & Raj 2012, equation 2), in the units of x.

    Parameters
    ----------
    matrix : ndarray, shape (d + 1, d + 1)
        Released ``Phi_c``.
    radius : float
        As given to `template`.

    Returns
    -------
    mean : ndarray, shape (d,)
        Centre mu_c of the ellipsoid.
    precision : ndarray, shape (d, d)
        Inverse covariance Psi_c.
    offset : float
        theta_c >= 0: the class's score is ``(x - mu)' Psi (x - mu) + theta``.
    """
    precision = matrix[:-1, :-1] / (2 * radius**2)
    linear = matrix[:-1, -1] / (2 * radius)
    mean = -np.linalg.pinv(precision, rcond=1e-12, hermitian=True) @ linear
    # A Schur complement of a positive semidefinite matrix; where the precision is nearly singular, rounding may go below 0.
    offset = max(0.0, float(matrix[-1, -1] / 2 - mean @ precision @ mean))
    return mean, precision, offset
