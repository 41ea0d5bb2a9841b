"""The inverse covariance matrix of a Gaussian with mean zero, by regularized maximum likelihood."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *, features: int, regularization: float = 0.01, lower: float = 0.1, upper: float = 10.0, radius: float = 1.0
) -> dp.Template:
    """Return the template (Dempster 1972, "Covariance selection"; Banerjee, El Ghaoui & d'Aspremont 2008, section 2).

    Minus twice the mean log-likelihood is ``x'Px - log det P``, but for a constant.  The determinant does not depend on the
    records: it belongs to the regularizer.  The eigenvalues of P have public bounds, which bound the condition too.

    Parameters
    ----------
    features : int
        Number of features.
    regularization : float
        Weight of ``||P||_F^2``.
    lower, upper : float
        Bounds on the eigenvalues of P.
    radius : float
        Public bound on the Euclidean norm of a record.

    Examples
    --------
    >>> certificate = dp.verify(template(features=3), dp.Privacy(1.0), size=1000)
    >>> round(certificate.gradient_bound, 6), round(certificate.sensitivity**2, 6)  # of xx'; of xx' - zz'
    (1.0, 2.0)
    """
    P = cp.Variable((features, features), symmetric=True, name="P")

    def loss(x):
        return x @ P @ x

    def predict(parameters, x):
        """Return minus the logarithm of the density of each row."""
        P = parameters["P"]
        constant = features * np.log(2 * np.pi) - np.linalg.slogdet(P)[1]
        return (np.einsum("ni,ij,nj->n", x, P, x) + constant) / 2

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius)),
        loss=loss,
        regularizer=regularization * cp.sum_squares(P) - cp.log_det(P),
        constraints=[P >> lower * np.eye(features), P << upper * np.eye(features)],
        predict=predict,
    )
