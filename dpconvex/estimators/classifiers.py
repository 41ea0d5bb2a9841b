"""Classifiers: each names its problem file and what of it can be set."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, type_of_target

from dpconvex.errors import DomainError, TemplateError
from dpconvex.estimators.base import Private, linear, none_of, probabilistic, same_labels, scores_of_two
from dpconvex.language.partitions import Partitions
from dpconvex.language.schema import Schema
from dpconvex.language.template import Template
from dpconvex.language.validation import check_labels
from dpconvex.learners.fourier_features import RandomFourierFeatures
from dpconvex.learners.problem_files import load
from dpconvex.mechanisms.recipe import Whitened

Array = NDArray[np.float64]


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateClassifier(ClassifierMixin, Private):
    """What classifiers share.

    Parameters
    ----------
    classes : sequence
        Labels that may occur, declared: a list that is read off the data would be an answer that nobody paid for.

    Attributes
    ----------
    classes_ : ndarray
        The declared classes.
    """

    two_classes: ClassVar[bool] = True

    classes: Sequence[Any] = (0, 1)

    def _declared(self) -> dict[str, Any]:
        labels = declared_classes(self.classes)
        return {"classes": len(labels), "labels": labels}

    def _data(self, X: Any, y: Any) -> Any:
        labels = declared_classes(self.classes)
        data = super()._data(X, y)
        if isinstance(data, Partitions):  # whoever reads one looks at its labels
            if data.schema is not None and not set(data.schema.labels or ()) <= set(labels):
                texts = list(data.schema.labels or ())
                raise DomainError(
                    f"fit: the schema's labels are the texts {texts}, and the classes {list(labels)}; pass classes={texts}."
                )
            self.classes_ = np.array(list(labels))
            return data
        try:
            check_classification_targets(data["y"])
            kind = type_of_target(data["y"])
        except TypeError as error:  # scikit-learn sorts them
            kinds = ", ".join(sorted({type(label).__name__ for label in data["y"]}))
            raise DomainError(
                f"fit: the labels in y are of several types ({kinds}); leave records without a label out, and make all of them "
                "texts, or all of them numbers."
            ) from error
        if self.two_classes and len(labels) == 2 and kind == "multiclass":
            raise DomainError(
                "Only binary classification is supported. The type of the target is multiclass, and two classes are declared: "
                f"{list(labels)!r}. SoftmaxRegression, for one, takes any number of classes."
            )
        try:
            check_labels("y", labels, data["y"])
        except DomainError as error:
            raise DomainError(
                f"{error} Declare every label that may occur, known without these data: {type(self).__name__}(classes=[...])."
            ) from error
        self.classes_ = np.array(list(labels))
        return data

    def _check_schema(self, schema: Schema) -> None:
        super()._check_schema(schema)
        same_labels(self.classes_, schema)

    def decision_function(self, X: ArrayLike) -> Array:
        """Return scores, shape (n,) for two classes (above 0 for the second), else (n, classes); costs no privacy."""
        return scores_of_two(self._released().decision_function(self._checked(X)))

    @available_if(probabilistic)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: ArrayLike) -> Array:
        return self._released().predict_proba(self._checked(X))

    @available_if(probabilistic)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: ArrayLike) -> Array:
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    @property
    def coef_(self) -> Array:
        """Released coefficients, shape (1, features) for two classes with one score, else (classes, features).

        With whitening they are those of original records: they predict alike, and scores are theirs times a positive number that
        depends on the record (`decision_function` has these).
        """
        self._has_weights("coef_")
        return np.atleast_2d(self._weights()[0].T)

    @property
    def intercept_(self) -> Array:
        """Released intercepts, shape (1,) or (classes,); zeros where none is fitted."""
        self._has_weights("intercept_")
        return np.atleast_1d(self._weights()[1])

    def _has_weights(self, name: str) -> None:
        if not linear(self):
            raise AttributeError(f"{type(self).__name__} is not linear in the features, and has no {name}.")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = not self.two_classes
        tags.classifier_tags.poor_score = True
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class LogisticRegression(PrivateClassifier):
    """Logistic regression, two classes: `problems/logistic_regression.py`.

    Examples
    --------
    >>> import dpconvex as dp
    >>> X, y = [[0.6, 0.1], [-0.6, 0.2]] * 200, ["yes", "no"] * 200
    >>> model = dp.LogisticRegression(epsilon=5.0, classes=("no", "yes"), seed=0).fit(X, y)
    >>> model.predict([[0.5, 0.0], [-0.5, 0.0]])
    array(['yes', 'no'], dtype='<U3')
    >>> bool(model.predict_proba([[0.5, 0.0]])[0, 1] > 0.9)  # columns in the order of the classes
    True
    """

    problem = "logistic_regression"
    weights = "w"

    def _models_probabilities(self) -> bool:
        return True


@dataclass(eq=False, repr=False, kw_only=True)
class LinearSVC(PrivateClassifier):
    """Support vector machine with the Huber hinge, two classes: `problems/huber_svm.py`.

    Examples
    --------
    >>> import dpconvex as dp
    >>> X, y = [[0.6, 0.1], [-0.6, 0.2]] * 200, ["yes", "no"] * 200
    >>> model = dp.LinearSVC(epsilon=5.0, classes=("no", "yes"), seed=0).fit(X, y)
    >>> model.predict([[0.5, 0.0], [-0.5, 0.0]])
    array(['yes', 'no'], dtype='<U3')
    >>> model.coef_.shape
    (1, 2)
    """

    problem = "huber_svm"
    weights = "w"


@dataclass(eq=False, repr=False, kw_only=True)
class HuberSVC(LinearSVC):
    """Another name of `LinearSVC`."""


@dataclass(eq=False, repr=False, kw_only=True)
class SoftmaxRegression(PrivateClassifier):
    """Softmax regression, any number of classes: `problems/softmax_regression.py`.

    Examples
    --------
    >>> import dpconvex as dp
    >>> X, y = [[0.6, 0.1], [-0.6, 0.2], [0.0, -0.7]] * 200, ["a", "b", "c"] * 200
    >>> model = dp.SoftmaxRegression(epsilon=5.0, classes=("a", "b", "c"), seed=0).fit(X, y)
    >>> model.predict(X[:3]), model.predict_proba(X[:3]).shape
    (array(['a', 'b', 'c'], dtype='<U1'), (3, 3))
    """

    problem = "softmax_regression"
    weights = "W"
    two_classes = False

    def _models_probabilities(self) -> bool:
        return True


@dataclass(eq=False, repr=False, kw_only=True)
class LeastSquaresClassifier(PrivateClassifier):
    """Least squares on the classes, any number of them, from one release of sums: `problems/least_squares_classifier.py`.

    Examples
    --------
    >>> import dpconvex as dp
    >>> X, y = [[0.6, 0.1], [-0.6, 0.2], [0.0, -0.7]] * 200, ["a", "b", "c"] * 200
    >>> model = dp.LeastSquaresClassifier(epsilon=5.0, delta=1e-6, classes=("a", "b", "c"), seed=0)
    >>> model.fit(X, y).predict(X[:3])
    array(['a', 'b', 'c'], dtype='<U1')
    """

    problem = "least_squares_classifier"
    weights = "W"
    two_classes = False


@dataclass(eq=False, repr=False, kw_only=True)
class OrdinalRegressor(PrivateClassifier):
    """One score and ordered thresholds, for grades: `problems/ordinal_regression.py`.

    Parameters
    ----------
    classes : sequence
        The grades that may occur, from the lowest; declared, as nothing is read off the data.

    Examples
    --------
    >>> import dpconvex as dp
    >>> X, y = [[-0.8], [0.0], [0.8]] * 300, ["poor", "fair", "good"] * 300
    >>> model = dp.OrdinalRegressor(epsilon=10.0, classes=("poor", "fair", "good"), seed=0).fit(X, y)
    >>> model.predict([[-0.9], [0.05], [0.9]])
    array(['poor', 'fair', 'good'], dtype='<U4')
    """

    problem = "ordinal_regression"
    two_classes = False

    def decision_function(self, X: ArrayLike) -> Array:
        """Return the score of each record, shape (n,); costs no privacy.

        For two grades it is counted from the threshold, above 0 for the second; for more the thresholds are ``release_["b"]``.
        """
        rows, release = self._checked(X), self._released()
        if release.whitening is not None:
            rows = release.whitening(rows)
        scores, thresholds = np.asarray(rows @ release["w"]), release["b"]
        return scores - thresholds[0] if len(thresholds) == 1 else scores


@dataclass(eq=False, repr=False, kw_only=True)
class LargeMarginGaussian(PrivateClassifier):
    """Large-margin Gaussian classifier, any number of classes: `problems/large_margin_gaussian.py`.

    Parameters
    ----------
    competitors : {"summed", "soft"} or None
        How a record's competing classes are put together; None means "soft" for more than two classes.
    fit_intercept : False
        The learner has a constant of its own.

    Examples
    --------
    >>> import dpconvex as dp
    >>> X, y = [[0.7], [0.1], [-0.5]] * 200, ["out", "in", "out"] * 200  # no line tells these apart
    >>> model = dp.LargeMarginGaussian(epsilon=20.0, classes=("in", "out"), seed=0).fit(X, y)
    >>> model.predict(X[:3])
    array(['out', 'in', 'out'], dtype='<U3')
    >>> [mean.shape for mean in model.means_], [precision.shape for precision in model.precisions_]
    ([(1,), (1,)], [(1, 1), (1, 1)])
    """

    problem = "large_margin_gaussian"
    options: ClassVar[tuple[str, ...]] = ("competitors",)
    own_constant = "a constant"
    two_classes = False

    competitors: str | None = None

    @property
    def precisions_(self) -> list[Array]:
        """Precision matrix P of each class's Gaussian, shape (features, features), in the units of the features.

        A class's score is ``-(x - mean)' P (x - mean) / 2`` and a constant; the papers' Psi is half of P.
        """
        self._has_gaussians("precisions_")
        return [precision_and_mean(self.release_[f"Phi_{c}"], self.radius)[0] for c in range(len(self.classes_))]

    @property
    def means_(self) -> list[Array]:
        """Centre of each class's Gaussian, shape (features,).

        They are where a class is scored highest, for telling classes apart: not the means of its records.
        """
        self._has_gaussians("means_")
        return [precision_and_mean(self.release_[f"Phi_{c}"], self.radius)[1] for c in range(len(self.classes_))]

    def _has_gaussians(self, name: str) -> None:
        if self._released().whitening is not None:
            raise AttributeError(
                f"the Gaussians are those of whitened records, and there are no {name} of original ones."
            )


@dataclass(eq=False, repr=False, kw_only=True)
class KernelSVC(PrivateClassifier):
    """Kernel machine through random Fourier features, two classes: `problems/kernel_svm.py`.

    Mapped records have length 1, whatever the `radius`.

    Parameters
    ----------
    components : int
        Number of random frequencies.
    kernel : {"gaussian", "laplace", "cauchy"}
    gamma : float
        Scale of the kernel.
    feature_seed : int
        Public seed of the frequencies.

    Examples
    --------
    >>> import dpconvex as dp
    >>> X, y = [[0.8], [0.1], [-0.6]] * 200, ["out", "in", "out"] * 200  # no line tells these apart
    >>> model = dp.KernelSVC(epsilon=20.0, classes=("in", "out"), gamma=5.0, components=20, seed=0).fit(X, y)
    >>> model.predict(X[:3])
    array(['out', 'in', 'out'], dtype='<U3')
    """

    problem = "kernel_svm"

    components: int = 50
    kernel: str = "gaussian"
    gamma: float = 1.0
    feature_seed: int = 0

    def template(self, features: int) -> Template:
        """Return the template that is fitted, for a number of features."""
        given = self._declared() | {name: getattr(self, name) for name in ("components", "kernel", "gamma")}
        if self.regularization is not None:
            given["regularization"] = self.regularization
        return load(self.problem, features=features + bool(self.fit_intercept), seed=self.feature_seed, **given)

    def _whitening(self) -> Whitened:
        return none_of(self, "its problem predicts from features that are not mapped yet")

    def _map(self, X: Any) -> Any:
        mapping = RandomFourierFeatures(X.shape[1], self.components, self.kernel, self.gamma, seed=self.feature_seed)
        return mapping.transform(X)


def declared_classes(classes: Any) -> tuple[Any, ...]:
    if isinstance(classes, str) or not isinstance(classes, Iterable):
        raise TemplateError(
            f"classes must be the labels that may occur, such as classes=('no', 'yes'), not {classes!r}."
        )
    found = tuple(classes)
    if len(found) < 2 or (all(isinstance(label, Hashable) for label in found) and len(set(found)) < len(found)):
        raise TemplateError(
            f"classes must be two or more different labels, such as classes=('no', 'yes'), not {classes!r}."
        )
    return found


def precision_and_mean(Phi: Array, radius: float) -> tuple[Array, Array]:
    """Return precision and centre of a Gaussian from its matrix in the coordinates (x / radius, 1) / sqrt(2)."""
    block, side = Phi[:-1, :-1], Phi[:-1, -1]
    return block / radius**2, -radius * (np.linalg.pinv(block, hermitian=True) @ side)
