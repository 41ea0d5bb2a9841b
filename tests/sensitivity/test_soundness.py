"""Random templates against their certificates: nothing that is observed may exceed what was proved.

Beyond the constants, the sets that they come from are tested in random directions: every gradient of every subexpression must lie
in its set, and every Hessian below its pieces, at the very record that it belongs to.
"""

from fractions import Fraction
from itertools import product

import cvxpy as cp
import numpy as np
import pytest
from derivatives import Jets
from scipy.special import expit
from scipy.stats import norm
from strategies import seeded_template

import dpconvex as dp
from dpconvex.checker import check
from dpconvex.fitting.verify import analyse
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sensitivity.interpreter import AbstractInterpreter
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.neighbour_differences import all_differences, count_lengths
from dpconvex.sums.batch_loss import BatchedLoss

RECORDS = 12
POINTS = 6
DIRECTIONS = 6
MODULI = (1e-3, 0.1, 1.0, 10.0)
TOLERANCE = 1e-9
ACCEPTED = 0.8


class Spy(AbstractInterpreter):
    """A walker that remembers what it found out about every subexpression."""

    def walk(self, expression):
        entries = super().walk(expression)
        self.seen.append((expression, entries))
        return entries


def walked(analysis):
    form = analysis.form
    rows = dict(zip((leaf for group in form.leaves for leaf in group), analysis.gram.rows, strict=True))
    spy = Spy(form.standard, rows, analysis.reach)
    spy.seen = []
    for loss in form.template.losses:
        spy.walk(loss)
    return spy.seen


def generator_rows(analysis, jets):
    """Rows of the generators at each record, shape (records, generators, dim).

    A leaf's row in one variable, or one of its columns, is a known multiple of one generator.
    """
    form, gram = analysis.form, analysis.gram
    rows = np.concatenate([jets.of(leaf).gradient[0] for group in form.leaves for leaf in group], axis=1)
    table = np.concatenate(gram.rows)
    result = np.zeros((len(rows), table.shape[1], form.space.dim))
    places = [generator.place for generator in gram.generators]
    for g, place in enumerate(places):
        if gram.generators[g].divided:  # several in one cell
            own = [k for k, other in enumerate(places) if np.array_equal(other, place)]
            result[:, g, place] = np.linalg.pinv(table[:, own])[own.index(g)] @ rows[:, :, place]
            continue
        source = int(np.argmax(np.abs(table[:, g])))
        result[:, g, place] = rows[:, source, place] / table[source, g]
    return result


def support(terms, images):
    """Largest inner product of a direction with the sum of terms; `images` are those of the generators."""
    total = 0.0
    for term in terms:
        values = term.rows @ images
        total += float(np.linalg.norm(values)) if term.ball else float(values.max())
    return total


def largest_bend(piece, images):
    """Bound the curvature of a piece in a direction; for a covariance, over mixtures of its two extreme vertices."""
    extreme = max(support(piece.terms, images), support(piece.terms, -images))
    if piece.spread == 0:
        return piece.outer * extreme**2
    values = piece.terms[0].rows @ images
    low, high, share = values.min(), values.max(), np.linspace(0.0, 1.0, 401)
    mean, square = share * low + (1 - share) * high, share * low**2 + (1 - share) * high**2
    bend = piece.spread * (square - mean**2) + piece.outer * mean**2
    # Between grid points a quadratic exceeds its largest value there by little.
    return float(bend.max() + (piece.spread + piece.outer) * (high - low) ** 2 / 400**2)


def draw_points(form, rng):
    """Draw parameters in K, some of them far out, and some near 0, where many terms tie or bend."""
    points = np.array([1e-6, 0.3, 1.0, 3.0, 10.0, 100.0])[:POINTS, None] * rng.normal(size=(POINTS, form.space.dim))
    inside = form.feasible.project(0.01 * rng.normal(size=form.space.dim))
    # Off corners of K, where arguments may be exactly where a loss begins to bend: what is claimed of Hessians is so elsewhere.
    return np.stack([(1 - 1e-7) * form.feasible.project(point) + 1e-7 * inside for point in points])


