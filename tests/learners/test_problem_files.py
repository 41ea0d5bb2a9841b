"""Problem files: shipped ones are found by name, the user's own by path, and mistakes are explained."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dpconvex as dp
from dpconvex.errors import NotPrivate, TemplateError
from dpconvex.learners import problem_files

SHIPPED = ["huber_svm", "large_margin_gaussian", "logistic_regression"]

LEARNER = '''\
"""Least squares with a bounded slope.

More about it.
"""

import cvxpy as cp
import dpconvex as dp


def template(*, features, scale=1.0, name="w"):
    w = cp.Variable(features, name=name)
    return dp.Template(
        record=dp.Record(x=dp.Ball(features), y=dp.Choice([-1, 1])),
        loss=lambda x, y: scale * cp.logistic(-y * (x @ w)),
        regularizer=0.1 * cp.sum_squares(w),
    )
'''


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str = LEARNER, name: str = "mine.py") -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    return write


# Shipped problems


def test_the_shipped_problems_are_listed_with_descriptions() -> None:
    listed = dp.problems()
    assert set(SHIPPED) <= set(listed)
    assert list(listed) == sorted(listed)
    for name, line in listed.items():
        assert len(line) > 10, f"{name} needs a docstring whose first line says what it is"
        assert "\n" not in line


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_problems_load_by_name(name: str) -> None:
    template = dp.load(name, features=3)
    assert isinstance(template, dp.Template)
    assert set(template.record.fields) == {"x", "y"}
    assert template.source == (name, {"features": 3})


@pytest.mark.parametrize("name", sorted(dp.problems()))
def test_every_shipped_problem_explains_its_options(name: str) -> None:
    parameters = problem_files.options(name)
    assert "features" in parameters
    for option, parameter in parameters.items():
        assert parameter.kind is parameter.KEYWORD_ONLY
        assert option == "features" or parameter.default is not parameter.empty, f"{option} has no default"
    assert inspect.getdoc(
        problem_files.factory(problem_files.execute(problem_files.locate(name)), problem_files.locate(name))
    )


def test_listing_runs_nothing(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    file = write('"""Dangerous to run."""\nraise SystemExit("ran")\n')
    write('raise SystemExit("ran")\n', "undocumented.py")
    write("", "_private.py")
    write("not python", "notes.txt")
    monkeypatch.setattr(problem_files, "folder", lambda: file.parent)
    assert dp.problems() == {"mine": "Dangerous to run.", "undocumented": ""}


def test_a_listed_file_that_is_not_python_is_named(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("def (:\n", "broken.py")
    monkeypatch.setattr(problem_files, "folder", lambda: file.parent)
    with pytest.raises(TemplateError, match=r"broken\.py: not valid Python"):
        dp.problems()


def test_the_wheels_folder_comes_before_the_checkouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "dpconvex"
    package.mkdir()
    monkeypatch.setattr(problem_files, "PACKAGE", package)
    assert problem_files.folder() is None
    (tmp_path / "problems").mkdir()
    # A folder of that name beside an installed package is somebody else's.
    assert problem_files.folder() is None
    assert dp.problems() == {}
    with pytest.raises(TemplateError, match="Shipped are: none"):
        dp.load("logistic_regression")
    (tmp_path / "pyproject.toml").touch()
    assert problem_files.folder() == tmp_path / "problems"
    (package / "problems").mkdir()
    assert problem_files.folder() == package / "problems"


# The user's own files


@pytest.mark.parametrize("as_text", [False, True])
def test_a_users_file_loads_by_path(write: Callable[..., Path], as_text: bool) -> None:
    file = write()
    template = dp.load(str(file) if as_text else file, features=4, scale=2.0)
    assert [v.shape for v in template.variables] == [(4,)]
    assert template.source == (str(file.resolve()), {"features": 4, "scale": 2.0})


@pytest.mark.parametrize("name", ["mine.py", "./mine.py", "sub/../mine.py"])
def test_a_relative_path_is_taken_from_the_working_directory(
    name: str, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write()
    (file.parent / "sub").mkdir()
    monkeypatch.chdir(file.parent)
    assert dp.load(name, features=2).variables[0].shape == (2,)


def test_a_bare_name_never_means_a_file_of_the_working_directory(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write().parent)
    with pytest.raises(TemplateError, match=r"no problem 'mine'.*give its path, ending in \.py"):
        dp.load("mine")


def test_a_users_file_may_have_a_shipped_name(write: Callable[..., Path]) -> None:
    file = write(name="logistic_regression.py")
    mine = dp.load(file, features=2, name="mine")
    shipped = dp.load("logistic_regression", features=2)
    assert mine.variables[0].name == "mine"
    assert "mine" not in [v.name for v in shipped.variables]


def test_two_files_of_one_name_do_not_clash(write: Callable[..., Path]) -> None:
    text = "TAG = {!r}\n" + LEARNER.replace("name=name", "name=TAG")
    one, two = write(text.format("one"), "a/mine.py"), write(text.format("two"), "b/mine.py")
    factories = [problem_files.factory(problem_files.execute(f), f) for f in (one, two)]
    assert [dp.load(f, features=2).variables[0].name for f in (one, two, one)] == ["one", "two", "one"]
    assert len({f.__module__ for f in factories}) == 2
    assert "mine" not in sys.modules


def test_an_edited_file_is_read_again(write: Callable[..., Path]) -> None:
    dp.load(write(), features=2)
    template = dp.load(write(LEARNER.replace('name="w"', 'name="changed"')), features=2)
    assert template.variables[0].name == "changed"


def test_a_file_may_define_dataclasses(write: Callable[..., Path]) -> None:
    # `dataclasses` resolves postponed annotations through sys.modules.
    extra = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    b: int = 1\n"
    )
    assert dp.load(write(extra + LEARNER.split('"""', 2)[2]), features=2).variables[0].shape == (2,)


