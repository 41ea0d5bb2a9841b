"""Problem files: shipped ones are found by name, the user's own by path, and mistakes are explained."""

import pytest

import dpconvex as dp


def written(folder, text):
    (folder / "mine.py").write_text(text, encoding="utf-8")
    return folder / "mine.py"


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