def check_ranges(expression, entries, jet):
    slack = 1e-9 * (1 + np.abs(jet.value).max(initial=0.0))
    for k, scalar in enumerate(entries):
        assert scalar.value.low <= jet.value[:, :, k].min() + slack, f"below the range of {expression}"
        assert jet.value[:, :, k].max() <= scalar.value.high + slack, f"above the range of {expression}"


def check_sets(expression, entries, jet, generators, directions):
    slopes = np.einsum("pzkd,qd->qzkp", jet.gradient, directions)
    bends = np.einsum("pzkde,qd,qe->qzkp", jet.hessian, directions, directions, optimize=True)
    images = np.einsum("zgd,qd->qzg", generators, directions)
    size = np.abs(slopes).max(initial=1e-300) + 1e-3 * np.abs(images).max(initial=0.0)
    for k, scalar in enumerate(entries):
        for q, z in np.ndindex(len(directions), len(generators)):
            image = images[q, z]
            reach = support(scalar.terms, image) + TOLERANCE * size
            assert slopes[q, z, k].max() <= reach, f"a gradient of {expression} outside its set"
            if scalar.kink is None:
                seen = scalar.sign * bends[q, z, k] if scalar.pieces else np.abs(bends[q, z, k])
                bound = sum(largest_bend(piece, image) for piece in scalar.pieces)
                rounding = TOLERANCE * np.abs(bends[q, z]).max() + 1e-12 * size**2
                assert seen.max() <= bound * (1 + TOLERANCE) + rounding, f"a Hessian of {expression} above its pieces"


def check_constants(analysis, jets):
    gradients = [jet.gradient[:, :, 0] for jet in jets]
    for loss, gradient in zip(analysis.losses, gradients, strict=True):
        assert np.linalg.norm(gradient, axis=-1).max() <= loss.gradient_bound * (1 + TOLERANCE), "gradient bound"
    assert analysis.gradient_bound == max(loss.gradient_bound for loss in analysis.losses)
    together = np.concatenate(gradients, axis=1)
    apart = np.linalg.norm(together[:, :, None] - together[:, None, :], axis=-1)
    assert apart.max() <= analysis.replacement_bound * (1 + TOLERANCE), "replacement bound"
    if analysis.kink is None:
        check_curvature(analysis, [jet.hessian[:, :, 0] for jet in jets], together, apart)


def check_curvature(analysis, hessians, together, apart):
    spectra = [np.linalg.eigvalsh(hessian) for hessian in hessians]
    # The observed eigenvalues are no more exact than this.
    moduli = [max(mu, 1e-6 * analysis.hessian_bound) for mu in MODULI]
    for loss, values in zip(analysis.losses, spectra, strict=True):
        assert values.max() <= loss.curvature.eigenvalue * (1 + TOLERANCE), "largest eigenvalue"
        assert values.min() >= -TOLERANCE * loss.curvature.eigenvalue, "the loss is not convex"
        assert values.sum(axis=-1).max() <= loss.curvature.trace * (1 + TOLERANCE), "trace"
        for mu in moduli:
            assert log_det(values, mu).max() <= loss.curvature.log_det(mu) * (1 + TOLERANCE), "log det"
    assert analysis.hessian_bound == max(loss.curvature.eigenvalue for loss in analysis.losses)
    alone = np.linalg.norm(together, axis=-1)
    for mu in moduli:
        cost = log_det(np.concatenate(spectra, axis=1), mu)
        for beta in np.array([0.1, 3.0]) / max(analysis.gradient_bound, 1e-12):
            adjacencies = ("add-remove", "replace-one")
            add, replace = (analysis.perturbation_cost(beta, mu, a)[0] * (1 + TOLERANCE) for a in adjacencies)
            assert (beta * alone + cost).max() <= add, "cost of adding a record"
            assert (beta * apart + cost[:, :, None]).max() <= replace, "cost of replacing a record"