# Mistakes


def test_an_unknown_name_lists_what_exists() -> None:
    with pytest.raises(
        TemplateError, match=r"no problem 'logistic_regresion' \(did you mean 'logistic_regression'"
    ) as info:
        dp.load("logistic_regresion", features=2)
    for name in SHIPPED:
        assert name in str(info.value)


@pytest.mark.parametrize("name", ["nowhere.py", "no/where", Path("nowhere")])
def test_a_missing_file_is_named(name: Any) -> None:
    with pytest.raises(TemplateError, match=r"no file '.*where.*' \(looked from"):
        dp.load(name)


@pytest.mark.parametrize("name", [None, 3, b"logistic_regression", ["logistic_regression"]])
def test_a_name_must_be_text_or_a_path(name: Any) -> None:
    with pytest.raises(TemplateError, match="expected the name or the path"):
        dp.load(name)


def test_an_unknown_option_lists_the_options_with_defaults(write: Callable[..., Path]) -> None:
    with pytest.raises(TemplateError) as info:
        dp.load(write(), features=2, scal=3.0)
    assert str(info.value) == (
        "mine: unknown option 'scal' (did you mean 'scale'?). Options are: features, scale=1.0, name='w'."
    )


def test_a_missing_option_is_named(write: Callable[..., Path]) -> None:
    with pytest.raises(
        TemplateError, match=r"'features' has no default and must be given. Options are: features, scale"
    ):
        dp.load(write(), scale=2.0)


def test_a_file_that_takes_any_option_may(write: Callable[..., Path]) -> None:
    file = write(LEARNER.replace('name="w")', 'name="w", **more)'))
    assert dp.load(file, features=2, colour="red").source == (str(file), {"features": 2, "colour": "red"})


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
def test_a_broken_file_is_explained(write: Callable[..., Path], text: str, message: str) -> None:
    file = write(text)
    before = set(sys.modules)
    with pytest.raises(TemplateError, match=message) as info:
        dp.load(file)
    assert str(file) in str(info.value)
    assert {m for m in set(sys.modules) - before if "mine" in m and "executed" in str(info.value)} == set()


def test_a_file_with_another_ending_is_refused(write: Callable[..., Path]) -> None:
    with pytest.raises(TemplateError, match=r"not a Python file; a problem file ends in \.py"):
        dp.load(write(name="mine.txt"))


def test_the_files_own_errors_pass_through(write: Callable[..., Path]) -> None:
    with pytest.raises(NotPrivate, match="unbounded"):
        dp.load(write(LEARNER.replace("dp.Ball(features)", 'dp.Ball(features, float("inf"))')), features=2)
    with pytest.raises(NotPrivate, match="unbounded"):
        dp.load(write('import dpconvex as dp\ndp.Ball(2, float("inf"))\n'))
