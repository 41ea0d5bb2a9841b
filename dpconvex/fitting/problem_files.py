"""Problem files: declared learners, one per file, shipped with the toolkit or written by the user.

A file defines ``template``, a function of keyword options that returns a `Template`; `problems` reads its text without a run.
"""

import ast
import copyreg
import hashlib
import inspect
import math
import os
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from dpconvex.errors import DPConvexError, TemplateError, shorten
from dpconvex.fitting.release import Release, json_source
from dpconvex.fitting.statistics import Statistics
from dpconvex.model.template import Template
from dpconvex.util.arguments import COUNT, NOT_NEGATIVE, PATH, POSITIVE, check_fields, require

PACKAGE = Path(__file__).resolve().parent.parent
# Package data of an installed wheel, or beside the package in a checkout.
FOLDER = next((p for p in (PACKAGE / "problems", PACKAGE.parent / "problems") if p.is_dir()), PACKAGE / "problems")

# Targets of log links are scaled so that a score of 0 predicts a twentieth of the largest target, near most skewed means.
LARGEST = math.exp(3.0)
# Widths of smoothing of pinball losses. Steps need little; exact minimisers need more noise for a smaller width: theirs are at
# least LEAST_WIDTH, and SMOOTHED over the records for each parameter and unit of epsilon.
NARROW, LEAST_WIDTH, WIDE, SMOOTHED = 0.005, 0.01, 0.1, 40.0
# Problems with the option `constant` that need none: other parameters, or features, take an intercept's place.
WITHOUT_INTERCEPT = {"additive_logistic", "additive_regression", "bradley_terry", "conditional_logit", "kernel_svm"}

# Kinds of options of shipped problems by their annotations; options that may be negative.
NUMBERS = {str(float): NOT_NEGATIVE, str(float | None): NOT_NEGATIVE.or_none}
SIGNED = ("constant", "lower", "upper", "trace", "scale")


def takes_intercept(problem: str) -> bool:
    """Return whether a problem that comes with the toolkit should be fitted with an intercept."""
    return problem in shipped() and "constant" in options(problem) and problem not in WITHOUT_INTERCEPT


def usual_width(steps: bool, parameters: int, fit: Any) -> float:
    """Return the width for adaptive steps, or for exact minimisers with the `size`, `epsilon` and `most` of `fit`."""
    if steps:
        return NARROW
    check_fields(fit, "", size=COUNT.or_none, epsilon=POSITIVE, most=COUNT.or_none)
    exact = SMOOTHED * parameters * (fit.most or 1) / (fit.size * fit.epsilon) if fit.size else WIDE
    return min(max(exact, LEAST_WIDTH), WIDE)


def shipped() -> dict[str, Path]:
    return {file.stem: file for file in sorted(FOLDER.glob("[a-z]*.py"))}


def problems() -> dict[str, str]:
    """Return the shipped problems in alphabetical order: their names, as `load` takes them, and first lines of docstrings."""
    found = {name: ast.get_docstring(ast.parse(file.read_bytes())) for name, file in shipped().items()}
    return {name: (text or "").partition("\n")[0] for name, text in found.items()}


def load(name_or_path: str | os.PathLike[str], **options: object) -> Template:
    """Load the template of a problem file.  Its ``source`` holds the name (or absolute path) and the options.

    Parameters
    ----------
    name_or_path : str or path
        The name of a shipped problem, or the path of your own file.  A string is a path if it ends in ``.py`` or has a
        path separator in it.
    **options
        Options of the file's ``template`` function.  By default there are as many ``classes`` as ``labels``.

    Examples
    --------
    >>> import dpconvex as dp
    >>> [v.shape for v in dp.load("logistic_regression", features=3).variables]
    [(3,)]
    """
    file = locate(name_or_path)
    function = factory(file)
    known = inspect.signature(function)
    if "classes" in known.parameters and isinstance(labels := options.get("labels"), list | tuple):
        options.setdefault("classes", len(labels))
    try:
        known.bind(**options)
    except TypeError as error:
        listed = [k if p.default is p.empty else f"{k}={p.default!r}" for k, p in known.parameters.items()]
        raise TemplateError(f"{file.stem}: {error}. Options are: {', '.join(listed) or 'none'}.") from error
    for option, value in options.items() if file.parent == FOLDER else ():
        if str(known.parameters[option].annotation) in NUMBERS and option not in SIGNED:
            NUMBERS[str(known.parameters[option].annotation)].check(file.stem, **{option: value})
    try:
        template = function(**options)
    except DPConvexError:
        raise
    except Exception as error:  # the caller's options caused the error
        told = f"cannot be declared with {shorten(str(options))}: {type(error).__name__}: {error}"
        raise TemplateError(f"{file.stem} {told}.") from error
    if not isinstance(template, Template):
        raise TemplateError(f"{file}: template() must return a dpconvex.Template, not {type(template).__name__}.")
    name = file.stem if file.parent == FOLDER else str(file.resolve())
    return template if template.source else template.with_parts(source=(name, dict(options)))


def options(name_or_path: str | os.PathLike[str]) -> Mapping[str, inspect.Parameter]:
    """Return the options of a problem file, in the order of its declaration, with defaults and annotations."""
    return inspect.signature(factory(locate(name_or_path))).parameters


def reduced(found: Release | Statistics) -> tuple[Any, ...]:
    """Return the pickle of a release for a shipped problem: the bytes of its file, and name and options of the problem."""
    source = json_source(found.source if isinstance(found, Release) else getattr(found.template, "source", None))
    if source is None or source[0] not in shipped():
        return tuple(found.__reduce_ex__(4))  # fails for functions that are not at the top of a module
    return restored, (type(found), found.to_bytes(), *source)


def restored(kind: Any, content: bytes, name: str, options: dict[str, Any]) -> Any:
    return kind.from_bytes(content, load(name, **options))


for _kind in (Release, Statistics):
    copyreg.pickle(_kind, reduced)  # type: ignore[arg-type]


def locate(name_or_path: str | os.PathLike[str]) -> Path:
    PATH.check("load", name_or_path=name_or_path)
    text = os.fspath(name_or_path)
    if isinstance(name_or_path, os.PathLike) or text.endswith(".py") or os.sep in text or "/" in text:
        file = Path(text).expanduser()
        require(file.is_file(), f"load: there is no file {str(file)!r} (looked from {Path.cwd()}).")
        return file
    known = shipped()
    near = [name for name in known if name.startswith(text)] or get_close_matches(text, known, n=1)
    said = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(known)}."
    require(text in known, f"load: no problem {text!r} (for a file, give its path, ending in .py): {said}")
    return known[text]


def factory(file: Path) -> Callable[..., Any]:
    """Return `template` of a problem file, run as a module of its own: files of one name in several folders do not collide."""
    digest = hashlib.sha256(os.fsencode(file.resolve())).hexdigest()[:16]
    module = ModuleType(f"dpconvex_problem_{file.stem}_{digest}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # dataclasses and pickled functions of the file look their module up by name
    try:
        SourceFileLoader(module.__name__, str(file)).exec_module(module)
    except BaseException as error:
        sys.modules.pop(module.__name__)
        if isinstance(error, DPConvexError) or not isinstance(error, Exception):
            raise
        raise TemplateError(f"{file}: cannot be executed: {type(error).__name__}: {error}.") from error
    function: Callable[..., Any] | None = getattr(module, "template", None)
    if not callable(function):
        raise TemplateError(f"{file}: no function `template`; define one: `def template(*, features, ...)`.")
    return function