def log_det(spectrum, mu):
    return np.log1p(np.maximum(spectrum, 0) / mu).sum(axis=-1)


def attack(template, rng):
    """Attack everything that is claimed about a template; returns whether its curvature was among it."""
    form = LossForm(template)
    analysis = Analysis(form)
    seen = walked(analysis)
    jets = Jets(form, template.record.sample(RECORDS, rng).fields, draw_points(form, rng))
    generators, directions = generator_rows(analysis, jets), rng.normal(size=(DIRECTIONS, form.space.dim))
    for expression, entries in seen:
        check_ranges(expression, entries, jets.of(expression))
        check_sets(expression, entries, jets.of(expression), generators, directions)
    losses, basis = [jets.of(loss) for loss in template.losses], form.basis.toarray()
    for jet in losses:
        outside = jet.gradient - jet.gradient @ basis @ basis.T
        assert np.abs(outside).max() <= 1e-9 * (1e-300 + np.abs(jet.gradient).max()), "outside the subspace"
    check_constants(analysis, losses)
    return analysis.kink is None


def campaign(seeds):
    """Attack the templates of some seeds; returns how many were accepted, and how many of those with curvature."""
    accepted = smooth = 0
    for seed in seeds:
        try:
            smooth += attack(seeded_template(seed), np.random.default_rng(seed))
        except dp.NotPrivate:
            continue
        except AssertionError as error:
            raise AssertionError(f"template of seed {seed}: {error}") from error
        accepted += 1
    return accepted, smooth


def test_nothing_exceeds_its_certificate_and_most_templates_are_accepted():
    accepted, smooth = campaign(range(10))
    assert accepted >= ACCEPTED * 10
    assert smooth >= 2


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 1000, 50))
def test_a_thousand_templates(start):
    accepted, smooth = campaign(range(start, start + 50))
    assert accepted >= ACCEPTED * 50
    assert smooth >= 12  # a quarter, as above


# Differences of gradients between neighbours: lengths and dimensions
ADJACENCIES = ("replace-one", "add-remove")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize(
    ("problem", "options"),
    [
        ("logistic_regression", {}),
        ("huber_svm", {}),
        ("softmax_regression", {"classes": 3}),
        ("large_margin_gaussian", {"classes": 3}),
        ("large_margin_gaussian_mixture", {"classes": 2}),
    ],
)
def test_no_difference_is_longer_or_leaves_its_subspace(problem, options, adjacency):
    template = dp.load(problem, features=2, **options)
    analysis, rng = analyse(template), np.random.default_rng(1)
    items = all_differences(analysis, adjacency)
    for _ in range(20):
        loss, seen = BatchedLoss(template, analysis.form.space, template.record.sample(2, rng)), []
        for _ in range(24):
            theta = rng.normal(size=analysis.form.space.dim) * rng.choice([0.3, 3.0, 30.0])
            gradients = [loss.clipped_gradient(theta, np.inf, one) for one in np.eye(2, dtype=bool)]
            seen.append(gradients[0] - gradients[1] if adjacency == "replace-one" else gradients[0])
        assert np.linalg.norm(seen, axis=1).max() <= max(item.length for item in items) * (1 + 1e-9)
        assert np.linalg.matrix_rank(np.array(seen), tol=1e-9) <= max(item.dimension for item in items)


def test_labels_with_different_losses_are_paired_in_both_orders():
    w, record = cp.Variable(2, name="w"), dp.Record(x=dp.Ball(2), y=dp.Choice([0, 1]))
    template = dp.Template(record, lambda x, y: cp.logistic(w @ x) if y else 2 * dp.huber_hinge(1 - w @ x, 0.5))
    assert len(all_differences(analyse(template), "replace-one")) == 4


