"""Affine expressions as polynomials, against CVXPY's own value of the same expression at random records and parameters."""

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from derivatives import form_of
from hypothesis import given, settings, strategies as st

import dpconvex as dp
from dpconvex.expressions.evaluate import evaluate
from dpconvex.expressions.expansion import Expander, RecordVariables
from dpconvex.expressions.from_cvxpy import Reader
from dpconvex.expressions.parameter_space import Space
from dpconvex.sensitivity.sensitive_subspace import basis_of, distinct_columns

SEEDS = st.integers(0, 2**32 - 1)
FIELDS = {"x": dp.Ball(3, 2.0), "M": dp.Box(-np.ones((2, 3)), 2 * np.ones((2, 3))), "s": dp.Box(0.5, 2.0)}
RECORD = dp.Record(**FIELDS, t=dp.Box([0.5, -3.0], [1.5, -0.5]), one=dp.Ball(1, 1.0, norm=1))
x, M, s, t, one = (RECORD.parameters[name] for name in ("x", "M", "s", "t", "one"))
w, v, W = cp.Variable(3, name="w"), cp.Variable(name="v"), cp.Variable((3, 2), name="W")
R, P = cp.Variable((1, 4), name="R"), cp.Variable((2, 2), PSD=True, name="P")
S = cp.Variable((3, 3), symmetric=True, name="S")
READER = Reader(RECORD.parameters.values())
READER.declare([w, v, cp.sum(W), cp.sum(R), cp.trace(S), cp.trace(P)])
SPACE = Space(list(READER.variables.values()))
A = np.random.default_rng(1).normal(size=(3, 3))
z = cp.hstack([x, 1]) / 2**0.5

EXPRESSIONS = {
    "inner product": x @ w,
    "special index": w[[2, 0, 2]] + x[np.array([True, True, True])],
    "reshape by columns": cp.reshape(W, (2, 3), order="F") + M,
    "reshape by rows": cp.reshape(W, (2, 3), order="C") - M,
    "hstack of vectors": cp.hstack([w, x, v, 1.5]),
    "vstack": cp.vstack([W, M.T, cp.reshape(w, (1, 3), order="F") @ M.T]),
    "bmat": cp.bmat([[P, M], [M.T @ P, S]]),
    "trace": cp.trace(S @ cp.outer(x, x)),
    "shifted diagonal matrix": cp.diag(w, 1)[:3, 1:],
    "diagonal": cp.diag(S) + cp.diag(cp.outer(x, x)),
    "upper triangle": cp.reshape(cp.upper_tri(S), (3,), order="F") + x,
    "kron, constant first": cp.kron(A[:2, :2], W)[0, :],
    "multiply broadcasts": cp.multiply(R, np.ones((3, 4))) + cp.multiply(cp.reshape(x, (3, 1), order="F"), R),
    "matmul, matrices": M @ W @ (M @ M.T),
    "divide by a vector": w / np.array([1.0, 2.0, -4.0]),
    "divide by a field": w / s,
    "divide by a positive function": W / (1 + cp.norm(x, 2)),
    "cumulative sum": cp.cumsum(W, axis=0),
    "difference": cp.diff(w) + t,
    "convolution": cp.convolve(np.array([1.0, -2.0]), w),
    "quadratic form with a homogeneous 1": z[1:3] @ P @ z[2:4],
    "kron and convolution of a record": cp.kron(M, W)[0] @ np.ones(6) + cp.sum(cp.convolve(x, w)),
    "quad_form atom with a variable matrix": cp.quad_form(x, S),
    "powers": w @ (x**2) + v * s**3 + cp.power(s, 4) * w[0],
    "sum of squares of a record": v * cp.sum_squares(x) + cp.sum_squares(M),
    "norm of a record": v * cp.norm(x, 2) + w[0] * cp.norm(x, 1) + w[1] * cp.norm(x, "inf"),
    "exponential features": cp.exp(A @ x / 4) @ w,
    "logarithm and softplus": v * cp.log(s) + cp.logistic(x) @ w,
    "maximum and minimum": cp.maximum(x, 0) @ w + v * cp.minimum(s, 1, cp.abs(x[0])),
    "soft maximum and norms of lines": v * cp.log_sum_exp(x) + w @ cp.norm(M, 2, axis=0),
    "negation and transposition": -W.T @ (-x) - P @ t,
    "real part": cp.real(w) + cp.conj(x),
}


def read(expression, reader=READER):
    return reader.expression(expression, "the loss")


def scalars_of(expander, fields):
    """Return the record's scalars, and those of functions of the record that are not polynomials."""
    functions = [evaluate(function, fields) for function in expander.functions_of_record]
    return np.concatenate([np.reshape(a, -1, order="F") for a in [*(fields[n] for n in RECORD.parameters), *functions]])


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", EXPRESSIONS)
@settings(max_examples=10)
@given(seed=SEEDS)
def test_expansion_has_the_value_of_the_expression(name, seed):
    rng, expression = np.random.default_rng(seed), EXPRESSIONS[name]
    fields = {field: values[0] for field, values in RECORD.sample(1, rng).fields.items()}
    theta = rng.normal(size=SPACE.dim)
    for field, parameter in RECORD.parameters.items():
        parameter.value = fields[field]
    for variable in (w, v, W, R, S, P):
        variable.save_value(SPACE.unpack(theta)[variable.name()])
    expander = Expander(SPACE, RecordVariables(RECORD.continuous))
    polynomial = expander.expand(read(expression))
    assert polynomial.shape == expression.shape
    found = polynomial.evaluate(scalars_of(expander, fields), theta)
    assert found == pytest.approx(np.asarray(expression.value, dtype=float), rel=1e-9, abs=1e-9)


