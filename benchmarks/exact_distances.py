"""Certified distances against minimisers in 60 digits, on curved sets, matrices and costs by heights: ``--fits 300``.

No fit may lie farther from its minimiser than it says.  Programs whose minimiser is not found are counted as unsettled: mostly,
multipliers of two constraints are not unique there.
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import cvxpy as cp
import mpmath as mp
import numpy as np

import dpconvex as dp
from benchmarks import chosen
from benchmarks.exact_minimisers import DIGITS, Case, Term, basis, exact, exactly, heights_at, symmetric, unit

TOLERANCES = (1e-2, 1e-5, 1e-9, 1e-13)


def case(seed: int) -> Case:
    """Draw a program: vectors, or matrices with or without a vector."""
    rng = np.random.default_rng(seed)
    return vectors(rng) if rng.random() < 0.5 else of_matrices(rng)


def losses(rng: np.random.Generator, forms: list[list[Any]], y: np.ndarray, kind: str) -> list[Term]:
    weight = mp.mpf(1) / len(forms)
    if kind == "squares":
        return [Term(weight, "square", form, -mp.mpf(float(t))) for form, t in zip(forms, y, strict=True)]
    return [Term(weight, "softplus", [-int(t) * a for a in form]) for form, t in zip(forms, y, strict=True)]


def records(rng: np.random.Generator, d: int, kind: str) -> tuple[np.ndarray, np.ndarray, Any]:
    n = int(rng.integers(10, 40))
    x = rng.normal(size=(n, d))
    x /= np.linalg.norm(x, axis=1).max() * (1 + 1e-9)
    if kind == "squares":
        return x, rng.uniform(-1, 1, n), dp.Box(-1.0, 1.0)
    return x, rng.choice([-1, 1], n), dp.Choice([-1, 1])


def function(kind: str, score: Any, y: Any) -> Any:
    return cp.square(score - y) if kind == "squares" else cp.logistic(-y * score)


def vectors(rng: np.random.Generator) -> Case:
    d, kind = int(rng.integers(2, 5)), str(rng.choice(["squares", "logistic", "logistic"]))
    x, y, domain = records(rng, d, kind)
    w = cp.Variable(d, name="w")
    A, b, c = rng.normal(size=(d, d)), rng.normal(size=d), rng.normal(size=d) / 4
    ridge, s = float(10 ** rng.uniform(-3, -1)), float(rng.uniform(0.1, 0.8))
    which, price = str(rng.choice(list(VECTOR_SETS))), str(rng.choice(list(VECTOR_COSTS)))
    weight = float(10 ** rng.uniform(-2, 0))
    heights = {"maximum": 1, "norm": 1, "sizes": d}.get(price, 0)
    size = d + heights
    constraints, below = VECTOR_SETS[which](w, A, c, s, size)
    constraints, below = list(constraints), list(below)
    if rng.random() < 0.3:
        constraints.append(w[0] + 2 * w[1] <= s / 4)
        below.append([Term(1, "line", [mp.mpf(1), mp.mpf(2), *[mp.mpf(0)] * (size - 2)], -mp.mpf(s) / 4)])
    regularizer, cost, more = VECTOR_COSTS[price](w, A, b, weight, size)
    template = dp.Template(
        dp.Record(x=dp.Ball(d), y=domain),
        lambda x, y: function(kind, x @ w, y),
        ridge * cp.sum_squares(w) + c @ w + regularizer,
        constraints,
    )
    terms = losses(rng, [exactly(row) + [mp.mpf(0)] * heights for row in x], y, kind)
    terms += [Term(mp.mpf(ridge), "square", unit(size, k)) for k in range(d)]
    terms += [Term(1, "line", exactly(c) + [mp.mpf(0)] * heights), *cost]
    words = f"{kind}, w of {d}, {which}, {price}"
    return Case(words, template, {"x": x, "y": y}, [("w", d, False)], terms, below + more, [], heights)


def rows_of(A: np.ndarray, size: int) -> list[list[Any]]:
    return [exactly(row) + [mp.mpf(0)] * (size - A.shape[1]) for row in A]


def squares_of(A: np.ndarray, b: Any, size: int) -> list[Term]:
    return [Term(1, "square", row, -offset) for row, offset in zip(rows_of(A, size), exactly(b), strict=True)]


def number(value: Any, size: int) -> Term:
    return Term(1, "line", [mp.mpf(0)] * size, value)


def ball(w: Any, A: np.ndarray, c: np.ndarray, s: float, size: int) -> Any:
    return [cp.norm(A @ w - c) <= s + 0.3], [[*squares_of(A, c, size), number(-((mp.mpf(s + 0.3)) ** 2), size)]]


VECTOR_SETS: dict[str, Callable[..., Any]] = {
    "all": lambda w, A, c, s, size: ([], []),
    "ball": lambda w, A, c, s, size: (
        [cp.norm(w) <= s],
        [[*squares_of(np.eye(w.size), np.zeros(w.size), size), number(-(mp.mpf(s) ** 2), size)]],
    ),
    "ellipsoid": lambda w, A, c, s, size: (
        [cp.sum_squares(A @ w) <= s],
        [[*squares_of(A, np.zeros(w.size), size), number(-mp.mpf(s), size)]],
    ),
    "shifted norm": ball,
    "two balls": lambda w, A, c, s, size: tuple(
        one + other for one, other in zip(ball(w, A, c, s, size), VECTOR_SETS["ball"](w, A, c, s, size), strict=True)
    ),
    "log-sum-exp": lambda w, A, c, s, size: (
        [cp.log_sum_exp(2 * w) <= 1 + s],
        [[*(Term(1, "exp", unit(size, k, 2)) for k in range(w.size)), number(-mp.exp(mp.mpf(1 + s)), size)]],
    ),
    "exponentials": lambda w, A, c, s, size: (
        [cp.sum(cp.exp(A @ w)) <= w.size + s],
        [[*(Term(1, "exp", row) for row in rows_of(A, size)), number(-mp.mpf(w.size + s), size)]],
    ),
    "fourth powers": lambda w, A, c, s, size: (
        [cp.sum(cp.power(w, 4)) <= s / 8],
        [[*(Term(1, "fourth power", unit(size, k)) for k in range(w.size)), number(-mp.mpf(s / 8), size)]],
    ),
    "logarithms": lambda w, A, c, s, size: (
        [-cp.sum(cp.log(1 + w)) <= s / 4],
        [[*(Term(1, "-log", unit(size, k), 1) for k in range(w.size)), number(-mp.mpf(s / 4), size)]],
    ),
    "quadratic over linear": lambda w, A, c, s, size: (
        [cp.quad_over_lin(w[1:], 1 + w[0]) <= s / 4],
        [
            [
                *(Term(1, "square", unit(size, k)) for k in range(1, w.size)),
                Term(-mp.mpf(s / 4), "line", unit(size, 0), 1),
            ]
        ],
    ),
}


def maximum(w: Any, A: np.ndarray, b: np.ndarray, weight: float, size: int) -> Any:
    lines = zip(rows_of(A, size), exactly(b), strict=True)
    more = [[Term(1, "line", row, offset), Term(-1, "line", unit(size, size - 1))] for row, offset in lines]
    return weight * cp.max(A @ w + b), [Term(mp.mpf(weight), "line", unit(size, size - 1))], more


def norm(w: Any, A: np.ndarray, b: np.ndarray, weight: float, size: int) -> Any:
    more = [[*squares_of(A, b, size), Term(-1, "square", unit(size, size - 1))]]
    return weight * cp.norm(A @ w - b), [Term(mp.mpf(weight), "line", unit(size, size - 1))], more


def sizes(w: Any, A: np.ndarray, b: np.ndarray, weight: float, size: int) -> Any:
    more, d = [], w.size
    for k, (row, offset) in enumerate(zip(rows_of(A, size), exactly(b), strict=True)):
        for sign in (1, -1):
            line = Term(sign, "line", row, -offset)
            more.append([line, Term(-1, "line", unit(size, d + k))])
    cost = [Term(mp.mpf(weight), "line", unit(size, d + k)) for k in range(d)]
    return weight * cp.norm1(A @ w - b), cost, more


VECTOR_COSTS: dict[str, Callable[..., Any]] = {
    "no cost": lambda w, A, b, weight, size: (0.0, [], []),
    "maximum": maximum,
    "norm": norm,
    "sizes": sizes,
    "exponentials": lambda w, A, b, weight, size: (
        weight * cp.sum(cp.exp(A @ w)),
        [Term(mp.mpf(weight), "exp", row) for row in rows_of(A, size)],
        [],
    ),
}


def of_matrices(rng: np.random.Generator) -> Case:
    side, kind = int(rng.integers(2, 4)), str(rng.choice(["squares", "logistic", "logistic"]))
    x, y, domain = records(rng, side, kind)
    which, price = str(rng.choice(list(MATRIX_SETS))), str(rng.choice(["no cost", "largest", "largest size", "trace"]))
    mixed = which == "Schur complement"
    W, w = cp.Variable((side, side), symmetric=True, name="W"), cp.Variable(side, name="w")
    pairs = symmetric(side)
    heights = int(price in ("largest", "largest size"))
    size = len(pairs) + side * mixed + heights
    B = rng.normal(size=(side, side))
    B, s = (B + B.T) / 4, float(rng.uniform(0.1, 0.8))
    ridge, weight = float(10 ** rng.uniform(-3, -1)), float(10 ** rng.uniform(-2, 0))
    nothing = mp.matrix(side)
    own = [basis(side, i, j) for i, j in pairs]
    rest = [nothing] * (size - len(pairs))

    def signed(sign: int, constant: Any, last: Any = nothing) -> list[Any]:
        return [constant, *(sign * part for part in own), *rest[: len(rest) - heights], *[last] * heights]

    eye = mp.eye(side)
    trace = [mp.mpf(i == j) for i, j in pairs] + [mp.mpf(0)] * (size - len(pairs))
    constraints, matrices, below = MATRIX_SETS[which](W, w, B, s, signed, eye, trace, size)
    regularizer, cost = 0.0, []
    if price == "trace":
        regularizer, cost = weight * cp.trace(W), [Term(mp.mpf(weight), "line", trace)]
    elif heights:
        regularizer = weight * (cp.lambda_max(W) if price == "largest" else cp.sigma_max(W))
        cost = [Term(mp.mpf(weight), "line", unit(size, size - 1))]
        matrices += [signed(-1, nothing, eye)] + [signed(1, nothing, eye)] * (price == "largest size")
    forms = [
        [mp.mpf(float(r[i])) * mp.mpf(float(r[j])) * (1 + (i < j)) for i, j in pairs]
        + exactly(r) * mixed
        + [mp.mpf(0)] * heights
        for r in x
    ]
    squares = [Term(mp.mpf(ridge) * (1 + (i < j)), "square", unit(size, k)) for k, (i, j) in enumerate(pairs)]
    squares += [Term(mp.mpf(ridge), "square", unit(size, len(pairs) + k)) for k in range(side * mixed)]
    template = dp.Template(
        dp.Record(x=dp.Ball(side), y=domain),
        lambda x, y: function(kind, x @ W @ x + (x @ w if mixed else 0.0), y),
        ridge * (cp.sum_squares(W) + (cp.sum_squares(w) if mixed else 0.0)) + regularizer,
        constraints,
    )
    variables = [("W", side, True)] + [("w", side, False)] * mixed
    terms = [*losses(rng, forms, y, kind), *squares, *cost]
    words = f"{kind}, W of {side}, {which}, {price}"
    return Case(words, template, {"x": x, "y": y}, variables, terms, below, matrices, heights)


def schur(W: Any, w: Any, B: Any, s: float, signed: Any, eye: Any, trace: Any, size: int) -> Any:
    side = B.shape[0]
    parts = [mp.matrix(side + 1) for _ in range(size + 1)]
    parts[0][side, side] = mp.mpf(s)
    for k, (i, j) in enumerate(symmetric(side)):
        parts[k + 1][i, j] = parts[k + 1][j, i] = mp.mpf(1)
    for k in range(side):
        place = len(symmetric(side)) + k + 1
        parts[place][k, side] = parts[place][side, k] = mp.mpf(1)
    column = cp.reshape(w, (side, 1), order="F")
    return [cp.bmat([[W, column], [column.T, np.array([[s]])]]) >> 0], [parts], []


MATRIX_SETS: dict[str, Callable[..., Any]] = {
    "all": lambda W, w, B, s, signed, eye, trace, size: ([], [], []),
    "semidefinite": lambda W, w, B, s, signed, eye, trace, size: ([W >> 0], [signed(1, 0 * eye)], []),
    "largest eigenvalue": lambda W, w, B, s, signed, eye, trace, size: (
        [cp.lambda_max(W) <= s],
        [signed(-1, mp.mpf(s) * eye)],
        [],
    ),
    "between": lambda W, w, B, s, signed, eye, trace, size: (
        [W >> 0, cp.lambda_max(W) <= s],
        [signed(1, 0 * eye), signed(-1, mp.mpf(s) * eye)],
        [],
    ),
    "above a matrix": lambda W, w, B, s, signed, eye, trace, size: (
        [W + B >> 0, cp.trace(W) <= s],
        [signed(1, mp.matrix(B.tolist()))],
        [[Term(1, "line", trace, -mp.mpf(s))]],
    ),
    "semidefinite, trace": lambda W, w, B, s, signed, eye, trace, size: (
        [W >> 0, cp.trace(W) <= s],
        [signed(1, 0 * eye)],
        [[Term(1, "line", trace, -mp.mpf(s))]],
    ),
    "Schur complement": schur,
}


def farthest(case: Case) -> tuple[list[tuple[float, float]], str]:
    """Return distances from the minimiser and what fits say of them, at several tolerances; or why there are none."""
    with warnings.catch_warnings(), mp.workdps(DIGITS):
        warnings.simplefilter("ignore")
        try:
            fits = [dp.solve_without_privacy(case.template, case.data, tolerance=t) for t in TOLERANCES]
        except dp.DPConvexError as error:
            return [], f"refused: {str(error).splitlines()[0]}"
        x = case.flat(fits[-1])
        found = exact(case, x + heights_at(case, x))
        if found is None:
            return [], "unsettled"
        pairs = [(float(case.apart(case.flat(fit), found)), fit.distance) for fit in fits]
        return [(distance, bound) for distance, bound in pairs if np.isfinite(bound)], ""


def main(arguments: Sequence[str] | None = None) -> int:
    known = {"--fits": (300, "programs that settle, times four tolerances"), "--first": 0, "--verbose": False}
    options = chosen(__doc__, arguments, known, fits=4)
    seed, fits, wrong, worst, unsettled = options.first, 0, 0, 0.0, 0
    while fits < options.fits:
        one = case(seed)
        found, why = farthest(one)
        for distance, bound in found:
            fits += 1
            worst = max(worst, distance / bound)
            if not distance <= bound:
                wrong += 1
                print(f"{seed}: {one.words}: {distance:.3g} away, certified {bound:.3g}", flush=True)
        if why:
            unsettled += 1
        if options.verbose or why.startswith("refused"):
            print(seed, one.words, why or [f"{d:.2g} <= {b:.2g}" for d, b in found], flush=True)
        seed += 1
    settled = f"{seed - options.first - unsettled} programs, {unsettled} unsettled"
    print(f"{fits} fits of {settled}; {wrong} farther than certified; at most {worst:.3g} of the certified distance")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
