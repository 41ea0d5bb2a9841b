"""What all estimators share: they take what a proof needs as options, learn nothing else from the data, and pickle as data.

A learner is declared by the attributes of its class: a problem file, and which of its options that takes.  `fit` makes features
of a table, each record by itself, declares the problem for their number, and solves it privately.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, ClassVar, dataclass_transform

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from dpconvex.core.arrays import Array
from dpconvex.core.plain_data import is_real
from dpconvex.errors import TemplateError, shorten
from dpconvex.estimators.pipelines import schema_before, warn_of_leaks
from dpconvex.estimators.tables import SHARED, explained, partitioned, plain, prepared
from dpconvex.language.privacy import Privacy
from dpconvex.language.schema import Schema
from dpconvex.language.tables import text_of
from dpconvex.language.template import Template
from dpconvex.learners.problem_files import load
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.recipe import Whitened
from dpconvex.release.budget import Budget
from dpconvex.release.release import Release
from dpconvex.release.solve import solve
from dpconvex.release.statistics import Statistics
from dpconvex.release.verify import verify

# What a fit releases, and an estimator is pickled with.
SAVED: dict[str, Any] = {"release_": Release, "statistics_": Statistics}
SECTION = re.compile(r"^(Parameters|Attributes|Examples)\n-+\n", flags=re.MULTILINE)
ENTRY = re.compile(r"^(?=\S)", flags=re.MULTILINE)


def described(own: str, inherited: str, example: str) -> str:
    """Return the docstring of a class with every parameter and attribute of its parent that it does not describe itself."""
    head, *mine = SECTION.split(inspect.cleandoc(own))
    _, *theirs = SECTION.split(inspect.cleandoc(inherited))
    written, parent = (dict(zip(parts[::2], parts[1::2], strict=True)) for parts in (mine, theirs))
    shown = head.strip()
    for title in ("Parameters", "Attributes"):
        text = written.get(title, "")
        entries = [text, *(e for e in ENTRY.split(parent.get(title, "")) if not {*named(text)} & {*named(e)})]
        shown += f"\n\n{title}\n{'-' * len(title)}\n" + "\n".join(entry.rstrip() for entry in entries if entry.strip())
    example = written.get("Examples", inspect.cleandoc(example))
    return f"{shown}\n\nExamples\n--------\n{example.rstrip()}\n" if example else f"{shown}\n"


def named(text: str) -> list[str]:
    r"""Return the names that the entries of a section describe.

    >>> named("a, b : float\n    Numbers.\nc : int\n")
    ['a', 'b', 'c']
    """
    return [
        name for names in re.findall(r"^(\w[\w, ]*?)(?: :|$)", text, flags=re.MULTILINE) for name in names.split(", ")
    ]


@dataclass_transform(eq_default=False, kw_only_default=True)
@dataclass(eq=False, repr=False, kw_only=True)
class Private(BaseEstimator):
    """What all estimators share.

    Parameters
    ----------
    epsilon, delta, adjacency : object
        The promise of one fit, as for `dpconvex.Privacy`.
    regularization : float or None
        Lambda; None means the problem file's own default.
    radius : float
        Public bound on the Euclidean norm of a record's features.
    fit_intercept : bool
        Add a constant feature, of `intercept_scaling` times the radius.  It makes records longer, by a factor of
        ``sqrt(1 + intercept_scaling**2)``, and noise grows with that.
    intercept_scaling : float
        Size of the constant feature.
    clip : bool
        Project records onto their declared domain instead of raising.
    size : int or None
        Public number of records; needed under add-remove.
    mechanism, backend, seed, whitening : object
        As for `dpconvex.solve`; with a seed, a fit is not private, and says so.  Predictions are made from original records,
        whitened or not.
    budget : Budget or None
        A ledger that each fit is recorded in before data are read.  Copies of the estimator share it.

    Attributes
    ----------
    release_ : Release
        The private fit; ``save(path)`` writes it with its schema, ``release_.save(path)`` alone.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Where the table had names; other tables must have the same, in the same order.
    schema_ : Schema or None
        That of the `SchemaEncoder`, where the estimator was fitted in a pipeline behind one and nothing else, or of partitions.
    """

    problem: ClassVar[str] = ""
    # Options that the problem file takes, besides the number of features, labels, regularization and the radius.
    options: ClassVar[tuple[str, ...]] = ()
    # The released parameter that is linear in the features; empty if there is none.
    weights: ClassVar[str] = ""
    # Whether the problem file models probabilities.
    models_probabilities: ClassVar[bool] = False
    # What a learner has of its own in place of an intercept, such as "a threshold"; empty if nothing.
    own_constant: ClassVar[str] = ""
    # An example with {name} for the name of the class, of those that have none of their own.
    example: ClassVar[str] = ""
    # Why records cannot be whitened; empty if they can.
    unwhitened: ClassVar[str] = ""

    epsilon: float = 1.0
    delta: float = 0.0
    adjacency: str = "replace-one"
    regularization: float | None = None
    radius: float = 1.0
    fit_intercept: bool = False
    intercept_scaling: float = 0.5
    clip: bool = False
    size: int | None = None
    mechanism: Any = None
    backend: Any = None
    budget: Budget | None = None
    seed: int | None = None
    whitening: Whitened = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Make a dataclass of a class, and show it with the parameters and attributes that it inherits."""
        super().__init_subclass__(**options)
        if vars(cls).get("__doc__"):
            parent = next(kind for kind in inspect.getmro(cls)[1:] if issubclass(kind, BaseEstimator))
            example = cls.example.format(name=cls.__name__) if cls.problem else ""
            cls.__doc__ = described(cls.__doc__ or "", parent.__doc__ or "", example)
        dataclass(eq=False, repr=False, kw_only=True)(cls)

    # Declaration

    def template(self, features: int) -> Template:
        """Return the template that is fitted, for a number of features."""
        given = self._declared(features) | {name: getattr(self, name) for name in self.options}
        if self.regularization is not None:
            given["regularization"] = self.regularization
        return load(self.problem, **given)

    def certificate(self, features: int, size: int) -> Certificate:
        """Verify without data, for a number of features and of records."""
        return verify(self.template(features), self.privacy(), size, self._mechanism(), whitening=self._whitening())

    def privacy(self) -> Privacy:
        """Return the promise of one fit."""
        return Privacy(self.epsilon, self.delta, self.adjacency)

    def _declared(self, features: int) -> dict[str, Any]:
        """Return what is public about records, as the problem file takes it."""
        if self.fit_intercept and self.own_constant:
            raise TemplateError(
                f"{type(self).__name__} has {self.own_constant} of its own; leave fit_intercept at False."
            )
        for name in ("radius", "intercept_scaling"):
            value = getattr(self, name)
            if not (is_real(value) and 0 < value < np.inf):
                raise TemplateError(f"{type(self).__name__}: {name} must be a positive, finite number, not {value!r}.")
        radius = self.radius * float(np.hypot(1.0, self.intercept_scaling)) if self.fit_intercept else self.radius
        return {"features": features + bool(self.fit_intercept), "radius": radius}

    def _whitening(self) -> Whitened:
        """Return the option, or refuse what an estimator cannot predict with; "auto" leaves it out."""
        if self.unwhitened and self.whitening not in (None, False, "auto"):
            raise TemplateError(f"{type(self).__name__}: leave whitening out: {self.unwhitened}.")
        return None if self.unwhitened and self.whitening == "auto" else self.whitening

    def _mechanism(self) -> Any:
        return self.mechanism

    # Data

    def fit(self, X: Any, y: Any = None) -> Any:
        """Fit privately.

        Parameters
        ----------
        X : array_like, data frame or SciPy sparse matrix, shape (n, features)
            Every row within the public radius (or ``clip=True``).  Or an array or a frame of Dask, with `y` in the same
            partitions; or `dpconvex.Partitions` of the fields x and y, without `y`.  Partitions stay where they are.
        y : array_like, shape (n,)
            Declared labels, or targets between declared bounds.

        Returns
        -------
        self
        """
        return self._keep(self._fitted(solve, self._data(X, y), backend=self.backend))

    def _data(self, X: Any, y: Any) -> Any:
        """Return the data as a template takes them, and remember what is public about them."""
        warn_of_leaks(self)
        parts = partitioned(self, X, y)
        if parts is not None:
            self.schema_ = parts.schema
            return prepared(parts, self, self.n_features_in_)
        self.schema_ = schema_before(self)
        plain("fit", "X", X)
        plain("fit", "y", y, texts=is_classifier(self))
        with explained("fit", X):
            rows, labels = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, ensure_min_samples=0)
        return {"x": self._features(rows), "y": self._target(np.asarray(labels))}

    def _target(self, y: Any) -> Any:
        return y

    def _constant(self) -> float:
        """Return the constant feature that is added to records, 0 for none."""
        return self.intercept_scaling * self.radius if self.fit_intercept else 0.0

    def _extended(self, X: Any) -> Any:
        """Add the constant feature."""
        if not self._constant():
            return X
        constant = np.full((X.shape[0], 1), self._constant())
        return sp.hstack([X, sp.csr_array(constant)]).tocsr() if sp.issparse(X) else np.hstack([X, constant])

    def _features(self, X: Any) -> Any:
        """Return features as the problem file takes them to fit."""
        return self._extended(X)

    def _fitted(self, fit: Callable[..., Any], data: Any, **options: Any) -> Any:
        """Call what releases, with the options that every release takes."""
        options |= {"size": self.size, "clip": self.clip, "seed": self.seed, "budget": self.budget}
        options |= {"label": f"fit {type(self).__name__}", "whitening": self._whitening()}
        return fit(self.template(self.n_features_in_), data, self.privacy(), self._mechanism(), **options)

    def _keep(self, release: Release) -> Any:
        self.release_ = release
        kept = self.get_params(deep=False)
        self._fitted_with = {name: kept[name] for name in kept if name not in SHARED}
        return self

    def save(self, path: str | PathLike[str], schema: Schema | None = None) -> None:
        """Write the fit to a file that says how tables are read, as ``dpconvex predict`` and ``dpconvex evaluate`` need it.

        Parameters
        ----------
        path : str or path
            Such as ``model.npz``.
        schema : Schema, optional
            What the features were encoded by; by default that of the `SchemaEncoder` in the pipeline of the fit, or that of
            its partitions.

        Raises
        ------
        TemplateError
            If no schema is known, or it does not make the features and labels of the fit.
        """
        release = self._released()
        known = getattr(self, "schema_", None) if schema is None else schema
        if not isinstance(known, Schema):
            raise TemplateError(
                f"save: say what the features were encoded by, save(path, schema), not {known!r}; a fit alone is saved by "
                "release_.save(path)."
            )
        names, declared, fitted = known.feature_names, (known.labels, known.label_bounds), self._targets(known)
        shape = getattr(self.template(self.n_features_in_).record.fields["x"], "shape", None)
        if (list(getattr(self, "feature_names_in_", names)), self.n_features_in_) != (names, len(names)):
            wrong = (
                f"the schema makes {len(names)} features ({shorten(', '.join(names))}), and these are not the "
                f"{self.n_features_in_} of the fit; pass the schema that encoded them"
            )
        elif declared != fitted:
            wrong = (
                f"the schema's labels and label_bounds, in their order, are {declared}, and those of the fit {fitted}"
            )
        elif self._constant() and known.constant:
            wrong = "the schema has a constant, and fit_intercept adds one; leave one of them out"
        elif shape != (len(names) + bool(self._constant()),):
            wrong = f"dpconvex predict does not map features as {type(self).__name__} does; save release_, and use it in Python"
        else:
            replace(release, schema=replace(known, constant=self._constant() or known.constant)).save(path)
            return
        raise TemplateError(f"save: {wrong}.")

    def _targets(self, schema: Schema) -> tuple[tuple[str, ...] | None, tuple[float, float] | None]:
        """Return the labels as texts, or the bounds of the target, that a schema must have."""
        return tuple(map(text_of, getattr(self, "classes_", ()))) or None, None

    # Predictions

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict from the released parameters; costs no privacy."""
        return self._released().predict(self._checked(X))

    def _released(self) -> Release:
        check_is_fitted(self, "release_")
        return self.release_

    def _checked(self, X: ArrayLike) -> Any:
        """Return features that fit those of the fit, with the constant one."""
        self._released()
        plain("predict", "X", X)
        with explained("predict", X):
            rows = validate_data(self, X, reset=False, accept_sparse="csr", dtype=np.float64)
        return self._extended(rows)

    def _weights(self) -> tuple[Array, Array]:
        """Return the released weights of the original features, shape (features, ...), and of the constant 1."""
        if not self.weights:
            raise AttributeError(f"{type(self).__name__} is not linear in the features, and has no coefficients.")
        release = self._released()
        released = release[self.weights]
        if release.whitening is not None:  # a score <w, A x> / |A x| has the sign of <A' w, x>
            released = release.whitening.matrix.T @ released
        if not self.fit_intercept:
            return released, np.zeros(released.shape[1:])
        return released[:-1], released[-1] * self._constant()

    # Copies

    def __sklearn_clone__(self) -> Any:
        """Return an unfitted copy that shares the budget, and remembers that it is one."""
        options = self.get_params(deep=False).items()
        copied = type(self)(**{n: value if n in SHARED else clone(value, safe=False) for n, value in options})
        copied._is_clone = True
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Return the estimator as data: what was released as the bytes of its file."""
        state: dict[str, Any] = dict(super().__getstate__())
        return state | {name: state[name].to_bytes() for name in SAVED if name in state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuild a fitted estimator, with the functions of its problem."""
        saved = {name: state.pop(name) for name in SAVED if name in state}
        super().__setstate__(state)
        if saved:
            # Parameters that were set after the fit say nothing about what was fitted.
            template = type(self)(**self._fitted_with).template(self.n_features_in_)
            for name, content in saved.items():
                setattr(self, name, SAVED[name].from_bytes(content, template))

    # Display

    def _html_repr(self) -> str:
        shown = str(super()._html_repr())
        return f"<div>{shown}{self.release_._repr_html_()}</div>" if "release_" in vars(self) else shown

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = True
        tags.target_tags.required = True
        return tags


def scores(estimator: Any) -> bool:
    """Whether an estimator tells classes apart by scores."""
    return bool(estimator._scores())


def probabilistic(estimator: Private) -> bool:
    return estimator.models_probabilities


class Scoring(Private):
    """What classifiers, and estimators that may be one, release besides labels."""

    def _scores(self) -> bool:
        return True

    @available_if(scores)  # type: ignore[untyped-decorator]
    def decision_function(self, X: ArrayLike) -> Array:
        """Return scores, shape (n,) for two classes (above 0 for the second), else (n, classes); costs no privacy."""
        found = self._released().decision_function(self._checked(X))
        return found[:, 1] - found[:, 0] if found.ndim == 2 and found.shape[1] == 2 else found

    @available_if(probabilistic)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: ArrayLike) -> Array:
        """Return probabilities, shape (n, classes); costs no privacy."""
        return self._released().predict_proba(self._checked(X))

    @available_if(probabilistic)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: ArrayLike) -> Array:
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))
