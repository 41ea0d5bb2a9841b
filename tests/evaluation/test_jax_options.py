"""Options of JAX that its user chose for a process, or in its environment, against sums that have to be in double precision."""

import os
import subprocess
import sys
from typing import Any

import pytest

jax = pytest.importorskip("jax")

# Sums over devices, of inner products and exponentials.
PROGRAM = """
import cvxpy as cp
import numpy as np
import dpconvex as dp
from dpconvex.core.parameter_space import Space
from dpconvex.evaluation.batch_loss import BatchedLoss

def numbers():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 5))
    x /= 1.01 * np.linalg.norm(x, axis=1)[:, None]
    w, W = cp.Variable(5, name="w"), cp.Variable((5, 3), name="W")
    record = dp.Record(x=dp.Ball(5))
    templates = {
        "device": dp.Template(record, lambda x: cp.logistic(cp.abs(x) @ w), 0.1 * cp.sum_squares(w)),
        "several forms": dp.Template(record, lambda x: cp.log_sum_exp(x @ W), 0.1 * cp.sum_squares(W)),
    }
    found = []
    for template in templates.values():
        space = Space(template.variables)
        loss = BatchedLoss(template, space, template.record.validate({"x": x}), "device")
        found += loss.value_and_gradient(np.random.default_rng(1).normal(size=space.dim))
    return b"".join(np.asarray(number).tobytes() for number in found).hex()
"""
OPTIONS: dict[str, Any] = {
    "jax_default_matmul_precision": "F32_F32_F32",
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
    "jax_transfer_guard": "disallow_explicit",
    "jax_debug_nans": True,
    "jax_debug_infs": True,
}


def test_no_option_changes_a_bit_nor_does_the_environment() -> None:
    names: dict[str, Any] = {}
    exec(PROGRAM, names)
    plain = names["numbers"]()
    for name, value in OPTIONS.items():  # by what was compiled without them, unless JAX compiles anew
        before = getattr(jax.config, name)
        jax.config.update(name, value)
        try:
            assert names["numbers"]() == plain, name
        finally:
            jax.config.update(name, before)
    chosen = {name.upper(): str(value) for name, value in OPTIONS.items()}
    chosen["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_enable_fast_math=true"
    command = [sys.executable, "-c", f"{PROGRAM}\nprint(numbers())"]
    found = subprocess.run(command, env=os.environ | chosen, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == plain
