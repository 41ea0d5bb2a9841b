"""Conditional random field on short sequences: a label for each position, and neighbouring labels matter."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    classes: int = 2,
    length: int = 3,
    regularization: float = 1e-6,
    radius: float = 1.0,
    labels: tuple | None = None,
) -> dp.Template:
    """Return the template (Lafferty, McCallum & Pereira 2001, "Conditional random fields", section 3).

    A record is one sequence: x has the features of its positions one after another, y the labels of all positions, separated
    by spaces.  The score of a labelling adds ``<x_t, W_c>`` for the label c of each position t, and ``T[c, c']`` for each pair
    of neighbours.  All ``classes ** length`` labellings compete, and are written out: keep sequences short.

    Parameters
    ----------
    features : int
        Number of features of one position.
    classes : int
        Number of labels C.
    length : int
        Number of positions of a sequence.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 (||W||^2 + ||T||^2)``, with one column of W for each label.
    radius : float
        Public bound on the Euclidean norm of the features of a whole sequence.
    labels : tuple, optional
        Names of the labels, without spaces; by default 0, ..., classes - 1.

    Examples
    --------
    >>> learner = template(features=3, labels=("N", "V"))
    >>> [choice["y"] for choice in learner.record.combinations][:3]
    ['N N N', 'N N V', 'N V N']
    >>> dp.verify(learner, dp.Privacy(1.0), size=1000).noise_dimension
    6
    """
    names = tuple(str(label) for label in (range(classes) if labels is None else labels))
    if len(names) != classes or classes < 2 or length < 1 or any(len(name.split()) != 1 for name in names):
        raise dp.TemplateError(
            f"linear_chain_crf needs {classes} labels without spaces, at least two, not {names!r}, and a length of at "
            f"least 1, not {length!r}."
        )
    paths = list(np.ndindex(*[classes] * length))
    sequences = [" ".join(names[c] for c in path) for path in paths]
    here = np.array([np.eye(classes)[list(path)].ravel() for path in paths])  # which label each position has
    steps = np.zeros((len(paths), classes**2))  # how often each pair of labels follows each other
    for k, path in enumerate(paths):
        for t in range(length - 1):
            steps[k, path[t] * classes + path[t + 1]] += 1
    W = cp.Variable((features, classes), name="W")
    T = cp.Variable((classes, classes), name="T")

    def loss(x, y):
        own = sequences.index(y)
        scores = cp.vec(cp.reshape(x, (length, features), order="C") @ W, order="C")
        against = (here - here[own]) @ scores + (steps - steps[own]) @ cp.vec(T, order="C")
        return cp.log_sum_exp(against)

    def predict(parameters, x):
        """Return the best labelling of each row of x, whose columns are the features of all positions."""
        scores = (np.reshape(x, (len(x), length, features)) @ parameters["W"]).reshape(len(x), -1)
        return np.array(sequences)[np.argmax(scores @ here.T + steps @ parameters["T"].ravel(), axis=1)]

    return dp.Template(
        record=dp.Record(x=dp.Ball(length * features, radius=radius), y=dp.Choice(sequences)),
        loss=loss,
        regularizer=regularization / 2 * (cp.sum_squares(W) + cp.sum_squares(T)),
        predict=predict,
    )
