"""Feature maps: what is computed, that nothing is learnt, and that no record's features depend on another's."""

import math
import warnings
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn import preprocessing
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, Normalizer, PolynomialFeatures

import dpconvex as dp
from dpconvex.features import scattering
from dpconvex.features.preconditioner import RECORD_LEVELS, in_whole_numbers

RNG = np.random.default_rng(0)


# Scattering, by its definition: sums over pixels, waves written down as functions of the place
def torus(function, sides):
    """Return the sum of a function's values over all places that are one place of a torus."""
    total = np.zeros(sides, dtype=complex)
    for shift in product(range(-2, 3), repeat=2):
        total += np.fromfunction(lambda y, x, s=shift: function(y + s[0] * sides[0], x + s[1] * sides[1]), sides)
    return total


def gabor(y, x, width, angle, frequency, slant):
    along, across = y * math.cos(angle) + x * math.sin(angle), x * math.cos(angle) - y * math.sin(angle)
    bump = np.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2))
    return bump * np.exp(1j * frequency * along) * slant / (2 * math.pi * width**2)


def morlet(sides, j, turn, L):
    options = {"width": 0.8 * 2**j, "angle": (L - L // 2 - 1 - turn) * math.pi / L, "slant": 4 / L}
    waved = torus(partial(gabor, frequency=0.75 * math.pi / 2**j, **options), sides)
    bump = torus(partial(gabor, frequency=0.0, **options), sides)
    return waved - bump * waved.sum() / bump.sum()


def convolved(image, kernel):
    places = product(*map(range, image.shape))
    return sum(kernel[place] * np.roll(image, place, axis=(0, 1)) for place in places)


def by_definition(image, J, L):
    """Return the coefficients of an image; pixels are left out after each wavelet."""
    wide = [((side >> J) + 2) << J for side in image.shape]
    padded = np.pad(
        image, [((w - s) // 2, (w - s + 1) // 2) for w, s in zip(wide, image.shape, strict=True)], "reflect"
    )
    average = torus(partial(gabor, width=0.8 * 2 ** (J - 1), angle=0.0, frequency=0.0, slant=1.0), tuple(wide))
    waves = {(j, turn): morlet(tuple(wide), j, turn, L) for j in range(J) for turn in range(L)}
    every = lambda values, step: values[::step, ::step]  # noqa: E731

    def end(values, left):
        return every(convolved(values, every(average, 2**left) * 4**left).real, 2 ** (J - left))[1:-1, 1:-1]

    found, later = [end(padded, 0)], []
    for (j, _), wave in waves.items():
        first = every(np.abs(convolved(padded, wave)), 2**j)
        found.append(end(first, j))
        for (k, _), other in waves.items():
            if k > j:
                later.append(end(every(np.abs(convolved(first, every(other, 2**j) * 4**j)), 2 ** (k - j)), k))
    return np.array(found + later)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("shape", "J", "L"), [((8, 8), 2, 3), ((9, 6), 2, 2), ((2, 3), 1, 8), ((8, 11), 3, 1)])
def test_scattering_is_what_it_is_by_definition(shape, J, L):
    images, features = RNG.random((2, *shape)), dp.ScatteringFeatures(shape, J=J, L=L)
    found = features.transform(images).reshape(2, *features.coefficients)
    for image, coefficients in zip(images, found, strict=True):
        np.testing.assert_allclose(coefficients, by_definition(image, J, L), rtol=0, atol=1e-13)


ROWS, PUBLIC = RNG.normal(size=(300, 40)) * np.logspace(-3, 8, 300)[:, None], RNG.normal(size=(400, 5))
ROWS[::7] = 0.0
ROWS[:, ::3] *= np.arange(300)[:, None] % 3 == 0
PUBLIC = PUBLIC @ np.diag([8.0, 4.0, 2.0, 1.0, 0.5]) @ np.linalg.qr(RNG.normal(size=(5, 5)))[0]
MAPS = [
    (dp.ScatteringFeatures((8, 8)), RNG.random((30, 64)) - 0.2),
    (dp.ScatteringFeatures((8, 8)), RNG.random((30, 64)).astype(np.float32)),
    (dp.ScatteringFeatures((5, 7, 2), J=1, L=3), RNG.random((30, 5, 7, 2)).astype(np.float32)),
    (dp.GroupNormalizer(4), RNG.normal(size=(30, 64)) * np.logspace(-6, 6, 30)[:, None]),
    (dp.GroupNormalizer(1), RNG.normal(size=(3000, 147)).astype(np.float32)),
    (dp.GroupNormalizer(27), RNG.normal(size=(300, 3969)).astype(np.float32)),
    (dp.PublicPreconditioner(PUBLIC, power=0.5, ridge=1e-9), PUBLIC),
    *(
        (dp.RandomFourierFeatures(features, components, gamma=3.0, paired=paired), ROWS[:, :features])
        for features, components in ((1, 1), (3, 7), (13, 33), (40, 100), (3, 5000))
        for paired in (True, False)
    ),
]


@pytest.mark.parametrize(("features", "rows"), MAPS)
def test_a_records_features_depend_on_it_alone_to_the_last_bit(features, rows, monkeypatch):
    found = clone(features).fit(rows[:3]).transform(rows)
    assert found.dtype == rows.dtype
    for size in (*range(1, 22), *range(22, len(rows), 61)):
        np.testing.assert_array_equal(features.transform(rows[:size]), found[:size])
        np.testing.assert_array_equal(features.transform(rows[-size:]), found[-size:])
    forms = (sp.csr_array, sp.csc_matrix, np.ndarray.tolist) if isinstance(features, dp.RandomFourierFeatures) else ()
    for form in (np.asfortranarray, *forms):
        np.testing.assert_array_equal(features.transform(form(rows)), found)
    order = RNG.permutation(len(rows))
    np.testing.assert_array_equal(features.transform(rows[order]), found[order])
    alone = np.concatenate([features.transform(row[None]) for row in rows[:300]])
    np.testing.assert_array_equal(alone, found[:300])
    monkeypatch.setattr(scattering, "in_order", lambda tasks, workers, name: [task() for task in [*tasks][::-1]])
    np.testing.assert_array_equal(features.transform(rows), found)


IMAGES = np.full((3, 8, 8), 0.5)
WRONG = {
    "ScatteringFeatures: shape must": [
        *(partial(dp.ScatteringFeatures(shape).transform, IMAGES) for shape in (8, (8,), (3, 8), (8, 8, 0), "88", (8, 8.0))),
        partial(dp.ScatteringFeatures((8, 8), J=4).fit, IMAGES),
    ],
    "ScatteringFeatures: . must be a positive integer": [
        partial(dp.ScatteringFeatures((8, 8), J=0).fit, IMAGES),
        partial(dp.ScatteringFeatures((8, 8), L=1.5).fit, IMAGES),
    ],
    r"images must have shape \(8, 8\) or \(64,\), not \(8, 9\)": [
        partial(dp.ScatteringFeatures((8, 8)).fit, np.zeros((3, 8, 9))),
    ],
    "image 2: it holds NaN": [
        partial(dp.ScatteringFeatures((8, 8)).transform, np.where(np.arange(3)[:, None, None] == 2, np.nan, IMAGES)),
        partial(dp.ScatteringFeatures((8, 8)).transform, np.where(np.arange(3)[:, None, None] == 2, -np.inf, IMAGES)),
    ],
    "image 1: its numbers are too large": [
        partial(dp.ScatteringFeatures((8, 8)).transform, np.repeat(np.float32([1.0, 1e38]), 64).reshape(2, 8, 8)),
    ],
    "expected real numbers": [partial(dp.ScatteringFeatures((8, 8)).fit, IMAGES.astype(str))],
    "GroupNormalizer: (groups|floor) must": [
        *(partial(dp.GroupNormalizer(groups).fit, IMAGES[0]) for groups in (0, 2.0, None)),
        *(partial(dp.GroupNormalizer(2, floor=floor).fit, IMAGES[0]) for floor in (0, -1.0, np.inf, "small")),
    ],
    r"8 feature\(s\) cannot form . groups": [partial(dp.GroupNormalizer(groups).fit, IMAGES[0]) for groups in (3, 8)],
    "row 1: it holds NaN": [partial(dp.GroupNormalizer(1).transform, [[0.0, 1.0], [np.nan, 1.0]])],
    "row 1: its numbers are too large": [partial(dp.GroupNormalizer(1).fit_transform, [[0.0, 1.0], [1e200, -1e200]])],
}  # fmt: skip


@pytest.mark.parametrize("words", WRONG)
def test_what_is_wrong_is_said(words):
    for call in WRONG[words]:
        if isinstance(getattr(call.func, "__self__", None), dp.GroupNormalizer) and call.func.__name__ == "transform":
            call.func.__self__.fit(np.zeros((2, 2)))
        with pytest.raises(dp.DPConvexError, match=words):
            call()


# Which steps of a pipeline learn

TABLE = RNG.uniform(0.1, 0.6, size=(60, 2))
LABELS = (TABLE[:, 0] > 0.3).astype(int)
KNOTS = np.linspace([0.0, 0.0], [1.0, 1.0], 4)
TEXTS = [" ".join(RNG.choice(["warm", "cold", "late"], 3)) for _ in range(60)]
SPLINES = preprocessing.SplineTransformer(knots=KNOTS)
SILENT = [
    (Normalizer(), TABLE),
    (preprocessing.Binarizer(threshold=0.3), TABLE),
    (PolynomialFeatures(), TABLE),
    (FunctionTransformer(np.sqrt), TABLE),
    (dp.RandomFourierFeatures(2, 5), TABLE),
    (SPLINES, TABLE),
    (HashingVectorizer(n_features=16), TEXTS),
    (FeatureHasher(n_features=16, input_type="string"), [text.split() for text in TEXTS]),
    (dp.ScatteringFeatures((2, 2), J=1, L=2), RNG.random((60, 2, 2))),
    (dp.GroupNormalizer(1), TABLE),
    (
        dp.SchemaEncoder(dp.Schema({"a": (0, 1), "b": (0, 1)}, "y", label_bounds=(0, 1))),
        pd.DataFrame(TABLE, columns=["a", "b"]),
    ),
    (make_pipeline(SPLINES, Normalizer()), TABLE),
    (FeatureUnion([("splines", SPLINES), ("products", PolynomialFeatures()), ("rest", "passthrough")]), TABLE),
    (
        make_column_transformer((preprocessing.SplineTransformer(knots=KNOTS[:, :1]), [0]), remainder="passthrough"),
        TABLE,
    ),
]
LEARNING = [
    (MinMaxScaler(), TABLE),
    (preprocessing.SplineTransformer(), TABLE),
    (preprocessing.SplineTransformer(knots="quantile"), TABLE),
    (TfidfVectorizer(), TEXTS),
    (make_pipeline(Normalizer(), MinMaxScaler()), TABLE),
    (FeatureUnion([("splines", preprocessing.SplineTransformer())]), TABLE),
    (make_column_transformer((Normalizer(), [0]), remainder=MinMaxScaler()), TABLE),
    (make_column_transformer((Normalizer(), lambda table: [int(table[0, 0] > 1)])), TABLE),
]


def name_of(step):
    return type(step).__name__ if hasattr(step, "fit") else None


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("step", "table"), SILENT, ids=name_of)
def test_steps_that_learn_nothing_are_silent_and_do_learn_nothing(step, table):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_pipeline(step, dp.LogisticRegression(epsilon=5.0, clip=True)).fit(table, LABELS)
    # Fitted to some records or to others, a step makes the same of each.
    some, others = (clone(step).fit(table[where], LABELS[where]) for where in (slice(0, 30), slice(30, 60)))
    made, again, alone = some.transform(table), others.transform(table), some.transform(table[7:8])
    dense = [np.asarray(part.toarray() if hasattr(part, "toarray") else part) for part in (made, again, alone)]
    np.testing.assert_array_equal(dense[0], dense[1])
    np.testing.assert_allclose(dense[0][7:8], dense[2], rtol=1e-12)


@pytest.mark.parametrize(("step", "table"), LEARNING, ids=name_of)
def test_steps_that_learn_are_warned_of(step, table):
    remedy = "HashingVectorizer" if isinstance(step, TfidfVectorizer) else "unit_ball"
    with pytest.warns(dp.PrivacyWarning, match=f"{type(step).__name__} learns from the data.*{remedy}"):
        make_pipeline(step, dp.LogisticRegression(epsilon=5.0, clip=True)).fit(table, LABELS)


@pytest.mark.parametrize("size", [1e-170, 1.7e-164, 1e-20, 1.0, 1e150])
def test_normalised_rows_are_at_most_1_long_whatever_their_size(size):
    rows = dp.GroupNormalizer().transform([[0.0, size], [size, -size]])
    assert 0.99 < np.linalg.norm(rows, axis=1).min() <= np.linalg.norm(rows, axis=1).max() <= 1


# Public preconditioners
def test_sums_of_many_features_stay_exact():
    assert in_whole_numbers(np.ones((1, 10_000))).sum() * RECORD_LEVELS < 2**53


def test_public_records_become_round():
    public, maps = PUBLIC, dp.PublicPreconditioner(PUBLIC, power=0.5, ridge=1e-9)
    values, vectors = np.linalg.eigh(public.T @ public / len(public))
    exact, turned = public @ (vectors / np.sqrt(values)) @ vectors.T, maps.transform(public)
    np.testing.assert_allclose(turned, exact / np.linalg.norm(exact, axis=1)[:, None], atol=1e-4)
    assert np.linalg.norm(turned, axis=1).max() <= 1
    single = maps.transform(np.float32(public))
    assert single.dtype == np.float32
    assert np.linalg.norm(np.float64(single), axis=1).max() <= 1
    assert maps.transform(np.float32(1e-35) * np.float32(public)) == pytest.approx(single, abs=1e-4)
    assert not maps.transform(np.zeros((1, 5), np.float32)).any()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = make_pipeline(maps, dp.LogisticRegression(epsilon=3.0, delta=1e-5, seed=0))
        model.fit(public, (public[:, 0] > 0).astype(int))


@pytest.mark.parametrize("kernel", ["gaussian", "laplace", "cauchy"])
@pytest.mark.parametrize("paired", [True, False])
def test_the_norm_bound_is_sharp_and_inner_products_approximate_the_kernel(kernel, paired):
    rng = np.random.default_rng(1)
    features = dp.RandomFourierFeatures(3, 1 if not paired else 20, kernel, 0.7, paired)
    norms = np.linalg.norm(features.transform(rng.normal(scale=5, size=(5000, 3))), axis=1)
    assert 0.999 * features.radius <= norms.max() <= features.radius * (1 + 1e-12)
    x = rng.normal(size=(30, 2))
    features = dp.RandomFourierFeatures(2, 20_000, kernel, 0.5, paired, seed=3)
    mapped = features.transform(x)
    # Hoeffding over D bounded terms, with a union bound over the 900 entries: exceeded with probability below 1e-9.
    difference = x[:, None, :] - x[None, :, :]
    exact = {
        "gaussian": np.exp(-0.5 * np.sum(difference**2, axis=2)),
        "laplace": np.exp(-0.5 * np.sum(np.abs(difference), axis=2)),
        "cauchy": np.prod(1 / (1 + (0.5 * difference) ** 2), axis=2),
    }[kernel]
    assert np.abs(mapped @ mapped.T - exact).max() < 0.06
