"""The compiled engine on several devices, which JAX makes of one processor in a process of its own."""

import os
import subprocess
import sys

import pytest
import scipy.sparse as sp

import dpconvex as dp
from dpconvex.expressions.parameter_space import Space
from dpconvex.sums.batch_loss import BatchedLoss
from dpconvex.sums.devices import Placement

PROGRAM = """
import sys
import cvxpy as cp
import jax
import numpy as np

import dpconvex as dp
from dpconvex.expressions.parameter_space import Space
from dpconvex.sums.batch_loss import BatchedLoss

assert len(jax.devices()) == 2
rng = np.random.default_rng(0)
n, d = 5000, 5
x = rng.normal(size=(n, d))
x /= 1.01 * np.linalg.norm(x, axis=1)[:, None]
y = rng.permutation(np.repeat(range(3), (2560, 2432, 8)))  # few sizes of blocks: each is compiled for each device
stored = np.memmap(sys.argv[1], dtype=np.float32, mode="w+", shape=x.shape)
stored[:] = x
W = cp.Variable((d, 2), name="W")


def own(x, y):  # not a polynomial of the record inside; and one label does not read it
    return cp.logistic(cp.exp(x[0]) * W[0, 0] - x @ W[:, 1]) if y else cp.square(W[1, 1] - 1)


templates = {
    "softmax": dp.load("softmax_regression", features=d, classes=3, regularization=0.1),
    "own": dp.Template(dp.Record(x=dp.Ball(d), y=dp.Choice(range(3))), own, 0.1 * cp.sum_squares(W)),
}
BLOCK, LIMIT = 2**13, 4 * 2**13  # 128 records in a block, and few blocks on a device
put, most = jax.device_put, 0


def counted(value, device):
    global most
    found = put(value, device)
    on = {}
    for array in jax.live_arrays():
        if array.size >= 64 and array.shape[0] >= 64:  # of records
            on[array.device] = on.get(array.device, 0) + array.nbytes
    most = max([most, *on.values()])
    return found


jax.device_put = counted


def found(template, column):
    space = Space(template.variables)
    loss = BatchedLoss(template, space, template.record.validate({"x": column, "y": y}))
    value, slope = loss.value_and_gradient(np.random.default_rng(1).normal(size=space.dim))
    return loss, np.append(slope, value)


# Each function is compiled for each device, which takes most of the time.
on = {"softmax": (x, ((1, None), (2, LIMIT))), "own": (stored, ((1, None), (1, LIMIT)))}
for name, (column, places) in on.items():
    expected = found(templates[name], column)[1]
    bits = set()
    for count, memory in places:
        most, loss, sent = 0, None, None
        with dp.devices(count=count, memory=memory, block=BLOCK):
            loss, numbers = found(templates[name], column)
        assert loss.devices
        blocks, sent = loss.devices._blocks, loss.devices._sent
        assert {array.device for arrays in sent.values() for array in arrays} == set(jax.devices()[:count])
        streamed = len(blocks) - len(sent)
        assert (streamed == 0) == (memory is None), (streamed, len(blocks))
        assert memory is None or streamed < len(blocks) - count  # what fits stays
        assert memory is None or most <= memory, most
        assert np.allclose(numbers, expected, rtol=1e-12, atol=1e-11), (name, numbers, expected)
        bits.add(numbers.tobytes())
    assert len(bits) == 1, (name, len(bits))

plain = dp.solve(templates["softmax"], {"x": x, "y": y}, dp.Privacy(1.0), seed=0)
with dp.devices(memory=LIMIT, block=BLOCK):
    release = dp.solve(templates["softmax"], {"x": x, "y": y}, dp.Privacy(1.0), seed=0)
assert release.certificate == plain.certificate
assert all(np.allclose(release[k], plain[k], rtol=0, atol=4 * plain.certificate.tolerance) for k in plain.parameters)

# What its owner changes between two passes is checked when it is sent again.
with dp.devices(count=1, memory=LIMIT, block=BLOCK):
    loss, _ = found(templates["softmax"], stored)
stored[:] = 2.0
try:
    loss.value_and_gradient(np.zeros(loss.space.dim))[0]
except dp.DomainError:
    pass
else:
    raise AssertionError
"""


def test_several_devices_give_the_same_bits_and_the_numbers_of_numpy(tmp_path):
    pytest.importorskip("jax")
    more = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "records")]
    done = subprocess.run(command, env=os.environ | more, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_devices_that_cannot_be_had_are_refused(monkeypatch):
    jax = pytest.importorskip("jax")
    for options in ({"count": 0}, {"memory": 0.5}, {"block": None}):
        with pytest.raises(dp.TemplateError, match="must be a positive integer"), dp.devices(**options):
            pass
    with pytest.raises(dp.TemplateError, match="100 were asked for, and JAX finds"):
        Placement(count=100, asked=True).found()

    class Other:
        platform, device_kind = "tpu", "TPU v4"

    monkeypatch.setattr(jax, "devices", lambda: [Other()])
    with pytest.raises(dp.TemplateError, match="TPU v4 has no double precision"):
        Placement(asked=True).found()


def test_sparse_columns_stay_on_the_processor():
    template = dp.load("logistic_regression", features=2, regularization=0.1)
    batch = template.record.validate({"x": sp.csr_array([[1.0, 0.0], [0.0, 1.0]]), "y": [1, -1]})
    with dp.devices():
        assert BatchedLoss(template, Space(template.variables), batch).devices is None


@pytest.mark.parametrize("block", [2**17, 2**10])
def test_a_wrong_memory_limit_costs_nothing(block):
    pytest.importorskip("jax")
    budget, learner = dp.Budget(dp.Privacy(10.0)), dp.load("logistic_regression", features=60)
    data = {"x": [[0.5] + [0.0] * 59] * 20, "y": [1, -1] * 10}
    with dp.devices(memory=10**5, block=block), pytest.raises(dp.TemplateError, match="two of them do not fit"):
        dp.solve(learner, data, dp.Privacy(1.0), budget=budget)
    assert not budget.entries


# Sums over devices, of an exponential of inner products.
SUMS = """
import numpy as np
import dpconvex as dp
from dpconvex.expressions.parameter_space import Space
from dpconvex.sums.batch_loss import BatchedLoss

def numbers():
    template = dp.load("softmax_regression", features=5, classes=3)
    space, batch = Space(template.variables), template.record.sample(600, np.random.default_rng(0))
    with dp.devices():
        found = BatchedLoss(template, space, batch).value_and_gradient(np.random.default_rng(1).normal(size=space.dim))
    return np.append(*found).tobytes().hex()
"""
OPTIONS = {
    "jax_default_matmul_precision": "F32_F32_F32",
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
    "jax_transfer_guard": "disallow_explicit",
    "jax_debug_nans": True,
    "jax_debug_infs": True,
}


@pytest.mark.slow
def test_no_option_changes_a_bit_nor_does_the_environment():
    jax = pytest.importorskip("jax")
    names = {}
    exec(SUMS, names)
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
    command = [sys.executable, "-c", f"{SUMS}\nprint(numbers())"]
    found = subprocess.run(command, env=os.environ | chosen, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == plain
