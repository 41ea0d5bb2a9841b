"""Models that the tests of evaluations judge, with their records."""

import numpy as np

import dpconvex as dp

LOGISTIC = dp.load("logistic_regression", features=2)
HUBER = dp.load("huber_regression", features=2)
FUNCTIONS = {"predictor": LOGISTIC.predict, "decision": LOGISTIC.decision}
FUNCTIONS |= {"probabilities": LOGISTIC.probabilities, "labels": (-1, 1)}
MODEL = dp.Release({"w": [1.0, 0.0]}, not_private_because="a test", predictor=LOGISTIC.predict)
LINE = dp.Release({"w": [0.5, 0.0]}, not_private_because="a test", predictor=HUBER.predict)
X = np.column_stack([np.linspace(-1, 1, 200), np.zeros(200)])
Y = np.where(X[:, 0] > 0.5, 1, -1)  # a quarter of the records is misjudged
DATA, ONE = {"x": X, "y": Y}, dp.Privacy(1.0)


def patient(adjacency="replace-one", most=2, keep=None, epsilon=1.0):
    return dp.Privacy(epsilon, adjacency=adjacency, unit="patient", most=most, keep=keep)


SCORED = dp.solve_without_privacy(LOGISTIC, {"x": X, "y": Y})
HAZARDS = dp.load("discrete_hazards", features=2, intervals=2)


def largest_loss(found, scale):
    """Return the largest log-ratio of the laws of noisy sums, discrete Laplace with a scale, over all pairs of exact sums."""
    return max(np.abs(one - other).sum() for one in found for other in found) / scale
