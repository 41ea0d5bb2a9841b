"""Large-margin Gaussian mixture classifier of Pathak and Raj (2012), as printed; its published noise is refused."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    classes: int = 2,
    components: int = 2,
    regularization: float = 0.31,
    trace: float = 0.01,
    radius: float = 1.0,
    width: float = 0.5,
    rescale: bool = False,
    labels: tuple | None = None,
) -> dp.Template:
    """Return the template (Pathak & Raj 2012, equations 7 to 11).

    A record's own component m is one of its fields.  The paper learns it with a generative mixture model of the private
    data: the mechanism is ``PublishedPerturbation.of(2012, fitted=("m",))``.  The soft minimum over a competitor's
    components stands apart from the record's own distance, as printed, and not as a function of their differences.

    To learn, use ``large_margin_gaussian_mixture``.

    Parameters
    ----------
    features : int
        Number of features d; matrices have d + 1 rows.
    classes : int
        Number of classes C.
    components : int
        Number of Gaussians K for each class.
    regularization : float
        The paper's lambda: weight of ``||Phi_cm||^2``, with modulus 2 lambda.
    trace : float
        The paper's gamma: weight of the trace of the inverse covariances.
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
        raise dp.TemplateError(f"pathak_raj_2012_mixture needs {classes} labels, at least two, not {names!r}.")
    if components < 1:
        raise dp.TemplateError(f"pathak_raj_2012_mixture needs at least one component, not {components!r}.")
    size = features + 1
    Phi = [
        [cp.Variable((size, size), PSD=True, name=f"Phi_{c}_{k}") for k in range(components)] for c in range(classes)
    ]

    def loss(x, y, m):
        z = cp.hstack([x / radius, 1]) / np.sqrt(2) if rescale else cp.hstack([x, 1])
        own = names.index(y)
        rivals = [cp.log_sum_exp(cp.hstack([-(z @ P @ z) for P in Phi[c]])) for c in range(classes) if c != own]
        return sum(dp.huber_hinge(1 + z @ Phi[own][m] @ z + rival, width=width) for rival in rivals)

    def predict(parameters, x):
        z = np.column_stack([x, np.full(len(x), radius if rescale else 1.0)])
        distance = [
            -np.logaddexp.reduce(
                [-np.einsum("ni,ij,nj->n", z, parameters[f"Phi_{c}_{k}"], z) for k in range(components)], axis=0
            )
            for c in range(classes)
        ]
        return np.array(names)[np.argmin(distance, axis=0)]

    every = [P for row in Phi for P in row]
    regularizer = sum(trace * cp.trace(P[:features, :features]) for P in every)
    if regularization:
        regularizer = regularizer + regularization * sum(cp.sum_squares(P) for P in every)
    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Choice(names), m=dp.Choice(range(components))),
        loss=loss,
        regularizer=regularizer,
        predict=predict,
    )
