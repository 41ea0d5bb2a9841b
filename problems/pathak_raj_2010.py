"""Large-margin Gaussian classifier of Pathak and Raj (2010), exactly as printed: its mechanism is refused."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    classes: int = 2,
    trace: float = 0.01,
    regularization: float = 0.0,
    radius: float = 1.0,
    width: float = 0.5,
    rescale: bool = False,
    labels: tuple | None = None,
) -> dp.Template:
    """Return the template (Pathak & Raj 2010, equations 5 and 6).

    The paper minimises the *sum* of the losses plus the regularizer, and adds one noise matrix for all classes: the
    mechanism is ``PublishedPerturbation.of(2010)``.  Equation 6 drops the margin 1 of equation 5 and has two signs that
    would make the loss jump and turn negative; what is taken here is its only continuous reading, the hinge of equation 5
    rounded off on ``|1 + z' (Phi_y - Phi_c) z| <= h``.

    To learn, use ``large_margin_gaussian``.

    Parameters
    ----------
    features : int
        Number of features d; matrices have d + 1 rows.
    classes : int
        Number of classes C.
    trace : float
        Weight of the trace of the inverse covariances Psi_c against the *mean* of the losses: the paper's lambda divided by
        the number of records.
    regularization : float
        Weight of ``||Phi_c||^2``.  The paper has none, so the objective is not strongly convex.
    radius : float
        Public bound on the Euclidean norm of a record's features.
    width : float
        Half-width h of the quadratic piece of the Huber hinge.
    rescale : bool
        Whether to scale z = (x, 1) into the unit ball.  The paper appends the 1 and does not.
    labels : tuple, optional
        Names of the classes; by default 0, ..., classes - 1.
    """
    names = tuple(range(classes)) if labels is None else tuple(labels)
    if len(names) != classes or classes < 2:
        raise dp.TemplateError(f"pathak_raj_2010 needs {classes} labels, at least two, not {names!r}.")
    size = features + 1
    Phi = [cp.Variable((size, size), PSD=True, name=f"Phi_{c}") for c in range(classes)]

    def loss(x, y):
        z = cp.hstack([x / radius, 1]) / np.sqrt(2) if rescale else cp.hstack([x, 1])
        own = names.index(y)
        return sum(dp.huber_hinge(1 + z @ (Phi[own] - Phi[c]) @ z, width=width) for c in range(classes) if c != own)

    def predict(parameters, x):
        z = np.column_stack([x, np.full(len(x), radius if rescale else 1.0)])
        distance = [np.einsum("ni,ij,nj->n", z, parameters[f"Phi_{c}"], z) for c in range(classes)]
        return np.array(names)[np.argmin(distance, axis=0)]

    regularizer = sum(trace * cp.trace(P[:features, :features]) for P in Phi)
    if regularization:
        regularizer = regularizer + regularization * sum(cp.sum_squares(P) for P in Phi)
    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Choice(names)),
        loss=loss,
        regularizer=regularizer,
        predict=predict,
    )