def test_functions_of_the_record_that_print_alike_are_told_apart():
    """CVXPY prints eight digits, and only the corners of large arrays."""
    table = np.random.default_rng(2).normal(size=(40, 3))
    other = table.copy()
    other[20, 1] += 1.0
    expander = Expander(SPACE, RecordVariables(RECORD.continuous))
    assert len(expander.expand(read(v * cp.sum(cp.exp(table @ x) - cp.exp(other @ x)))).entry) > 0
    functions = cp.exp(table.copy() @ x), cp.exp(x[[0, 1]]), cp.exp(x[[0, 2]]), cp.norm(x, 1.5)
    for count, function in enumerate(functions, start=2):
        expander.expand(read(function))
        assert len(expander.functions_of_record) == count


def test_labels_that_differ_in_their_variables_have_the_terms_that_they_have_alone():
    """An expansion that they share changes none, whatever repeats, changes places, or is symmetric in one of them."""
    plain, even = ([cp.Variable((3, 3), PSD=psd) for _ in range(3)] for psd in (False, True))
    reader = Reader(RECORD.parameters.values())
    forms = [
        x @ (a - b) @ x + s * cp.trace(c)
        for own in (plain, even)
        for a, b, c in [own, own[::-1], (own[0], own[0], own[1]), (own[1], own[2], own[2]), (own[2], own[0], own[1])]
    ]
    forms += [x @ (plain[0] - even[0]) @ x, x @ (plain[1] - even[2]) @ x, x @ (even[1] - plain[2]) @ x]
    reader.declare(forms)
    space, bases = Space(list(reader.variables.values())), RecordVariables(RECORD.continuous)
    together, pairs = Expander(space, bases), []
    for form in (read(form, reader) for form in forms):
        for of in (lambda expander: expander, lambda expander: expander.sizes):
            pairs.append((of(together).expand(form), of(Expander(space, bases)).expand(form)))
    tables = [[np.column_stack([p.entry, p.coordinate, p.monomial, p.coefficient, p.error]) for p in t] for t in pairs]
    for one, other in tables:
        assert np.array_equal(one[np.lexsort(one.T[::-1])], other[np.lexsort(other.T[::-1])])


SHARP = [
    (cp.exp(s), np.exp(0.5), np.exp(2.0)),
    (cp.abs(s - 1), 0.0, 1.0),
    (cp.maximum(s, 1), 1.0, 2.0),
    (cp.minimum(s, 1), 0.5, 1.0),
    (cp.inv_pos(s), 0.5, 2.0),
    (cp.norm(x, 2), 0.0, 2.0),
    (cp.maximum((x[0] + x[1]) ** 2 / 8, 0.5), 0.5, 1.0),  # its cross term stands for two entries of a tensor square
    (cp.norm(x, 1), 0.0, 2.0 * np.sqrt(3)),
    (s * x[0] ** 2, 0.0, 8.0),  # squares keep the sign of what they multiply
    (-(s**3) * x[0] ** 2, -32.0, 0.0),
    (cp.norm(one, 2), 0.0, 1.0),
    (cp.norm(t, 2), np.sqrt(0.5), np.sqrt(11.25)),
]


@pytest.mark.parametrize(("expression", "low", "high"), SHARP)
def test_sharp_where_the_function_allows(expression, low, high):
    below, above = Expander(Space([]), RecordVariables(RECORD.continuous)).bounds(read(expression))
    assert (*below, *above) == pytest.approx((low, high), abs=1e-12)


# The sensitive subspace: orthonormal, large enough for every record, and no larger where the answer is known.


def test_of_differences_a_forest_is_looked_at():
    """Others are sums of these, in exact numbers; a difference by another factor is none."""
    less, more = np.triu_indices(9, 1)
    other = np.where(less == 6, 1 + 2.0**-52, 1.0)
    for factor, kept in ((np.ones(36), 8), (other, 10)):
        columns = np.zeros((12, 36))
        columns[less, np.arange(36)], columns[more, np.arange(36)] = 0.1, -0.1 * factor
        found = distinct_columns(sp.csc_array(columns))
        assert (found.shape, basis_of(found).shape[1]) == ((12, kept), 8)


@pytest.mark.parametrize("size", [1e-8, 1e-17, 1e-30, 1e-300])
def test_a_feature_is_never_dropped_because_it_is_small(size):
    """Beside one of size 1, whether by its coefficient or by its bounds, alone or mixed with it."""
    a, b, c = cp.Variable(3, name="a")
    unit, small = dp.Ball(2), dp.Box([-1.0, -size], [1.0, size])
    for domain, least, leaves in [
        (unit, 2, lambda x: (a * x[0] + size * b * x[0], a * x[0])),
        (unit, 2, lambda x: ((a + size * b) * x[0], (a - size * b) * x[0])),
        (unit, 3, lambda x: (a * x[0] + size * b * x[0], a * x[0] + size * c * x[1])),
        (unit, 2, lambda x: ((a + size * b + size * c) * x[0], (a + size * b) * x[1])),
        (unit, 2, lambda x: ((a + 0.1 * b) * x[0], (a + (0.1 + 1e-10) * b) * x[0])),
        (small, 3, lambda x: (a * x[0] + b * x[1], a * x[0] + size * c * x[1])),
    ]:
        assert form_of(lambda x: sum(map(cp.logistic, leaves(x))), x=domain).noise_dimension >= least  # noqa: B023
