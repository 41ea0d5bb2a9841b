"""The main paths in a process that cannot import JAX."""

import subprocess
import sys

PROGRAM = """
import sys


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("jax", "jaxlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Absent())

import cvxpy as cp
import numpy as np

import dpconvex as dp

rng = np.random.default_rng(0)
x = rng.normal(size=(60, 2))
x /= np.maximum(1.0, np.linalg.norm(x, axis=1))[:, None] * 1.01
y = rng.integers(0, 3, 60)
privacy = dp.Privacy(2.0)

# A loss of one margin; of several entries; of a declared function; with leaves that are no polynomials.
w = cp.Variable(2, name="w")
mine = dp.Atom("mine", lambda m: np.logaddexp(m, 0.0), slope=(0.0, 1.0), curvature=0.25, lower=0.0)
regularizer = 0.1 * cp.sum_squares(w)
templates = {
    "margin": dp.load("logistic_regression", features=2, regularization=0.1),
    "softmax": dp.load("softmax_regression", features=2, classes=3, regularization=0.1),
    "declared": dp.Template(dp.Record(x=dp.Ball(2)), lambda x: mine(x @ w), regularizer),
    "whole": dp.Template(dp.Record(x=dp.Ball(2)), lambda x: cp.logistic(cp.norm(x, 2) * w[0] + x @ w), regularizer),
}
for name, template in templates.items():
    labels = {"margin": np.where(y > 0, 1, -1), "softmax": y}.get(name)
    data = {"x": x} if labels is None else {"x": x, "y": labels}
    dp.solve(template, data, privacy, seed=0)
    dp.solve_without_privacy(template, data)
assert "jax" not in sys.modules
certificate = dp.verify(templates["margin"], privacy, size=60)
assert dp.falsify(templates["margin"], certificate, starts=4, steps=4)["gradient_bound"].ratio > 0.9
try:
    with dp.devices():
        dp.solve(templates["margin"], {"x": x, "y": np.where(y > 0, 1, -1)}, privacy)
except dp.TemplateError as error:
    assert "dpconvex[fast]" in str(error)
else:
    raise AssertionError
"""


def test_everything_but_devices_runs_without_jax():
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr
