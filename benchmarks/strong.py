"""Weak and strong effects, synthetic: ``python -m benchmarks strong [case ...] [--seeds 4]``.

Prints the excess log loss of the default over that of ``dp.NoisyGradientDescent(clip=1.0)``, on fresh records and over the least
loss there: geometric mean and worst of four sizes, which are public.  Guarantees are (epsilon, 1e-5), by adding or removing.
"""

from collections.abc import Sequence
from typing import Any

import cvxpy as cp
import numpy as np

import dpconvex as dp
from benchmarks import MOST, chosen, heading, heads, row, some_of
from dpconvex.expressions.parameter_space import Space
from dpconvex.sums.batch_loss import BatchedLoss

EPSILONS, SIZES, TESTED = (0.3, 1.0, 3.0), (300, 1000, 5000, 20000), 20000
HOW = (None, dp.NoisyGradientDescent(clip=1.0))
PATHS = np.array(list(np.ndindex(2, 2, 2)))
LINKED: dict[str, Any] = {"features": 8, "constant": 1.0}
W, B = cp.Variable(8, name="w"), cp.Variable(name="b")
END = dp.Template(
    dp.Record(x=dp.Ball(8), y=dp.Box([0.0, 0.0], [10.0, 1.0])),
    lambda x, y: y[0] * cp.exp(x @ W + B) - y[1] * (x @ W + B),
)
# Options, columns of weights, and their length where effects are strong; it is 1 where they are weak.
CASES: dict[str, tuple[Any, tuple[int, int], float]] = {
    "conditional_logit": ({"features": 4, "constant": 1.0}, (4, 1), 20.0),
    "bradley_terry": ({"features": 8}, (8, 1), 6.0),
    "softmax_regression": ({"features": 8, "classes": 4}, (8, 4), 40.0),
    "linear_chain_crf": ({"features": 4}, (4, 2), 30.0),
    "ordinal_regression": ({"features": 8}, (8, 1), 15.0),
    "discrete_hazards": ({"features": 8}, (8, 1), 4.0),
    "expectile_regression": ({**LINKED, "expectile": 0.8}, (8, 1), 4.0),
    "gamma_regression": (LINKED, (8, 1), 4.0),
    "tweedie_regression": (LINKED, (8, 1), 4.0),
    "negative_binomial_regression": ({"features": 8, "constant": 1.0}, (8, 1), 4.0),
    "exponential_survival": (None, (8, 1), 4.0),
}


def drawn(name: str, size: int, strong: bool, seed: int) -> dict[str, Any]:
    """Draw records whose scores are linear in features."""
    _, shape, length = CASES[name]
    r, w = np.random.default_rng(seed), np.random.default_rng(5).normal(size=shape)
    w *= (length if strong else 1.0) / np.linalg.norm(w)
    x = r.normal(size=(size, 12 if shape[0] == 4 else 8))
    if name == "bradley_terry":
        first, second, *_ = x.argsort(axis=1).T
        x = np.eye(8)[first] - np.eye(8)[second]
    else:
        x *= r.uniform(0.5, 1.0, (size, 1)) / np.linalg.norm(x, axis=1)[:, None]
    score = x.reshape(size, -1, shape[0]) @ w
    s = score[:, 0, 0]
    if name == "linear_chain_crf":  # Neighbours are alike
        every = score[:, np.arange(3), PATHS].sum(axis=2) + (PATHS[:, 1:] == PATHS[:, :-1]).sum(axis=1)
        best = (every + r.gumbel(size=(size, 8))).argmax(axis=1)
        return {"x": x, "y": np.array([" ".join(map(str, path)) for path in PATHS])[best]}
    if name == "discrete_hazards":
        died = (s + np.log(2 ** (1 / 6) - 1))[:, None] > r.logistic(size=(size, 6))
        return {"x": x, "y": np.where(died.cumsum(axis=1) == 0, -1.0, 1.0 * (died & (died.cumsum(axis=1) == 1)))}
    if name == "exponential_survival":
        death, end = r.exponential(np.exp(-s)), r.uniform(0, 5, size)
        return {"x": x, "y": np.stack([np.minimum(death, end), 1.0 * (death < end)], axis=1)}
    draws: dict[str, Any] = {
        "conditional_logit": lambda: (score[:, :, 0] + [0, 0.5, -0.5] + r.gumbel(size=(size, 3))).argmax(axis=1),
        "bradley_terry": lambda: 1.0 * (s > r.logistic(size=size)),
        "softmax_regression": lambda: (score[:, 0] + r.gumbel(size=(size, 4))).argmax(axis=1),
        "ordinal_regression": lambda: np.searchsorted([-2.0, 0.0, 2.0], s + r.logistic(size=size)),
        "expectile_regression": lambda: np.clip(0.25 * s + 0.15 * r.standard_t(4, size), -1, 1),
        "gamma_regression": lambda: np.clip(r.gamma(2, np.exp(s) / 2), 0, 10),
        "tweedie_regression": lambda: np.clip(r.gamma(2 * r.poisson(0.8 * np.exp(s)) + 1e-9, 0.4), 0, 10),
        "negative_binomial_regression": lambda: np.clip(r.poisson(r.gamma(1, np.exp(s))), 0, 10),
    }
    return {"x": x, "y": draws[name]()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print."""
    options = chosen(__doc__, arguments, {"cases": some_of(CASES), "--seeds": 4}, seeds=1, cases=["bradley_terry"])
    heading("case", "effects", *heads(EPSILONS))
    for name in options.cases or CASES:
        given = CASES[name][0]
        template = END if given is None else dp.load(name, **given)
        space, sizes = Space(template.variables), SIZES[: 1 if options.small else None]
        for strong in (False, True):
            test = drawn(name, MOST if options.small else TESTED, strong, 99)
            loss = BatchedLoss(template, space, template.record.validate(test))

            def lost(fit: Any, loss: BatchedLoss = loss, space: Space = space) -> float:
                return loss.value_and_gradient(space.pack(fit))[0] / loss.batch.size

            least = lost(dp.solve_without_privacy(template, test))
            ratios = np.empty((len(EPSILONS), len(sizes)))
            for place in np.ndindex(ratios.shape):
                privacy, size = dp.Privacy(EPSILONS[place[0]], 1e-5, "add-remove"), sizes[place[1]]
                found = []
                for s in range(options.seeds):
                    data = drawn(name, size, strong, s)
                    fits = (dp.solve(template, data, privacy, how, size=size, seed=s) for how in HOW)
                    found.append([lost(fit) for fit in fits])
                own, other = np.mean(found, axis=0) - least
                ratios[place] = own / other
            means = (f"{np.exp(np.log(own).mean()):.2f}, {own.max():.2f}" for own in ratios)
            row(name, "strong" if strong else "weak", *means)


if __name__ == "__main__":
    main()
