"""The experiments on excess risk: small runs of both commands, and what their tables must say."""

from pathlib import Path

import dpconvex as dp
from benchmarks.papers import lecture, risk


def test_the_lecture_in_small() -> None:
    points = list(lecture.measure(2, (0.3,), (1, 10)))
    assert [(p.steps, p.way) for p in points] == [(t, way) for t in (1, 10) for way in lecture.WAYS]
    for p in points:
        assert 0 < p.excess.mean() <= p.bound
        assert (p.excess <= p.likely).all()
        # What the lecture's noise gives for a replaced record is more than it promises.
        assert (p.true_delta > 10 * lecture.DELTA) == (p.way == "lecture")
    assert lecture.table(points).count("\n") == 1 + len(points)


def test_the_papers_bounds_are_looser_than_ours_for_the_same_noise(tmp_path: Path) -> None:
    template = dp.load("logistic_regression", features=9, regularization=risk.REGULARIZATION)
    theirs = list(risk.chaudhuri("logistic", template, 3))
    mine = list(risk.ours("logistic in a ball", risk.in_a_ball(), (-1, 1), 2))
    assert [m.source for m in theirs] == ["lemma 3", "lemma 5"]
    assert [m.mechanism for m in mine] == ["noisy gradient descent"]
    for m in theirs:
        assert m.other is not None
        assert 10 * m.bound < m.other
    for m in mine:
        assert m.expected is not None
        assert (m.excess > -1e-7).all()
        assert m.excess.mean() <= m.expected <= m.bound
    assert "lemma 5" in risk.second_table(theirs)
    assert "0 of 2" in risk.first_table(mine)
    assert "theorem 4" in risk.sample_sizes()
    risk.draw(mine, theirs, tmp_path / "risk.png")
    assert (tmp_path / "risk.png").stat().st_size > 10_000
