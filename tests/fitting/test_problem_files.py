"""Problem files: shipped ones are found by name, the user's own by path, and mistakes are explained."""

import pytest

import dpconvex as dp

LEARNER = """\
import cvxpy as cp
import dpconvex as dp


def template(*, features, scale=1.0, name="w"):
    w = cp.Variable(features, name=name)
    return dp.Template(
        record=dp.Record(x=dp.Ball(features), y=dp.Choice([-1, 1])),
        loss=lambda x, y: scale * cp.logistic(-y * (x @ w)),
        regularizer=0.1 * cp.sum_squares(w),
    )
"""


def written(folder, text):
    (folder / "mine.py").write_text(text, encoding="utf-8")
    return folder / "mine.py"


def test_names_and_options_that_are_unknown_are_explained(tmp_path, monkeypatch):
    file = written(tmp_path, LEARNER)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(dp.TemplateError, match=r"no problem 'mine'.*give its path, ending in \.py"):
        dp.load("mine")  # a bare name never means a file of the working directory
    with pytest.raises(dp.TemplateError) as info:
        dp.load(file, features=2, scal=3.0)
    options = "Options are: features, scale=1.0, name='w'"
    assert str(info.value) == f"mine: got an unexpected keyword argument 'scal'. {options}."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"no function `template`.*def template\(\*, features"),
        ("template = 3\n", "no function `template`"),
        ("def template():\n    return 3\n", r"must return a dpconvex\.Template, not int"),
        ("def (:\n", "cannot be executed: SyntaxError"),
        ("import no_such_module_anywhere\n", "cannot be executed: ModuleNotFoundError: .*no_such_module_anywhere"),
        ("1 / 0\n", "cannot be executed: ZeroDivisionError"),
    ],
)
def test_a_broken_file_is_explained(tmp_path, text, message):
    file = written(tmp_path, text)
    with pytest.raises(dp.TemplateError, match=message) as info:
        dp.load(file)
    assert str(file) in str(info.value)
