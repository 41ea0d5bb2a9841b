"""Classes of few records: scores are no longer than noise leaves them, and constants are those of the labels."""

import cvxpy as cp
import numpy as np
import pytest
from scipy.special import expit

import dpconvex as dp

RECORDS, DRAWS = 300, 8


def relative_loss(rare: float, slope: float, epsilon: float) -> float:
    """Return the mean logistic loss of fits at the law of the records, next to that of the best constant."""
    w, b = cp.Variable(4, name="w"), cp.Variable(name="b")
    record = dp.Record(x=dp.Ball(4), y=dp.Choice([-1, 1]))
    template = dp.Template(record=record, loss=lambda x, y: cp.logistic(-y * (x @ w + b)))
    found = []
    for seed in range(DRAWS):
        draw = np.random.default_rng(seed)
        x = draw.normal(size=(RECORDS, 4))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        chance = expit(slope * x[:, 0] + np.log(rare / (1 - rare)))
        y = np.where(draw.random(RECORDS) < chance, 1, -1)
        release = dp.solve(template, {"x": x, "y": y}, dp.Privacy(epsilon, 1e-6), seed=seed)
        scores = x @ release["w"] + release["b"]
        found.append(np.mean(chance * np.logaddexp(0, -scores) + (1 - chance) * np.logaddexp(0, scores)))
    usual = np.mean(chance)
    return float(np.mean(found) / -(usual * np.log(usual) + (1 - usual) * np.log(1 - usual)))


@pytest.mark.filterwarnings("ignore::dpconvex.PrivacyWarning")
@pytest.mark.parametrize(
    ("rare", "slope", "epsilon", "most"),
    [(0.5, 0.0, 0.3, 1.12), (0.5, 2.0, 0.3, 1.08), (0.5, 0.0, 0.1, 1.2), (0.1, 2.0, 1.0, 1.12)],
)
def test_few_records_are_about_as_good_as_a_constant(rare: float, slope: float, epsilon: float, most: float) -> None:
    assert relative_loss(rare, slope, epsilon) < most
