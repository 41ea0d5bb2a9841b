"""A split into two parts: people stay together, and one of them moves nobody else."""

import numpy as np
import pytest

import dpconvex as dp


def test_a_split_keeps_people_together():
    whose = np.repeat([f"p{k}" for k in range(40)], 3)
    fitted, judged_ = dp.split(whose, 0.25, seed=1)
    assert sorted([*fitted, *judged_]) == list(range(120))
    assert not set(whose[fitted]) & set(whose[judged_])
    assert len(judged_) == 30
    np.testing.assert_array_equal(dp.split(whose, seed=1)[1], judged_)
    assert len(dp.split(100)[1]) == 25
    for wrong in ((whose, 0.0), (whose, "a"), (np.zeros((2, 2)), 0.5), (["a"], 0.5)):
        with pytest.raises(dp.TemplateError):
            dp.split(*wrong)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("make", ["p{}".format, int])
def test_one_person_moves_nobody_else_to_the_other_part(make, seed):
    """Else the fit's records differ in many people, and its guarantee is for one."""
    whose = [make(k) for k in range(300)]
    for other in (make(10**6), make(10**7)):
        parts = [
            {frozenset(np.array(people)[rows].tolist()) for rows in dp.split(people, 0.25, seed, adjacency)[:1]}.pop()
            for people, adjacency in (
                (whose, "add-remove"),
                ([other, *whose], "add-remove"),
                (whose, "replace-one"),
                ([*whose[:100], other, *whose[101:]], "replace-one"),
                ([other, *whose[1:]], "replace-one"),
            )
        ]
        assert parts[0] ^ parts[1] <= {other}
        for moved in parts[3:]:
            assert len(moved) == len(parts[2])
            assert len(moved - parts[2]) <= 1
    for count in (100, 1000):
        one, more = (set(dp.split(n, 0.3, seed, "add-remove")[0].tolist()) for n in (count, count + 1))
        assert one ^ more <= {count}


def test_a_split_reads_each_identifier_by_itself():
    numbers = [float(k) for k in range(300)]
    one, more = (set(dp.split(who, 0.25, 3, "add-remove")[0].tolist()) for who in (numbers, [*numbers, 2**70]))
    assert one ^ more <= {300}
    both = [entry for k in range(300) for entry in (k, float(k))]
    for adjacency in ("replace-one", "add-remove"):
        for rows in dp.split(both, 0.25, 3, adjacency):
            assert set((rows[::2] + 1).tolist()) == set(rows[1::2].tolist())
    for mixed in ([*numbers, "zed"], ["7", "07", "8"], [b"a", "a", "b"], [1.0, float("nan"), 2.0]):
        with pytest.raises(dp.errors.DomainError, match="identifier"):
            dp.split(mixed)
