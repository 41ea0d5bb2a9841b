"""Data's owners compute the distance of an answer again, by other means, and nothing that this takes leaves with the release."""

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from learners_of_tests import X, Y, in_files, logistic, records_of

import dpconvex as dp
from dpconvex.release import recheck

PURE, LOOSE, PROTECTED = dp.Privacy(1.0), dp.Privacy(1.0, 1e-5), dp.Privacy(1.0, 1e-5, "add-remove")
LEARNER, DATA = logistic(), {"x": X, "y": Y}
NAMED = dict.fromkeys(["isotonic_regression", "ordinal_regression", "quantile_fan"], "no projection")
NAMED |= dict.fromkeys(["additive_regression", "least_squares_classifier", "linear_regression"], "no minimiser")
NAMED |= {"gaussian_precision": "log_det", "smooth_hinge_svm": "declared"}


def solved(template=LEARNER, data=DATA, privacy=PURE, **options):
    with dp.rechecking():
        return dp.solve(template, data, privacy, **options)


@pytest.mark.parametrize("problem", sorted(set(dp.problems()) - {"pathak_raj_2010"}))
def test_answers_of_all_problems_are_confirmed_or_named_and_moved_ones_are_not_confirmed(problem):
    template = dp.load(problem, features=3)
    data = records_of(template)
    release = solved(template, data)
    found = release.recheck(data)
    assert NAMED.get(problem, "") in found.said
    assert found.confirmed == (problem not in NAMED)
    if found.confirmed:
        assert found.distance <= found.tolerance == release.certificate.tolerance
        assert found.said.endswith(recheck.SECRET)
        objective, theta, tolerance = recheck.KEPT[release]
        recheck.KEPT[release] = objective, theta + 3 * tolerance / np.sqrt(len(theta)), tolerance
        assert not release.recheck(data).confirmed


@pytest.mark.parametrize(
    ("problem", "privacy", "options"),
    [
        ("logistic_regression", LOOSE, {"mechanism": dp.ObjectivePerturbation("gaussian"), "whitening": True}),
        ("hinge_svm", PURE, {"mechanism": dp.OutputPerturbation(), "clip": True}),
        ("huber_svm", PROTECTED, {"mechanism": dp.OutputPerturbation("gaussian"), "size": 500}),
        ("elastic_net_logistic", PURE, {"backend": "conic"}),
    ],
)
def test_other_fits_are_confirmed_too_and_other_records_are_not(problem, privacy, options):
    clip = options.get("clip", False)
    data = {"x": 1.5 * X if clip else X, "y": Y}
    release = solved(dp.load(problem, features=3), data, privacy, **options)
    assert release.recheck(data, clip=clip).confirmed
    changed = release.recheck({**data, "y": np.where(np.arange(len(Y)) == 5, -Y, Y)}, clip=clip)
    assert "NOT CONFIRMED by 700 records" in changed.said


def test_boxes_sparse_records_no_records_and_what_is_named(tmp_path):
    box, none = logistic(constraints=lambda w: [w >= 0, w[0] <= 0.01]), {"x": np.zeros((0, 3)), "y": []}
    assert solved(box).recheck({"x": sp.csr_array(X), "y": Y}).confirmed
    assert solved(data=none, privacy=PROTECTED, mechanism=dp.OutputPerturbation(), size=10).recheck(none).confirmed
    assert "no minimiser" in solved(privacy=LOOSE, mechanism=dp.NoisyGradientDescent(clip=1.0)).recheck(DATA).said
    with pytest.raises(dp.TemplateError, match="in one place"):
        solved().recheck(in_files(tmp_path, DATA))


def test_nothing_of_it_leaves_with_the_release(tmp_path):
    release = solved()
    (problem, theta, _), count = recheck.KEPT[release], len(recheck.KEPT)
    assert problem.batch.size == 0
    release.save(tmp_path / "model.npz")
    others = [pickle.loads(pickle.dumps(release)), copy.copy(release), copy.deepcopy(release)]
    for other in [*others, dp.Release.load(tmp_path / "model.npz"), dp.solve(LEARNER, DATA, PURE)]:
        with pytest.raises(dp.TemplateError, match="not known here"):
            other.recheck(DATA)
    text = pickle.dumps(release) + release.to_bytes() + f"{release!r} {vars(release)} {release._repr_html_()}".encode()
    for number in (*theta, *problem.linear):
        forms = number.tobytes(), number.tobytes()[::-1], repr(float(number)).encode(), float(number).hex().encode()
        assert not any(form in text for form in forms)
    del release
    assert len(recheck.KEPT) == count - 1


@pytest.mark.parametrize("rule", recheck.RULES.values(), ids=recheck.RULES)
def test_slopes_of_rules(rule):
    x, step = np.array([0.3, -0.7, 2.0]), 1e-6
    ends = [[np.sum(rule(x + sign * step * unit, 0.5)[0]) for unit in np.eye(3)] for sign in (-1, 1)]
    np.testing.assert_allclose(rule(x, 0.5)[1], np.diff(ends, axis=0)[0] / (2 * step), rtol=1e-7)
