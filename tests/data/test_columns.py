"""Columns and records: what is accepted, what is refused and how, whatever holds the numbers; nothing is guessed or believed."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays
from refused import refused

import dpconvex as dp
from dpconvex.data import validation
from dpconvex.data.columns import blocks
from dpconvex.data.validation import check_labels
from dpconvex.expressions.parameter_space import Space
from dpconvex.numerics import RECORD_TOLERANCE
from dpconvex.sums.batch_loss import BatchedLoss

NORMS = (1, 2, np.inf)

balls = st.builds(dp.Ball, dim=st.integers(1, 6), radius=st.floats(1e-11, 1e6), norm=st.sampled_from(NORMS))
numbers = st.floats(-1e6, 1e6, allow_subnormal=False)
pairs = st.sampled_from([(), (1,), (3,), (2, 2)]).flatmap(lambda shape: arrays(float, (2, *shape), elements=numbers))
domains = st.one_of(balls, pairs.map(lambda pair: dp.Box(pair.min(axis=0), pair.max(axis=0))))
huge = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)

LEARNER = dp.Record(x=dp.Ball(3), y=dp.Choice(["no", "yes"]))
DATA = {"x": [[0.0, 0.6, 0.8], [0.0, 0.0, 0.0]], "y": ["yes", "no"]}


def value_rows(domain):
    return st.integers(1, 5).flatmap(lambda n: arrays(float, (n, *domain.shape), elements=huge))


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": [[0.0, np.nan, 0.0], [0, 0, 0]]}, "'x': row 0, column 1 is NaN"),
        ({"x": [[0.0, 0.0, 0.0], [0, 0, np.inf]]}, "'x': row 1, column 2 is inf"),
        ({"x": np.ma.masked_equal([[9.0, 0, 0], [0, 0, 0]], 9.0)}, "'x': entries are masked"),
        ({"x": np.zeros((3, 3))}, "different numbers of records: {'x': 3, 'y': 2}"),
        ({"y": ["yes", "maybe"]}, r"'y': 1 of 2 records .*row 1, 'maybe'.*declared are \['no', 'yes'\]"),
        ({"y": ["yes", float("nan")]}, "'y': 1 of 2 records .*row 1, nan"),
        ({"x": np.zeros((0, 3)), "y": []}, "the data are empty"),
    ],
)
def test_bad_data_are_refused(changed, message, clip):
    refused(dp.DomainError, message, LEARNER.validate, {**DATA, **changed}, clip=clip)


@pytest.mark.parametrize("kind", [float, np.float32])
@pytest.mark.parametrize("norm", NORMS)
def test_rounding_is_forgiven_and_put_right(norm, kind):
    record, edge = dp.Record(x=dp.Ball(2, radius=5.0, norm=norm)), np.array([[5.0, 0.0], [3.0, -1.0]])
    inside, outside = ((edge * (1 + c * RECORD_TOLERANCE)).astype(kind) for c in (0.5, 2))
    for form in (np.array, list):
        x = np.concatenate(list(blocks(record.validate({"x": form(inside)}).fields["x"], 64)))
        np.testing.assert_allclose(x, edge, rtol=RECORD_TOLERANCE)
        assert (np.linalg.norm(x, norm, axis=1) <= 5.0 * (1 + 1e-14)).all()
        with pytest.raises(dp.DomainError, match=r"1 of \d records lie outside"):
            list(blocks(record.validate({"x": form(outside)}).fields["x"], 64))


def test_what_is_forgiven_does_not_depend_on_types_of_other_records():
    above = np.float32(1) + np.float32(2e-7)
    for others in ([], [0.5], [np.float32(0.5), 1]):
        assert dp.Record(y=dp.Box(0.0, 1.0)).validate({"y": [above, *others]}).fields["y"][0] == 1.0


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_numbers_a_little_outside_of_wide_bounds_are_put_back(sparse, clip):
    """Next to the size of the bounds their excess is 0 in floating point."""
    record = dp.Record(x=dp.Box([0.0, -1e-200], [100.0, 1e130]))
    values = np.array([[-5e-324, 1.0], [1.0, -1e-190], [2.0, -1e-200]])
    given = sp.csr_array(values) if sparse else values
    found = record.validate({"x": given}, clip=clip).fields["x"]
    found = found.toarray() if sparse else found
    np.testing.assert_array_equal(found, [[0.0, 1.0], [1.0, -1e-200], [2.0, -1e-200]])


def test_the_excess_of_a_long_record_is_the_same_alone():
    values, ball = np.random.default_rng(0).normal(size=(20, 9000)), dp.Ball(9000)
    np.testing.assert_array_equal(ball.excess(values), [ball.excess(row[None])[0] for row in values])


@given(st.data())
def test_clipping_projects_every_finite_batch(draw):
    domain = draw.draw(domains)
    values, record = draw.draw(value_rows(domain)), dp.Record(x=domain)
    clipped = record.validate({"x": values}, clip=True).fields["x"]
    np.testing.assert_allclose(clipped, domain.project(values), rtol=1e-14)  # the last digit may tell what is outside
    np.testing.assert_allclose(domain.project(clipped), clipped, rtol=1e-14)
    assert clipped.shape == values.shape
    assert (domain.excess(clipped) <= 1e-14).all()
    for row in range(len(values)):  # each record alone
        alone = record.validate({"x": values[row : row + 1]}, clip=True).fields["x"]
        np.testing.assert_array_equal(alone[0], clipped[row])
    outside = bool((domain.excess(values) > RECORD_TOLERANCE).any())
    try:
        checked = record.validate({"x": values}).fields["x"]
    except dp.DPConvexError:
        assert outside
    else:
        assert not outside
        np.testing.assert_array_equal(checked, clipped)


TRIPLES = dp.Record(x=dp.Box(-np.full(3, 500.0), np.full(3, 500.0)))
DENSE = np.array([[0.0, 1.0, 0.0], [2.0, 0.0, -3.0], [0.0, 0.0, 0.0], [4.0, 5.0, 6.0]])


def read(column, record=TRIPLES):
    return record.validate({"x": column}).fields["x"]


SPOILT = {
    "csr: an index too large": lambda m: m.indices.__setitem__(0, 10**9),
    "csc: a negative index": lambda m: m.indices.__setitem__(0, -1),
    "bsr: an index too large": lambda m: m.indices.__setitem__(0, 10**9),
    "csr: a start too large": lambda m: m.indptr.__setitem__(-1, 10**9),
    "csr: too few numbers": lambda m: setattr(m, "data", np.array([1.0])),
    "csr: text": lambda m: setattr(m, "data", m.data.astype(str)),
    "coo: a row too large": lambda m: m.coords[0].__setitem__(0, 4),
    "coo: too few numbers": lambda m: setattr(m, "data", np.array([1.0])),
    "lil: an index too large": lambda m: m.rows[0].__setitem__(0, 7),
    "dok: an index too large": lambda m: m._dict.__setitem__((0, 9), 1.0),
}


@pytest.mark.parametrize("what", SPOILT)
def test_indices_that_do_not_fit_are_refused(what):
    matrix = sp.coo_array(DENSE).asformat(what.partition(":")[0])
    SPOILT[what](matrix)
    refused(dp.DomainError, r"are inconsistent|expected real numbers", read, matrix)


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_repeated_entries_count_together(form):
    def repeated(entries):
        parts = (np.asarray(entries), np.ones(len(entries), dtype=np.int64), [0, len(entries)])
        found = sp.csr_array(parts, shape=(1, 3)).asformat(form)
        found.has_canonical_format = True
        return found

    assert read(repeated(np.array([100, 100], np.int8))).toarray().tolist() == [[0, 200, 0]]
    refused(dp.DomainError, "by 100 %", read, repeated([0.5] * 4), dp.Record(x=dp.Ball(3)))
    refused(dp.DomainError, "row 0, column 1 is inf", read, repeated([1e308, 1e308]))


MASKED = np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False])
TEXTS = np.array([["0.1", "0.2", "0.3"]], dtype=object)


@pytest.mark.parametrize(
    "column",
    [
        *((MASKED, MASKED), [[np.ma.masked, 1.0, 2.0]], TEXTS, np.array([[np.datetime64("2020-01-01")] * 3])),
        np.array([[np.datetime64("2020-01-01")] * 3], dtype=object),
        *(np.array([[1.0, np.timedelta64(5, "ns"), 2.0]], dtype=object), np.zeros((1, 3), dtype=[("a", float)])),
        *(np.array([["a"]], dtype=np.dtypes.StringDType()), [[1.0, 2.0], [3.0]], object()),
        np.array([["1e400", 0, 0]], dtype=np.longdouble),
    ],
    ids=lambda column: type(column).__name__,
)
def test_what_is_no_number_is_not_guessed(column):
    for clip in (False, True):
        refused(dp.DomainError, None, TRIPLES.validate, {"x": column}, clip=clip)


def test_no_warning_about_a_masked_entry_comes_before_payment():
    TRIPLES.check_form({"x": [[np.ma.masked, 1.0, 2.0]]})


@pytest.mark.parametrize(
    ("values", "column"),
    [
        *(([0, 1], ["0", "1"]), ([b"a", b"b"], ["a", "b"]), (["a", "b"], np.array([b"a", b"b"]))),
        *(([0, 1], [np.nan, 1]), ([0, 1], np.ma.array([0, 1], mask=[True, False])), ([0, 1], np.array([0, 1j]))),
        *(([0, 2**53], np.array([0, 2**53 + 1])), ([0.1, 0.2], np.array([0.1, 0.2], dtype=np.float32))),
        ([0, 1], np.array([0, -1], dtype=np.int8).view(np.uint8)),
    ],
)
def test_labels_that_were_not_declared_are_refused(values, column):
    refused(dp.DomainError, None, check_labels, "y", dp.Choice(values).values, column)


@pytest.mark.parametrize("column", [[1, 0], [1.0, 0.0], [True, False], np.array([True, False]), np.float16([1, 0])])
@pytest.mark.parametrize("values", [[0, 1], [False, True], [0.0, 1.0], range(9)], ids=repr)
def test_equal_numbers_are_one_label(values, column):
    np.testing.assert_array_equal(check_labels("y", dp.Choice(values).values, column), [1, 0])


@pytest.mark.parametrize("domain", [*(dp.Ball(3, 2, norm) for norm in NORMS), dp.Box([-1] * 3, [2] * 3)], ids=repr)
def test_sparse_records_are_checked_and_clipped_as_dense_ones(domain):
    record, values = dp.Record(x=domain), np.array([[0, 0, 0], [2.0, 0, 0], [0, 1.5, -1.5], [5.0, 0, 5.0]])
    outside, thin = domain.excess(values) > 0, sp.csr_array(values)
    refused(dp.DomainError, rf"{outside.sum()} of 4 records lie outside .* row 3, by", record.validate, {"x": thin})
    clipped = record.validate({"x": thin}, clip=True).fields["x"]
    assert sp.issparse(clipped)
    assert clipped.toarray() == pytest.approx(record.validate({"x": values}, clip=True).fields["x"])


def test_zeros_of_a_sparse_column_are_numbers_like_others():
    record, ones = dp.Record(x=dp.Box(np.full(2, 1.0), np.full(2, 2.0))), sp.csr_array(np.ones((3, 2)))
    for check in (record.check_form, record.validate):
        refused(dp.DomainError, "zeros are outside", check, {"x": ones})


@pytest.mark.parametrize("domain", [dp.Ball(3, radius=2.0), dp.Ball(3, norm=1), dp.Box([-1] * 3, [1] * 3)], ids=repr)
@pytest.mark.parametrize("form", [np.array, sp.csr_array, lambda x: x.astype(np.float32)])
def test_a_record_outside_leaves_the_others_as_they_are(form, domain):
    record = dp.Record(x=domain)
    x = domain.project(domain.sample(300, np.random.default_rng(0)) * (1 + 1e-12))
    found = []
    for last in (np.zeros(3), np.full(3, 9.0)):
        column = record.validate({"x": form(np.vstack([x, last]))}, clip=True).fields["x"]
        found.append(column.toarray() if sp.issparse(column) else np.asarray(column[np.arange(301)]))
    np.testing.assert_array_equal(found[0][:-1], found[1][:-1])
    assert domain.excess(found[1]).max() <= domain.slack


# Records that change after they were checked.
def columns_of(x, path):
    np.save(path, x)
    mapped = np.load(path, mmap_mode="r+")
    return {"array": x, "memory-mapped": mapped, "sparse": sp.csr_array(np.eye(5, 3)), "list": list(x)}


@pytest.mark.parametrize("copied", [True, False], ids=["small", "large"])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("form", ["array", "memory-mapped", "sparse", "list"])
def test_nothing_is_read_outside_of_the_domain_whatever_changes(form, clip, copied, tmp_path, monkeypatch):
    if not copied:
        monkeypatch.setattr("dpconvex.data.validation.LARGEST_COPY", 0)
    x, labels, template = np.zeros((5, 3)), np.ones(5), dp.load("logistic_regression", features=3)
    columns = columns_of(x, tmp_path / "x.npy")
    batch = template.record.validate({"x": columns[form], "y": labels}, clip=clip)
    loss = BatchedLoss(template, Space(template.variables), batch)
    before = loss.value_and_gradient(np.ones(3))[1]
    x[3, 1] = columns["memory-mapped"][3, 1] = 40.0
    columns["sparse"].data *= 40.0
    labels[:] = -1
    np.testing.assert_array_equal(batch.group, 1)
    if form in ("sparse", "list") or (copied and form == "array"):
        np.testing.assert_array_equal(loss.value_and_gradient(np.ones(3))[1], before)
    elif clip:
        for block in [*blocks(batch.fields["x"], 2), batch.fields["x"][np.array([3])]]:
            assert np.linalg.norm(block, axis=1).max() <= 1 + 1e-14
        assert np.linalg.norm(loss.value_and_gradient(np.ones(3))[1] - before) <= 1
    else:
        for read in (lambda: loss.value_and_gradient(np.ones(3)), lambda: batch.fields["x"][np.array([3])]):
            refused(dp.DomainError, "lie outside", read)


def test_the_largest_entry_is_a_norm_by_its_name():
    assert dp.Ball(2, norm="inf") == dp.Ball(2, norm=np.inf)
    refused(dp.TemplateError, "norm must be", dp.Ball, 2, norm="2")


# Columns in single precision stay so on their way through an estimator, and answers are the same to the last bit
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(3000, 20)).astype(np.float32)
ROWS /= np.linalg.norm(ROWS, axis=1, keepdims=True)  # some a little longer than 1, by rounding


def test_a_large_column_is_kept_as_it_is_and_a_change_of_the_original_does_not_reach_it(monkeypatch):
    record, rows = dp.Record(x=dp.Ball(20)), ROWS.copy()
    small = record.validate({"x": rows}).fields["x"]
    monkeypatch.setattr(validation, "LARGEST_DOUBLED", 0)
    large = record.validate({"x": rows}).fields["x"]
    assert (small.dtype, large.column.dtype) == (np.float64, np.float32)
    rows[:] = 0.0
    np.testing.assert_array_equal(large[:], small)
    assert np.linalg.norm(ROWS.astype(float), axis=1).max() > 1 >= np.linalg.norm(large[:], axis=1).max() - 1e-15
    rows[7, 3] = 2.0
    refused(dp.DomainError, r"worst: row 7, by 100 %", record.validate, {"x": rows})
    rows[7, 3] = np.nan
    refused(dp.DomainError, "row 7, column 3 is NaN", record.validate, {"x": rows}, clip=True)
