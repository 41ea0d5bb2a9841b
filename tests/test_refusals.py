"""What the checker must refuse: each defect with its own reason, the subexpression at fault, and what to do about it."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from benchmarks.published.noise_coverage import check_coverage
from benchmarks.published.pathak_raj import PublishedPerturbation
from dpconvex.release.verify import analyse

PROMISE = dp.Privacy(epsilon=1.0)
LABELLED = dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1]))
UNIT = dp.Record(x=dp.Box(0.0, 1.0))
SIGNED = dp.Record(x=dp.Box(-1.0, 1.0))
FEATURES = dp.Record(x=dp.Ball(3))
MATRIX = dp.ObjectivePerturbation("matrix")

Loss = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """A template (or more) that must be refused.

    `reason`, `where` and `remedy` are parts of the three lines of the message.
    """

    make: Callable[[], Any]
    reason: str
    where: str
    remedy: str
    rule_missing: bool = False


def ridge(w: cp.Variable) -> cp.Expression:
    return 0.01 * cp.sum_squares(w)


def logistic(w: cp.Variable, x: Any, y: Any = 1) -> cp.Expression:
    return cp.logistic(-y * (x @ w))


def verified(
    loss: Loss,
    record: dp.Record = LABELLED,
    regularizer: Callable[[cp.Variable], Any] = ridge,
    constraints: Callable[[cp.Variable], list[Any]] = lambda w: [],
    mechanism: Any = None,
    delta: float = 0.0,
    **attributes: Any,
) -> Callable[[], Any]:
    """Return a call of `verify` on a template with one variable w of three entries; `loss` takes w and the fields."""

    def run() -> Any:
        w = cp.Variable(3, name="w", **attributes)
        chosen = dp.ObjectivePerturbation() if mechanism is None else mechanism
        # A plain function of the fields, so that the template can call it by their names.
        template = dp.Template(record, lambda **fields: loss(w, **fields), regularizer(w), constraints(w))
        return dp.verify(template, dp.Privacy(1.0, delta), size=100, mechanism=chosen)

    return run


def of_a_matrix(loss: Loss, regularizer: Loss = cp.sum_squares, **attributes: Any) -> Callable[[], Any]:
    """Return a call of `verify` on a template with one 2 x 2 variable P and records in a ball of two dimensions."""

    def run() -> Any:
        P = cp.Variable((2, 2), name="P", **attributes)
        template = dp.Template(dp.Record(x=dp.Ball(2)), lambda x: loss(P, x), regularizer(P))
        return dp.verify(template, PROMISE, size=100, mechanism=dp.ObjectivePerturbation())

    return run


def intercept_without_regularizer() -> None:
    w, b = cp.Variable(3, name="w"), cp.Variable(name="b")
    dp.verify(dp.Template(FEATURES, lambda x: cp.logistic(x @ w + b), ridge(w)), PROMISE, size=100)


def regularizer_of_the_record() -> None:
    w = cp.Variable(3, name="w")
    x = FEATURES.parameters["x"]
    dp.verify(dp.Template(FEATURES, lambda x: cp.logistic(x @ w), ridge(w) + x @ w), PROMISE, size=100)


def constraint_of_the_record() -> None:
    w = cp.Variable(3, name="w")
    x = FEATURES.parameters["x"]
    dp.verify(dp.Template(FEATURES, lambda x: cp.logistic(x @ w), ridge(w), [x @ w <= 1]), PROMISE, size=100)


def noise_on_one_class() -> None:
    form = analyse(dp.load("large_margin_gaussian", features=1)).form
    first = np.eye(form.space.dim)[:, form.space.blocks["Phi_0"].slice]
    check_coverage(form, first, "noise on the first class alone")


def published(year: int, **options: Any) -> None:
    template = dp.load(f"pathak_raj_{year}", features=1, **options)
    dp.verify(template, PROMISE, size=100, mechanism=PublishedPerturbation.of(year))


def private_count() -> None:
    template = dp.load("logistic_regression", features=3)
    dp.solve(template, {"x": np.zeros((5, 3)), "y": np.ones(5)}, dp.Privacy(1.0, adjacency="add-remove"))


def curvature_beyond_epsilon() -> None:
    template = dp.load("logistic_regression", features=3, regularization=1e-4)
    dp.verify(template, dp.Privacy(0.1), size=10, mechanism=dp.ObjectivePerturbation(added=0.0))


def declared(function: Callable[[Any], Any], slope: tuple[float, float], curvature: float) -> Callable[[], Any]:
    atom = dp.Atom("mine", function, slope=slope, curvature=curvature)
    return verified(lambda w, x, y: atom(x @ w))


def softplus(m: Any) -> Any:
    from jax import numpy as jnp

    return jnp.logaddexp(m, 0.0)


def sine(m: Any) -> Any:
    from jax import numpy as jnp

    return jnp.sin(m)


REFUSED: dict[str, Case] = {
    # The record and its fields
    "a record in an unbounded ball": Case(
        lambda: dp.Record(x=dp.Ball(3, radius=np.inf)),
        "a record is unbounded",
        "Ball(dim=3, radius=inf",
        "declare a finite public radius",
    ),
    "the root of a field that can be negative": Case(
        verified(lambda w, x: cp.logistic(w[0] * cp.sqrt(x)), SIGNED),
        "the power 0.5 needs an argument bounded away from negative numbers, and it goes down to -1",
        "power(x, 0.5)",
        "bound the parameters or the declared domain",
    ),
    "a curved term over a field that can be zero": Case(
        verified(lambda w, x: cp.logistic(w[0]) / x, UNIT),
        "the divisor can reach zero",
        "logistic(w[0]) / x",
        "bound the divisor away from zero by its declared domain",
    ),
    "division by the number zero": Case(
        verified(lambda w, x, y: cp.logistic(x @ w / 0)),
        "an expression is divided by zero",
        "x @ w / 0",
        "divide by a number that is not 0",
    ),
    "a field of another record": Case(
        verified(lambda w, x, y: cp.logistic(x @ w + UNIT.parameters["x"] + cp.Parameter(name="age"))),
        "which is not a field of this record",
        "logistic(x @ w + x + age)",
        "declare it as a field of the record",
    ),
    # Kinks, under objective perturbation
    "the hinge": Case(
        verified(lambda w, x, y: cp.pos(1 - y * (x @ w))),
        "a hinge (the maximum of a term and a constant) is not differentiable at its corner",
        "pos(1 - ",
        "dp.huber_hinge(m, width)",
    ),
    "a maximum of two terms": Case(
        verified(lambda w, x, y: cp.maximum(x @ w, 1 - x @ w)),
        "maximum is not differentiable where two of its terms tie",
        "maximum(x @ w, 1 - x @ w)",
        "cp.log_sum_exp of the same terms",
    ),
    "the largest entry": Case(
        verified(lambda w, x, y: cp.max(cp.multiply(w, x))),
        "max is not differentiable where two of its terms tie",
        "max(w * x)",
        "cp.log_sum_exp of the same terms",
    ),
    "the absolute value": Case(
        verified(lambda w, x, y: cp.abs(x @ w - y)),
        "the absolute value is not differentiable at 0",
        "abs(x @ w",
        "cp.huber(m, M) rounds the corner off",
    ),
    "the 1-norm": Case(
        verified(lambda w, x, y: cp.norm1(w - x)),
        "the 1-norm is not differentiable where an entry is 0",
        "norm(w - x, 1)",
        "cp.sum(cp.huber(m, M))",
    ),
    "the Euclidean norm": Case(
        verified(lambda w, x, y: cp.norm(w - x, 2)),
        "the Euclidean norm is not differentiable where its argument vanishes",
        "norm(w - x)",
        "cp.norm(cp.hstack([m, 0.1])) rounds the corner off",
    ),
    "another p-norm": Case(
        verified(lambda w, x, y: cp.pnorm(w - x, 1.5)),
        "no curvature bound is known for the p-norm with p = 1.5",
        "norm(w - x, 1.5)",
        "cp.norm(cp.hstack([m, 0.1]))",
    ),
    "the infinity norm": Case(
        verified(lambda w, x, y: cp.norm_inf(w - x)),
        "the infinity norm is not differentiable at 0, nor where two entries tie in size",
        "norm(w - x, inf)",
        "cp.log_sum_exp(cp.hstack([m, -m]))",
    ),
    "the largest eigenvalue": Case(
        of_a_matrix(lambda P, x: cp.lambda_max(P - cp.outer(x, x)), symmetric=True),
        "the largest eigenvalue or singular value is not differentiable where two of them tie",
        "lambda_max(P - ",
        "use cp.sum_squares of the matrix on bounded parameters",
    ),
    "the nuclear norm": Case(
        of_a_matrix(lambda P, x: cp.norm(P @ cp.diag(x), "nuc")),
        "the nuclear norm is not differentiable where a singular value is 0",
        "norm_nuc(P @ ",
        "use cp.sum_squares of the matrix on bounded parameters",
    ),
    # Functions that are Lipschitz only on bounded sets, with parameters that are not bounded
    "a square of unbounded parameters": Case(
        verified(lambda w, x, y: cp.square(y - x @ w)),
        "the power 2 is Lipschitz only on bounded sets, and its argument is unbounded",
        "square(",
        "bound the parameters (a ball, a box)",
    ),
    "the exponential of unbounded parameters": Case(
        verified(lambda w, x, y: cp.exp(-y * (x @ w))),
        "exp is Lipschitz only where its argument is bounded above",
        "exp(",
        "bound the parameters (a ball, a box)",
    ),
    "an exponential that overflows": Case(
        verified(lambda w, x, y: cp.exp(x @ w), bounds=[-1000, 1000]),
        "exp of an argument as large as 1732 overflows",
        "exp(x @ w)",
        "bound the parameters (a ball, a box)",
    ),
    "the power 1.5 at zero": Case(
        verified(lambda w, x, y: cp.power(cp.pos(x @ w), 1.5), bounds=[-1, 1]),
        "the power 1.5 needs an argument bounded away from zero, and it goes down to 0",
        "power(pos(x @ w), 1.5)",
        "shift the argument, or bound the parameters",
    ),
    "a divisor that reaches zero": Case(
        verified(lambda w, x, y: cp.quad_over_lin(x[0] * w[0], w[1]), bounds=[0, 1]),
        "quad_over_lin is Lipschitz only where its divisor keeps away from zero, and it goes down to 0",
        "quad_over_lin(x[0] * w[0], w[1])",
        "shift the divisor",
    ),
    "a logarithm at zero": Case(
        verified(lambda w, x, y: -cp.log(x @ w + 1), bounds=[-1, 1]),
        "log is Lipschitz only where its argument keeps away from zero, and it goes down to -0.7321",
        "log(x @ w + 1)",
        "shift the argument",
    ),
    # Convexity
    "a concave term": Case(
        verified(lambda w, x, y: logistic(w, x, y) - cp.logistic(x @ w)),
        "the loss for {'y': -1} is not convex: it has a concave term",
        "-logistic(x @ w)",
        "drop the term, change its sign",
    ),
    "a product of variables": Case(
        verified(lambda w, x, y: w[0] * w[1] * x[0]),
        "is not convex: it multiplies variables with each other",
        "w[0] * w[1]",
        "write one of the factors as a constant or a field",
    ),
    "a weight that can change sign": Case(
        verified(lambda w, x: x * cp.logistic(w[0]), SIGNED),
        "the loss is not convex: a factor that can change sign multiplies a curved term",
        "x * logistic(w[0])",
        "declare the factor's field non-negative",
    ),
    "an indefinite quadratic form": Case(
        verified(lambda w, x, y: cp.quad_form(w - x, np.diag([1.0, 1.0, -1.0])), bounds=[-1, 1]),
        "is not convex: the matrix of a quadratic form has a negative eigenvalue",
        "quad_form(w - x, [[1.00",
        "use a positive semidefinite matrix",
    ),
    "an indefinite quadratic form that is said to be convex": Case(
        verified(lambda w, x, y: cp.quad_form(w, np.diag([1.0, 1.0, -1.0]), assume_PSD=True) + x @ w, bounds=[-1, 1]),
        "the matrix of a quadratic form is not positive semidefinite",
        "quad_form(w, psd_wrap(",
        "use a convex quadratic",
    ),
    "a composition that CVXPY cannot prove convex": Case(
        verified(lambda w, x, y: cp.sqrt(cp.pos(x @ w))),
        "is not convex: CVXPY's rules do not prove it",
        "power(pos(x @ w), 0.5)",
        "a convex non-decreasing function of a convex one",
    ),
    # Atoms
    "an atom without a rule": Case(
        verified(lambda w, x, y: cp.dotsort(cp.multiply(w, x), [1.0, 0.5])),
        "there is no rule for the atom dotsort",
        "dotsort(w * x, [1. 0.5])",
        "write it with atoms that have rules (see docs/rules.md)",
        rule_missing=True,
    ),
    "a declared atom with too small a slope": Case(
        declared(softplus, (0.0, 0.9), 0.25),
        "the declared atom 'mine' has slopes in [0, 1], outside the declared [0.0, 0.9]",
        "mine(x @ w)",
        "declare slopes that hold on the whole real line",
    ),
    "a declared atom with too small a curvature": Case(
        declared(softplus, (0.0, 1.0), 0.2),
        "the declared atom 'mine' has curvature 0.25, above the declared 0.2",
        "mine(x @ w)",
        "declare a curvature that holds on the whole real line, or smooth the kink",
    ),
    "a declared atom that is not convex": Case(
        declared(sine, (-1.0, 1.0), 1.0),
        "the declared atom 'mine' is not convex: its derivative decreases somewhere",
        "mine(x @ w)",
        "declare a convex function",
    ),
    # What a loss must be
    "a loss without variables": Case(
        verified(lambda w, x, y: cp.sum_squares(x)),
        "the loss mentions no variable",
        "sum_squares(x)",
        "write the loss in the CVXPY variables that the learner estimates",
    ),
    "a loss whose variables are multiplied by zero": Case(
        verified(lambda w, x, y: cp.logistic(0 * (x @ w))),
        "the loss does not change with any variable: what multiplies them is zero",
        "logistic(0 * (x @ w))",
        "write the loss in the CVXPY variables that the learner estimates",
    ),
    "a loss that is the same for all records": Case(
        verified(lambda w, x, y: cp.sum(w)),
        "the loss is the same for all records",
        "sum(w)",
        "write the loss of one record",
    ),
    "a number that is not finite": Case(
        verified(lambda w, x, y: cp.logistic(np.nan * (x @ w))),
        "the loss for {'y': -1} contains a number that is not finite",
        "nan",
        "use finite constants",
    ),
    # The regularizer
    "no regularizer": Case(
        verified(logistic, FEATURES, lambda w: 0.0),
        "the regularizer is not strongly convex in w (its modulus is 0: there is none)",
        "0",
        "add 1e-6 * cp.sum_squares(w)",
    ),
    "a trace alone": Case(
        of_a_matrix(lambda P, x: dp.huber_hinge(1 - x @ P @ x, 0.5), lambda P: 0.1 * cp.trace(P), PSD=True),
        "the regularizer is not strongly convex in P (its modulus is 0: it is affine)",
        "0.1 * sum(diag(P))",
        "add 1e-6 * cp.sum_squares(P), or another quadratic; traces and norms do not count",
    ),
    "a norm alone": Case(
        verified(logistic, FEATURES, lambda w: 0.1 * cp.norm1(w)),
        "the regularizer is not strongly convex in w (its modulus is 0: its terms are affine, norms, or quadratic in some",
        "0.1 * norm(w, 1)",
        "add 1e-6 * cp.sum_squares(w)",
    ),
    "one variable without a quadratic": Case(
        intercept_without_regularizer,
        "the regularizer is not strongly convex in b (its modulus is 0: it has no quadratic term there)",
        "0.01 * sum_squares(w)",
        "add 1e-6 * cp.sum_squares(b)",
    ),
    "a regularizer that mentions the record": Case(
        regularizer_of_the_record,
        "the regularizer mentions a field of the record; it must be public",
        "0.01 * sum_squares(w) + x @ w",
        "move the term into the loss",
    ),
    "a regularizer that is not convex": Case(
        verified(logistic, FEATURES, lambda w: -cp.sum_squares(w)),
        "the regularizer is not convex",
        "sum_squares(w)",
        "use a convex regularizer",
    ),
    "an infinite regularizer": Case(
        verified(logistic, FEATURES, lambda w: np.inf * cp.sum_squares(w)),
        "the regularizer contains a number that is not finite",
        "inf",
        "use finite constants",
    ),
    # Constraints
    "a constraint that mentions the record": Case(
        constraint_of_the_record,
        "a constraint mentions a field of the record, so the feasible set would depend on data",
        "x @ w <= 1",
        "state the constraint with public constants",
    ),
    "a constraint that is not convex": Case(
        verified(logistic, FEATURES, constraints=lambda w: [cp.norm(w, 2) >= 1]),
        "a constraint is not convex by CVXPY's rules",
        "1 <= norm(w)",
        "bound convex functions from above and concave ones from below",
    ),
    # Mechanisms
    "curvature that costs more than epsilon": Case(
        curvature_beyond_epsilon,
        "curvature alone costs",
        "sum_squares(w)",
        "raise the regularization",
    ),
    "the private number of records": Case(
        private_count,
        "under add-remove adjacency the number of records is private, and the regularization scales with it",
        "sum_squares(w)",
        "pass a public nominal number of records as `size`",
    ),
    "noise that misses a part of the sensitive subspace": Case(
        noise_on_one_class,
        "noise on the first class alone does not cover the sensitive subspace",
        "Phi_1",
        "draw noise on the whole sensitive subspace",
    ),
    "a kink that output perturbation cannot round off": Case(
        verified(lambda w, x, y: cp.pnorm(w - x, 1.5), mechanism=dp.OutputPerturbation()),
        "cannot be rounded off",
        "norm(w - x, 1.5)",
        "use NoisyGradientDescent, which needs no smoothness",
        rule_missing=True,
    ),
    "gradient steps on unbounded parameters": Case(
        verified(logistic, FEATURES, mechanism=dp.NoisyGradientDescent(), delta=1e-6),
        "noisy gradient descent needs bounded parameters",
        "all of space",
        "add a constraint such as cp.norm(w) <= 10",
    ),
    "gradient steps under a pure promise": Case(
        verified(logistic, FEATURES, mechanism=dp.NoisyGradientDescent(), bounds=[-1, 1]),
        "noisy gradient descent keeps no promise with delta = 0",
        "delta = 0",
        "promise a small delta",
    ),
    "Gaussian noise on the objective under a pure promise": Case(
        verified(logistic, FEATURES, mechanism=dp.ObjectivePerturbation("gaussian")),
        "Gaussian noise on the objective keeps no promise with delta = 0",
        "delta = 0",
        "noise='gamma'",
    ),
    "matrix-shaped noise for gradients that are no matrices of rank one": Case(
        verified(lambda w, x, y: cp.logistic(x[0] * w[0]) + cp.logistic(x[1] * w[0] + w[1]), mechanism=MATRIX),
        "matrix-shaped noise needs every gradient to be a matrix of rank one",
        "logistic(x[0] * w[0]) + logistic(x[1] * w[0] + w[1])",
        "use noise='gamma'",
    ),
    "one noise matrix for all classes, as published": Case(
        lambda: published(2012),
        "one noise matrix b, shared by all classes, does not cover the sensitive subspace",
        "Phi_",
        "draw an independent symmetric matrix for each class",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_says_why_where_and_what_to_do(case: str) -> None:
    expected = REFUSED[case]
    with pytest.raises(dp.NotPrivate) as caught:
        expected.make()
    error = caught.value
    assert isinstance(error, dp.MissingRule) is expected.rule_missing
    assert expected.reason in error.reason
    assert error.expression is not None
    assert expected.where in error.expression
    assert error.remedy is not None
    assert expected.remedy in error.remedy
    assert str(error) == f"{error.reason}\n  where: {error.expression}\n  remedy: {error.remedy}"


# A declaration that is malformed is an error of another kind; it names the thing and says what to write instead.

MALFORMED: dict[str, tuple[Callable[[], Any], str, str]] = {
    **{
        f"a variable that is {kind}": (
            verified(logistic, FEATURES, **{kind: True}),
            f"variable 'w' is declared {kind}",
            "use a real variable",
        )
        for kind in ("integer", "boolean")
    },
    "a complex variable": (
        verified(lambda w, x: cp.logistic(cp.real(x @ w)), FEATURES, complex=True),
        "variable 'w' is declared complex",
        "use a real variable",
    ),
    "a loss that returns nothing": (
        verified(lambda w, x: None, FEATURES),
        "the loss is None",
        "does the function return its expression?",
    ),
    "a loss with entries": (verified(lambda w, x: w, FEATURES), "the loss must be a scalar", "it has shape (3,)"),
    "constraints that contradict each other": (
        verified(logistic, FEATURES, constraints=lambda w: [w >= 1, w <= 0]),
        "1 <= w and w <= 0",
        "no point satisfies all constraints",
    ),
    "an atom of numbers": (
        declared(lambda m: math.exp(m), (0.0, 1.0), 0.25),
        "Atom 'mine'",
        "must be a NumPy or JAX function of one scalar that returns one scalar, written with numpy",
    ),
    "an atom with two values": (
        declared(lambda m: np.array([1.0, 2.0]) * m, (0.0, 1.0), 0.25),
        "Atom 'mine'",
        "must be a NumPy or JAX function of one scalar that returns one scalar",
    ),
    "an atom whose slope is no pair": (
        lambda: dp.Atom("mine", softplus, slope=1.0, curvature=0.25),  # type: ignore[arg-type]
        "Atom 'mine'",
        "slope must be two numbers",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_declaration_is_named(case: str) -> None:
    make, what, remedy = MALFORMED[case]
    with pytest.raises(dp.TemplateError) as caught:
        make()
    assert what in str(caught.value)
    assert remedy in str(caught.value)


# A remedy must work: the rounded-off version of each kink is certified.

ROUNDED: dict[str, Loss] = {
    "the hinge": lambda w, x, y: dp.huber_hinge(1 - y * (x @ w), width=0.5),
    "a maximum of two terms": lambda w, x, y: cp.log_sum_exp(cp.hstack([x @ w, 1 - x @ w])),
    "the largest entry": lambda w, x, y: cp.log_sum_exp(cp.multiply(w, x)),
    "the absolute value": lambda w, x, y: cp.huber(x @ w - y, 0.5),
    "the 1-norm": lambda w, x, y: cp.sum(cp.huber(w - x, 0.5)),
    "the Euclidean norm": lambda w, x, y: cp.norm(cp.hstack([w - x, 0.1])),
    "the infinity norm": lambda w, x, y: cp.log_sum_exp(cp.hstack([w - x, x - w])),
}


@pytest.mark.parametrize("case", ROUNDED)
def test_the_remedy_of_a_kink_is_certified(case: str) -> None:
    assert case in REFUSED
    assert verified(ROUNDED[case])().noise_scale > 0


# Whatever an atom of CVXPY does, the answer is a certificate or a refusal, never an error of another kind.


def losses(name: str, bounds: list[float] | None) -> list[tuple[cp.Variable, cp.Expression]]:
    """Return the losses that an atom of one argument makes, with either sign, of scalars, vectors and matrices."""
    make, found = getattr(cp, name), []
    for shape in ((), (3,), (2, 2)):
        w = cp.Variable(shape, name="w", **({} if bounds is None else {"bounds": bounds}))
        try:
            expression = cp.sum(make(UNIT.parameters["x"] * w + 0.5))
        except Exception:  # CVXPY has no such expression
            continue
        found += [(w, expression), (w, -expression)]
    return found


ATOMS = sorted(
    name
    for name, value in vars(cp).items()
    if inspect.isclass(value) and issubclass(value, cp.Expression) and hasattr(value, "numeric") and losses(name, None)
)


@pytest.mark.parametrize("bounds", [None, [0.0, 2.0]], ids=["unbounded", "bounded"])
@pytest.mark.parametrize("name", ATOMS)
def test_every_atom_is_certified_or_refused(name: str, bounds: list[float] | None) -> None:
    for w, loss in losses(name, bounds):
        try:
            template = dp.Template(UNIT, lambda x, e=loss: e, cp.sum_squares(w))
            answer = str(dp.verify(template, PROMISE, size=100))
        except dp.DPConvexError as error:
            answer = str(error)
        assert answer
