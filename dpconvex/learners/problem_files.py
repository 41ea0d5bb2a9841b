"""Finds and loads problem files: declared learners, one per file, shipped with the toolkit or the user's own.

A problem file defines ``template``, a function of keyword options that returns a `Template`; the first line of its
docstring is its description.  Nothing in a file runs before it is loaded: `problems` only reads the text.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from dpconvex.errors import DPConvexError, TemplateError, shorten

if TYPE_CHECKING:
    from dpconvex.language.template import Template

PACKAGE = Path(__file__).resolve().parent.parent


def folder() -> Path | None:
    """Return the folder of the shipped problems: package data of an installed wheel, or the checkout's own."""
    installed, checkout = PACKAGE / "problems", PACKAGE.parent
    if installed.is_dir():
        return installed
    # Beside an installed package lie other people's packages, and one of them may be called `problems`.
    if (checkout / "pyproject.toml").is_file() and (checkout / "problems").is_dir():
        return checkout / "problems"
    return None


def problems() -> dict[str, str]:
    """List the shipped problems: name (what `load` takes) to the first line of the file's docstring, in alphabetical order."""
    return {name: description(file) for name, file in shipped().items()}


def shipped() -> dict[str, Path]:
    home = folder()
    return {file.stem: file for file in sorted(home.glob("[a-z]*.py"))} if home is not None else {}


def load(name_or_path: str | os.PathLike[str], **options: object) -> Template:
    """Declare the learner of a problem file; its ``source`` holds the name (or absolute path) and the options.

    Parameters
    ----------
    name_or_path : str or path
        The name of a shipped problem, or the path of your own file.  A string is a path if it ends in ``.py`` or has a
        path separator in it.
    **options
        Options of the file's ``template`` function.

    Examples
    --------
    >>> import dpconvex as dp
    >>> [v.shape for v in dp.load("logistic_regression", features=3).variables]
    [(3,)]
    """
    from dpconvex.language.template import Template

    file = locate(name_or_path)
    function = factory(file)
    check(options, function, file)
    try:
        template = function(**options)
    except DPConvexError:
        raise
    except Exception as error:  # what a problem cannot do with its options is an error of whoever gave them
        listed = ", ".join(f"{name} = {value!r}" for name, value in options.items())
        raise TemplateError(
            f"{file.stem} cannot be declared with {shorten(listed)}: {type(error).__name__}: {error}."
        ) from error
    if not isinstance(template, Template):
        raise TemplateError(f"{file}: template() must return a dpconvex.Template, not {type(template).__name__}.")
    if template.source is None:
        named = file.stem if file.parent == folder() else str(file.resolve())
        template.source = (named, dict(options))
    return template


def options(name_or_path: str | os.PathLike[str]) -> Mapping[str, inspect.Parameter]:
    """Return the options of a problem file, in the order of its declaration, with defaults and annotations."""
    return inspect.signature(factory(locate(name_or_path))).parameters


def locate(name_or_path: str | os.PathLike[str]) -> Path:
    """Find the file of a problem: a user's path, or a shipped name."""
    if not isinstance(name_or_path, str | os.PathLike):
        raise TemplateError(f"load: expected the name or the path of a problem, not {name_or_path!r}.")
    text = os.fspath(name_or_path)
    if isinstance(name_or_path, os.PathLike) or text.endswith(".py") or os.sep in text or "/" in text:
        file = Path(text).expanduser()
        if not file.is_file():
            raise TemplateError(f"load: there is no file {str(file)!r} (looked from {Path.cwd()}).")
        return file
    # By name alone: to parse files is slow, and some Pythons cannot do it in several threads at a time.
    known = shipped()
    if text not in known:
        raise TemplateError(
            f"load: there is no problem {text!r}{suggestion(text, known)}. Shipped are: {', '.join(known) or 'none'}. "
            "To load a file of your own, give its path, ending in .py."
        )
    return known[text]


def execute(file: Path) -> ModuleType:
    """Run a problem file as a module of its own; files of one name in different folders do not meet."""
    digest = hashlib.sha256(os.fsencode(file.resolve())).hexdigest()[:16]
    name = f"dpconvex_problem_{file.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, file, loader=None)
    if spec is None or spec.loader is None:
        raise TemplateError(f"{file}: not a Python file; a problem file ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickled functions of the file look their module up by name
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name)
        if isinstance(error, DPConvexError) or not isinstance(error, Exception):
            raise
        raise TemplateError(f"{file}: cannot be executed: {type(error).__name__}: {error}.") from error
    return module


def factory(file: Path) -> Callable[..., object]:
    """Return the ``template`` function of a problem file."""
    function = getattr(execute(file), "template", None)
    if not callable(function):
        raise TemplateError(
            f"{file}: no function `template`. A problem file defines `def template(*, features, ...)` with keyword "
            "options and returns a dpconvex.Template."
        )
    return cast(Callable[..., object], function)


def check(given: Mapping[str, object], function: Callable[..., object], file: Path) -> None:
    """Raise if the given options do not fit the function's signature; the message lists the options it has."""
    signature = inspect.signature(function)
    try:
        signature.bind(**given)
    except TypeError as error:
        named = signature.parameters
        near = [suggestion(name, named) for name in given if name not in named][:1]
        listed = [k if p.default is p.empty else f"{k}={p.default!r}" for k, p in named.items()]
        raise TemplateError(
            f"{file.stem}: {error}{''.join(near)}. Options are: {', '.join(listed) or 'none'}."
        ) from error


def description(file: Path) -> str:
    """Return the first line of a file's docstring, read without running the file; empty if there is none."""
    docstring = ast.get_docstring(ast.parse(file.read_bytes(), filename=str(file)))
    return docstring.splitlines()[0].strip() if docstring else ""


def suggestion(word: str, known: Mapping[str, object]) -> str:
    """Return a question that names the nearest known word, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
