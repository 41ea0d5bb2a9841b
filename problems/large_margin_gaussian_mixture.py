"""Large-margin Gaussian mixture classifier: several ellipsoids per class, learnt by semidefinite programming."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    classes: int = 2,
    components: int = 2,
    regularization: float = 1e-6,
    trace: float = 1e-4,
    radius: float = 1.0,
    width: float = 0.5,
    competitors: str | None = None,
    labels: tuple | None = None,
) -> dp.Template:
    """Return the template (Sha & Saul 2006; Pathak & Raj 2012, equations 7 to 11, with noise that covers it).

    Component k of class c has a positive semidefinite matrix ``Phi_c_k`` on z = (x, radius) / (radius sqrt 2), so that
    ||z|| <= 1.  A record of class y that belongs to component m should be nearer to that component than to the soft minimum
    of every other class; the loss is written in margins, ``hinge(1 + log sum_k exp(z' Phi_y_m z - z' Phi_c_k z))``, so that
    it is seen to depend on differences of matrices only.  The papers add up one such hinge for each other class c; with soft
    competitors there is one hinge, of the logarithm of the sum over all c and k, and the gradient of a record is no longer
    than sqrt 2, whatever the number of classes and of components (docs/theory.md, competing classes).

    The component m of a training record is one of its fields, and is protected like the others.  It must come from the
    record and from public facts alone: from its group, its site, or the nearest of a few public centres.  A mixture model
    fitted to the training data is a release of its own: `dp.solve_mixture` makes one, and pays for it from the same guarantee.

    Parameters
    ----------
    features : int
        Number of features d; matrices have d + 1 rows.
    classes : int
        Number of classes C.
    components : int
        Number of Gaussians K for each class.
    regularization : float
        Lambda: ``lambda ||Phi||^2`` for every matrix.  The default is too small to matter, for any number of records: a mechanism
        adds the strong convexity that privacy needs beyond it.
    trace : float
        Weight of the trace of the inverse covariances.
    radius : float
        Public bound on the Euclidean norm of a record's features.
    width : float
        Half-width h of the quadratic piece of the Huber hinge.
    competitors : {"summed", "soft"}, optional
        How the other classes are put together: a hinge for each, added up, or one hinge of the soft minimum over all of
        their components.  By default "soft" for more than two classes; for two both are the same function.
    labels : tuple, optional
        Names of the classes; by default 0, ..., classes - 1.
    """
    names = tuple(range(classes)) if labels is None else tuple(labels)
    if len(names) != classes or classes < 2:
        raise dp.TemplateError(f"large_margin_gaussian_mixture needs {classes} labels, at least two, not {names!r}.")
    if components < 1:
        raise dp.TemplateError(f"large_margin_gaussian_mixture needs at least one component, not {components!r}.")
    if competitors not in (None, "summed", "soft"):
        raise dp.TemplateError(
            f"large_margin_gaussian_mixture: competitors must be 'summed' or 'soft', not {competitors!r}."
        )
    summed = classes == 2 or competitors == "summed"
    size = features + 1
    Phi = [
        [cp.Variable((size, size), PSD=True, name=f"Phi_{c}_{k}") for k in range(components)] for c in range(classes)
    ]

    def loss(x, y, m):
        z = cp.hstack([x / radius, 1]) / np.sqrt(2)
        own = names.index(y)
        margins = [cp.hstack([z @ (Phi[own][m] - P) @ z for P in Phi[c]]) for c in range(classes) if c != own]
        if summed:
            return sum(dp.huber_hinge(1 + cp.log_sum_exp(margin), width=width) for margin in margins)
        return dp.huber_hinge(1 + cp.log_sum_exp(cp.hstack(margins)), width=width)

    def decision(parameters, x):
        z = np.column_stack([x / radius, np.ones(len(x))]) / np.sqrt(2)
        scores = [
            np.logaddexp.reduce(
                [-np.einsum("ni,ij,nj->n", z, parameters[f"Phi_{c}_{k}"], z) for k in range(components)], axis=0
            )
            for c in range(classes)
        ]
        return np.column_stack(scores)

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Choice(names), m=dp.Choice(range(components))),
        loss=loss,
        regularizer=sum(
            trace * cp.trace(P[:features, :features]) + regularization * cp.sum_squares(P) for row in Phi for P in row
        ),
        decision=decision,
    )
