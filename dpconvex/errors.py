"""Errors and warnings, and the texts of messages.

Every error of the toolkit derives from `DPConvexError`. Errors of verification have reason, place and remedy as separate
attributes, for programs.
"""

import re
import sys
import warnings
import weakref
from traceback import walk_stack

# Messages quote values that a caller passed, but must not show records.
ARRAY = re.compile(r"\barray\(\[(?:[^()]|\([^()]*\))*\)")


def short(array: re.Match[str]) -> str:
    return array[0] if len(array[0]) < 40 else "an array"


class DPConvexError(Exception):
    """Base class of every error that the toolkit raises on purpose."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*(ARRAY.sub(short, part) if isinstance(part, str) else part for part in parts))


class TemplateError(DPConvexError, ValueError):
    """Raised if a declaration or an argument is malformed: a wrong type, name or shape, an unknown option."""


class DomainError(DPConvexError, ValueError):
    """Raised if a record lies outside its declared domain, or the data have another form than declared.

    The message is for the owner of the data: it may name rows and values, and is not fit for release.
    """


class PrivacyWarning(UserWarning):
    """Warns that a further step is not private or costs more than it seems, or that a fit protects or tells little."""


SAID: weakref.WeakKeyDictionary[object, set[str]] = weakref.WeakKeyDictionary()  # in each search of scikit-learn
BETWEEN = ("dpconvex", "numpy", "sklearn", "joblib")  # warnings point to the first frame outside


def warn(said: str) -> None:
    """Warn at the line of the user that called this package, directly or not; once within a search or a cross-validation."""
    frames = [frame for frame, _ in walk_stack(sys._getframe(1))]
    modules = [frame.f_globals.get("__name__", "").partition(".")[0] for frame in frames]
    # Locals of the user's frames are not read: a copy would stay on the frame.
    searching = zip(frames, modules, strict=True)
    owners = [frame.f_locals.get("self") for frame, module in searching if module in ("sklearn", "joblib")]
    kinds = [{kind.__name__ for kind in type(owner).__mro__} for owner in owners]
    searches = [owner for owner, names in zip(owners, kinds, strict=True) if names & {"BaseSearchCV", "Parallel"}]
    told = SAID.setdefault(searches[-1], set()) if searches else set()
    outside = [module not in BETWEEN for module in modules[:-1]]
    if said not in told:
        told.add(said)
        warnings.warn(said, PrivacyWarning, stacklevel=2 + [*outside, True].index(True))


class NotConverged(DPConvexError, RuntimeError):
    """Raised if the solver did not reach the certified accuracy; nothing is released."""


class WorkersLost(DPConvexError, RuntimeError):
    """Raised if the cluster with the records failed before an answer.  Nothing is released, and the charge stays."""


class BudgetExceeded(DPConvexError):
    """Raised if a release would exceed the remaining privacy budget."""


class NotPrivate(DPConvexError):
    """Raised if no proof of privacy was found.

    Parameters
    ----------
    reason : str
        What is wrong.
    expression : object, optional
        The offending subexpression; its text is the *where* of the message.
    remedy : str, optional
        What to write instead.
    """

    def __init__(self, reason: str, expression: object = None, remedy: str | None = None) -> None:
        self.reason, self.place = reason, expression
        self.expression = None if expression is None else shorten(as_written(text_of(expression)))
        self.remedy = remedy
        lines = [reason]
        if self.expression is not None:
            lines.append(f"  where: {self.expression}")
        if remedy is not None:
            lines.append(f"  remedy: {remedy}")
        super().__init__("\n".join(lines))


class MissingRule(NotPrivate):
    """Raised if the toolkit has no rule for a subexpression, so that it proves nothing about the loss."""


def shown(value: object) -> str:
    """Return the text of a short value, or the type of another one: an argument may be the data, passed by mistake.

    >>> shown(1.0), shown({"x": [1.0] * 100})
    ('1.0', 'a dict')
    """
    plain = isinstance(value, str | int | float | type | None) and len(repr(value)) < 60
    return repr(value) if plain else with_article(type(value).__name__)


def with_article(name: str) -> str:
    return f"an {name}" if name[0] in "AEIOaeio" else f"a {name}"


def text_of(expression: object) -> str:
    """Return the text of an expression, or its type if CVXPY has no text for it."""
    try:
        return str(expression)
    except (TypeError, ValueError, AttributeError):
        return f"an expression of {type(expression).__name__}"


# CVXPY prints the names of its classes; users know those of its functions.
CLASS = re.compile(r"\b(Power|Pnorm|GeoMean|QuadForm|MatrixFrac|normNuc|Trace|Sum|Prod|Hstack|Vstack)(?:Approx)?\(")
CALL_ARGUMENTS = r"((?:[^()]|\((?:[^()]|\([^()]*\))*\))*?)"  # the arguments of a call
TIDIED = {
    r"Promote\(([^(),]+), \([^()]*\)\)": r"\1",
    r", None, False\)": ")",
    r" \+ --": " + ",
    r" \+ -": " - ",
    rf"\breshape\({CALL_ARGUMENTS}, \(1,\), F\)": r"\1",  # a number that was made a vector of one entry
    rf"\bquad_over_lin\({CALL_ARGUMENTS}, 1\.0\)": r"sum_squares(\1)",
}


def as_written(text: str) -> str:
    """Return an expression as its user would have written it, from the text that CVXPY prints.

    >>> as_written("PowerApprox(y + -x, 2.0) + --1.0 + quad_over_lin(w + -x, 1.0, None, False)")
    'power(y - x, 2.0) + 1.0 + sum_squares(w - x)'
    >>> as_written("Hstack(reshape(x @ (A + B), (1,), F), reshape(1.0, (1,), F))")
    'hstack(x @ (A + B), 1.0)'
    """
    text = CLASS.sub(lambda found: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", found[1]).lower() + "(", text)
    for printed, written in TIDIED.items():
        text = re.sub(printed, written, text)
    return text


def shorten(text: str, limit: int = 160) -> str:
    """Cut a long text in the middle, so that both ends of an expression stay readable.

    >>> shorten("abcdefghij", limit=7)
    'ab...ij'
    """
    text = " ".join(text.split())
    if len(text) <= limit:
        return text
    half = (limit - 3) // 2
    return f"{text[:half]}...{text[-half:]}"