def test_a_tally_never_shortens():
    rng = np.random.default_rng(3)
    squares = np.concatenate([rng.random(1000) * 10.0 ** rng.integers(-8, 8, 1000), [0.0, 0.0]])
    lengths, counts = count_lengths(squares)
    assert counts.sum() == 1000
    exact = np.sort(np.sqrt(squares[squares > 0]))
    rounded = np.repeat(lengths, counts.astype(int))
    assert ((exact <= rounded) & (rounded <= exact * (1 + 3e-7))).all()


# Losses of one parameter, and the slope of the record that pulls most.
UNIT, FAR = dp.Box(-1.0, 1.0), dp.Box(0.0, 5.0)
LINE = {
    "a margin and a numeric label": ({"t": FAR}, lambda w, t: cp.logistic(w) - t * w, lambda w: expit(w) - 5),
    "soft labels": (
        {"x": UNIT, "t": dp.Box(0.0, 1.0)},
        lambda w, x, t: cp.logistic(x * w) - t * x * w,
        lambda w: expit(w) - 1,
    ),
    "terms of different degrees": (
        {"t": FAR},
        lambda w, t: 1.25 * cp.log_sum_exp(cp.hstack([0.52 * t * w, 0.02 * w - 0.75])) - 1.25 * 0.52 * t * w,
        lambda w: -1.25 * 2.58 * expit(-2.58 * w - 0.75),
    ),
    "an offset beside a margin": ({"x": UNIT}, lambda w, x: cp.logistic(x * w) + 50 * w, lambda w: expit(w) + 50),
}


@pytest.mark.parametrize("name", LINE)
def test_one_parameter_may_be_seen_through_several_functions_of_a_record(name):
    """Their rows lie on one line, and are no multiples of one row: the exact law of the noisy minimiser keeps the guarantee."""
    fields, loss, slope = LINE[name]
    w = cp.Variable(name="w")
    template = dp.Template(dp.Record(**fields), lambda **z: loss(w, **z), 0.01 * cp.square(w))
    certificate = dp.verify(template, dp.Privacy(1.0, 1e-6, "add-remove"), 1000, dp.ObjectivePerturbation("gaussian"))
    theta, sigma, mu = np.linspace(-40, 40, 400_001), certificate.noise_scale, certificate.strong_convexity
    one, none = (np.diff(norm.cdf((mu * theta + pull) / sigma)) for pull in (slope(theta), 0.0))
    epsilon = certificate.noise_epsilon + certificate.jacobian_epsilon
    for first, second in ((one, none), (none, one)):
        assert np.maximum(first - np.exp(epsilon) * second, 0).sum() <= certificate.noise_delta


# Losses that centre and scale fields in place: bounds are those of the affine map's values, whatever its constants are
SQUARE, LABELS = dp.Box(np.zeros(2), np.ones(2)), dp.Choice([-1, 1])
HALF = np.full(2, 0.5)


def drawn(rng):
    """Draw a box and constants of very different sizes: centres in it, at its ends, and far from it."""
    size = 10.0 ** rng.uniform(-6, 6, 2)
    lower = size * rng.normal(size=2) * 10.0 ** rng.integers(0, 3)
    upper, share = lower + size * rng.random(2), rng.choice([0.0, 0.5, 1.0, rng.random(), -3.0])
    return lower, upper, lower + share * (upper - lower), 10.0 ** rng.uniform(-3, 3, 2) / (upper - lower)


WRITTEN = {
    "scaled after": lambda x, c, a: cp.multiply(a, x - c),
    "scaled apart": lambda x, c, a: cp.multiply(a, x) - a * c,
    "centred twice": lambda x, c, a: cp.multiply(a, (x - 3 * c) + 2 * c),
}


def longest(how, lower, upper, c, a):
    """Return the length of the longest row, exactly, of ``(map(x), 1)`` at a corner of the box."""
    exact = [list(map(Fraction, part.tolist())) for part in (c, a, a * c, 3 * c, 2 * c)]
    rows = []
    for corner in product(*zip(lower.tolist(), upper.tolist(), strict=True)):
        row = []
        for x, c_, a_, ac, three, two in zip(map(Fraction, corner), *exact, strict=True):
            row.append(a_ * (x - c_) if how == "scaled after" else a_ * x - ac)
            row[-1] = a_ * (x - three + two) if how == "centred twice" else row[-1]
        rows.append(sum(value**2 for value in row) + 1)
    return float(max(rows)) ** 0.5


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 100), marks=pytest.mark.slow)])
def test_bounds_are_those_of_the_map_over_the_box(seeds):
    for seed in seeds:
        lower, upper, c, a = drawn(np.random.default_rng(seed))
        how, w, b = [*WRITTEN][seed % 3], cp.Variable(2, name="w"), cp.Variable(name="b")
        loss = lambda x, y, how=how, c=c, a=a, w=w, b=b: cp.logistic(-y * (WRITTEN[how](x, c, a) @ w + b))  # noqa: E731
        found = analyse(dp.Template(dp.Record(x=dp.Box(lower, upper), y=LABELS), loss, cp.sum_squares(w)))
        exact = longest(how, lower, upper, c, a)
        assert exact * (1 - 1e-12) <= found.gradient_bound <= exact * 1.0102, seed  # less is not worth it


MAP = np.array([[1.0, 0.5], [-0.25, 2.0]])
LOSSES = {
    "margin": lambda x, t, w, b: cp.logistic((x - HALF) @ w + b),
    "Huber": lambda x, t, w, b: cp.huber((t - 3) / 2 - b - cp.multiply([2.0, 30.0], x - 0.3) @ w, 0.5),
    "mixed": lambda x, t, w, b: cp.square((MAP @ x - MAP @ HALF) @ w - b) + cp.logistic((x - HALF) @ w),
    "interaction": lambda x, t, w, b: cp.logistic((t - 3) * ((x - HALF) @ w) + b),
    "squares": lambda x, t, w, b: cp.sum_squares(cp.hstack([cp.multiply(x - HALF, w), (t - 3) * b])) / 2,
}


@pytest.mark.parametrize(
    "name", [name if name == "interaction" else pytest.param(name, marks=pytest.mark.slow) for name in LOSSES]
)
def test_gradients_and_hessians_are_in_their_sets(name):
    w, b = cp.Variable(2, name="w"), cp.Variable(name="b")
    record, inside = dp.Record(x=SQUARE, t=dp.Box(1.0, 5.0)), [cp.norm(w) <= 1, cp.abs(b) <= 1]
    template = dp.Template(record, lambda x, t: LOSSES[name](x, t, w, b), cp.sum_squares(w), inside)
    assert analyse(template).bases.units
    attack(template, np.random.default_rng(1))


def test_less_noise_is_needed_and_the_checker_agrees():
    w, low, high = cp.Variable(2, name="w"), np.array([0.0, 100.0]), np.array([1.0, 180.0])
    turn = np.array([[0.6, 0.8], [-0.8, 0.6]])  # A public map that mixes the features
    scaled = lambda x: (2 * x - low - high) / (high - low)  # noqa: E731
    losses = (
        (0.5**0.5, SQUARE, lambda x, y: cp.logistic(-y * ((x - HALF) @ w))),
        (2**0.5, dp.Box(low, high), lambda x, y: cp.logistic(-y * (scaled(x) @ w))),
        (2**0.5, dp.Box(low, high), lambda x, y: cp.logistic(-y * (scaled(x) @ turn @ w))),
    )
    for needed, domain, loss in losses:
        template = dp.Template(dp.Record(x=domain, y=LABELS), loss, 0.01 * cp.sum_squares(w))
        certificate = dp.verify(template, dp.Privacy(1.0), 500, dp.ObjectivePerturbation())
        assert certificate.gradient_bound == pytest.approx(needed, rel=1e-9)
        assert str(check(certificate.proof)).startswith("replayed")
