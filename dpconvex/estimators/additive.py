"""Additive models: the score of a record is the sum of released curves of its columns, some with declared shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cache, partial
from itertools import accumulate, pairwise
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag
from scipy.special import expit
from sklearn.base import is_classifier

from dpconvex.certificates.certificate import DescentCertificate
from dpconvex.data.columns import Stored
from dpconvex.data.encoded import with_origin
from dpconvex.data.record import require_arrays
from dpconvex.data.schema import Schema, check_unit
from dpconvex.data.tables import table_of
from dpconvex.errors import TemplateError
from dpconvex.estimators.base import Private
from dpconvex.estimators.classifiers import PrivateClassifier
from dpconvex.estimators.regressors import PrivateRegressor, takes_steps
from dpconvex.estimators.shapes import CURVATURE, MONOTONE, Shape, round_to_shape
from dpconvex.estimators.tables import one_column, plain
from dpconvex.features.splines import KEPT, SplineBlock, SplineEncoder
from dpconvex.features.transformers import hide_records, table_tags
from dpconvex.fitting.onnx_export import Graph, additive_scores, write_model
from dpconvex.fitting.release import Release
from dpconvex.fitting.solve import solve, statistics
from dpconvex.fitting.statistics import Statistics
from dpconvex.mechanisms.sufficient_statistics import SufficientStatistics
from dpconvex.util.arguments import recast, require
from dpconvex.util.arrays import Array

CURVES = "knots", "pairs", "monotone", "curvature"  # Options that `save` writes
CONSTANT = 0.5  # Constant feature of steps, beside rows of length 1: curves need not fit the level of the target


class AdditiveModel(Private):
    """Base class of additive models.

    Parameters
    ----------
    schema : Schema
        Public declaration of the table.  `fit` and predictions take the table itself.  `radius` is not used: encoded rows have
        length at most 1.
    knots, pairs : object
        As for `SplineEncoder`.
    monotone : mapping of str to {"increasing", "decreasing"}, optional
        Numeric columns with monotone curves.  Curves and scores are monotone exactly, to the last bit.
    curvature : mapping of str to {"convex", "concave"}, optional
        Numeric columns with convex or concave curves, exactly so at their knots.

    Attributes
    ----------
    shapes_ : dict of str to Shape
        The released curves, by column, or by both names of a pair.  Values of a curve have mean 0 over its nodes.
    """

    own_constant: ClassVar[str] = "a constant"
    kept: ClassVar[float] = KEPT

    schema: Schema | None = field(default=None, kw_only=False)
    knots: Mapping[str, Sequence[float]] | None = None
    pairs: Sequence[tuple[str, str]] = ()
    monotone: Mapping[str, str] | None = None
    curvature: Mapping[str, str] | None = None

    # Declaration

    @property
    def encoder(self) -> SplineEncoder:
        """The public map from tables to features."""
        return SplineEncoder(self.schema, self.knots, self.pairs, self.kept)

    def _blocks(self) -> list[SplineBlock]:
        """Return the blocks of features; raise unless declared shapes belong to numeric columns outside pairs."""
        blocks = self.encoder.blocks()
        able = {block.name for block in blocks if len(block.axes[0].knots)} - {n for pair in self.pairs for n in pair}
        for option, known in (("monotone", MONOTONE), ("curvature", CURVATURE)):
            for name, shape in self._shapes(option, known).items():
                what = f"one of {list(known)} for numeric columns outside pairs, here {sorted(map(str, able))}"
                require(name in able and shape in known, f"{option} must be {what}, not {shape!r} for {name!r}.")
        # Curves with a shape keep all features, so that some curves satisfy its constraints strictly.
        every = (SplineBlock(tuple(replace(axis, kept=0.0) for axis in block.axes)) for block in blocks)
        return [full if any(self._signs(block)) else block for full, block in zip(every, blocks, strict=True)]

    def _signs(self, block: SplineBlock) -> tuple[int, int]:
        """Return the required signs of the slopes and of their differences; 0 means no requirement."""
        rising, bending = self._shapes("monotone", MONOTONE), self._shapes("curvature", CURVATURE)
        return MONOTONE.get(rising.get(block.name, ""), 0), CURVATURE.get(bending.get(block.name, ""), 0)

    def _shapes(self, option: str, known: Mapping[str, int]) -> dict[str, str]:
        """Return the declared shapes by column."""
        given = {} if getattr(self, option) is None else getattr(self, option)
        how = f"a mapping such as {{'age': {next(iter(known))!r}}}"
        require(isinstance(given, Mapping), f"{option} must be {how}, not {given!r}.")
        return dict(given)

    def _inequalities(self) -> Array:
        """Return the rows a, of unit length, of the constraints ``a @ w >= 0`` for declared shapes, shape (rows, features)."""
        blocks, parts = self._blocks(), []
        for block, root in zip(blocks, self.encoder.roots(blocks), strict=True):
            (monotone, curvature), knots = self._signs(block), block.axes[0].knots
            rows = np.zeros((0, root.shape[1]))
            if monotone or curvature:
                slopes = np.diff(root[: len(knots)], axis=0) / np.diff(knots)[:, None]
                bends = curvature * np.diff(slopes, axis=0)
                if curvature:  # the slopes are sorted, so the smallest decides the sign of all
                    slopes = slopes[:1] if monotone * curvature > 0 else slopes[-1:]
                rows = np.concatenate([monotone * slopes] * abs(monotone) + [bends] * abs(curvature))
            parts.append(rows / np.linalg.norm(rows, axis=1, keepdims=True))
        return np.asarray(block_diag(*parts))

    def _declared(self, features: int) -> dict[str, Any]:
        blocks, columns = self._blocks(), len(self.schema.features) if self.schema else 0
        require(features == columns, f"{type(self).__name__}: the schema has {columns} columns, not {features}.")
        width = sum(root.shape[1] for root in self.encoder.roots(blocks))
        return super()._declared(width) | {"radius": 1.0, "shapes": self._inequalities().tolist() or None}

    # Data

    def fit(self, X: Any, y: Any = None, *, unit: Any = None) -> Any:
        """Fit privately to a table that the schema declares, and to labels or targets, shape (n,)."""
        return self._fit(X, y, unit)

    def fit_features(self, x: Array, y: Any, *, unit: Any = None) -> Any:
        """Fit as `fit` does, to the features of a table that `features` returned."""
        return self._fit(None, y, unit, x)

    def _fit(self, X: Any, y: Any, unit: Any, x: Array | None = None) -> Any:
        self._weights_of_features, moved = self._released_weights(self._data(X, y, x), unit)
        roots = self.encoder.roots(self._blocks())
        ends = pairwise([0, *accumulate(root.shape[1] for root in roots)])
        parts = [(root - root.mean(axis=0)) @ moved[a:b] for root, (a, b) in zip(roots, ends, strict=True)]
        return self._drawn([np.linalg.norm(part, axis=1) for part in parts])

    def _drawn(self, deviations: Sequence[Array]) -> Any:
        """Compute `shapes_` from the weights, with the noise deviations of each curve; return self."""
        blocks, self.shapes_, self._deviations, start = self._blocks(), dict[Any, Shape](), deviations, 0
        self._level, half = self._scale() if isinstance(self, PrivateRegressor) else (0.0, 1.0)
        self._level += half * CONSTANT * float(self.release_.get("b", 0.0))
        for block, root, spread in zip(blocks, self.encoder.roots(blocks), deviations, strict=True):
            values = half * (root @ self._weights_of_features[start : start + root.shape[1]])
            start += root.shape[1]
            self._level += float(values.mean())
            values = values - values.mean()
            if any(self._signs(block)):
                knots = block.axes[0].knots
                values[: len(knots)] = round_to_shape(values[: len(knots)], knots, *self._signs(block))
            self.shapes_[block.name] = Shape(block, values, half * np.asarray(spread))
        return self

    def features(self, X: Any) -> Array:
        """Return the features of a table, for `release_`, shape (n, features)."""
        return with_origin(self.encoder.rows(self._blocks(), self.encoder.encoded(X, self.clip or None)), self.schema)

    def _features_of(self, X: Any) -> Stored:
        """Return the features of a table as a column that is computed and checked when it is read, after the charge."""
        assert self.schema is not None
        given, roots = table_of(X), self.encoder.roots(self._blocks())
        given.check_names(list(self.schema.features), self.schema.known)
        shape, made = (given.size, sum(root.shape[1] for root in roots)), cache(partial(self.features, given))
        return with_origin(Stored(np.arange(given.size), lambda rows: made()[rows], shape), self.schema)

    def released(self) -> Release:
        """Return the release of the weights with the options of the curves, as `save` writes it."""
        found, curves = self._released(), {name: getattr(self, name) for name in CURVES}
        name, options = self.template(self.n_features_in_).source or ("", {})
        source = (name, options | {"curves": curves | {"deviations": self._deviations}})
        learnt = dict(found.parameters) | {"w": self._weights_of_features}
        return replace(found, parameters=learnt, source=source, schema=self.schema)

    def save(self, path: Any, schema: Any = None) -> None:
        """Write the curves, their options and the schema to a file for `dpconvex predict` and `dpconvex evaluate`."""
        self.released().save(path)

    @classmethod
    def of_schema(cls, schema: Schema, **options: Any) -> Any:
        """Return an unfitted estimator with the labels, or the bounds of the target, of a schema."""
        known: dict[str, Any] = {"classes": tuple(schema.labels)} if schema.labels else {"bounds": schema.label_bounds}
        return cast(Any, cls)(schema, **known, **options)

    @classmethod
    def read(cls, release: Release) -> Any:
        """Return the fitted estimator of a release that `save` wrote."""
        name, options = release.source or ("", {})
        curves, schema = cast(Any, options.get("curves")), cast(Schema, release.schema)
        fits = schema is not None and name == cls.problem and curves
        require(fits, f"{cls.__name__} reads only files that this estimator, or dpconvex fit, saved.")
        known = {"delta": getattr(release.spent, "delta", 0.0), "regularization": options.get("regularization")}
        said = f"{cls.__name__}: the options of the curves in this file are damaged"
        with recast(said, TypeError, ValueError, LookupError, kind=TemplateError):
            model = cls.of_schema(schema, **{name: curves[name] for name in CURVES}, **known)
            model._noted(schema)
            model.release_, model._weights_of_features = release, release["w"]
            return model._drawn(curves["deviations"])

    def _noted(self, schema: Schema) -> None:
        self.schema_ = schema
        self._check_labels(list(schema.labels or ()))
        self.feature_names_in_ = np.array(list(schema.features), dtype=object)
        self.n_features_in_ = len(self.feature_names_in_)

    def _released_weights(self, data: Any, unit: Any = None) -> tuple[Array, Array]:
        """Release the weights of the features; return them, and the matrix that maps standard noise to their noise, at most."""
        self.release_ = release = self._fitted(solve, data, backend=self.backend, unit=unit)
        weights, certificate = np.array(release["w"]), release.certificate
        deviation = certificate.noise_shift / np.sqrt(len(weights))
        if isinstance(certificate, DescentCertificate):
            deviation = certificate.noise_scale * np.sqrt(certificate.sum_of_steps(power=2))
        return weights, deviation * np.eye(len(weights)) if release.noise is None else release.noise

    @hide_records()
    def _data(self, X: Any, y: Any, x: Array | None = None) -> Any:
        require_arrays(type(self).__name__, X)
        self._blocks()
        assert self.schema is not None
        check_unit(self.unit, self.schema)
        self._noted(self.schema)
        plain("fit", "y", y, is_classifier(self), cells=False)
        return {"x": self._features_of(X) if x is None else x, "y": self._target(one_column(self._in_units(y)))}

    @property
    def intercept_(self) -> Any:
        """Constant added to the sum of the curves."""
        self._released()
        return float(self._level)

    def _scores(self, X: Any) -> Array:
        """Return the sum of the curves, in a fixed order, because rounded sums in one order keep monotonicity."""
        self._released()
        encoded = self.encoder.encoded(X, self.clip or None)
        total = np.full(len(next(iter(encoded.values()))), self._level)
        for shape in self.shapes_.values():
            total += shape(encoded)
        return total

    def to_onnx(self, path: Any) -> None:
        """Write the curves as an ONNX graph that reads the columns of a table (extra ``onnx``); outputs are as for releases."""
        graph, classes = Graph(self._released().status), None
        if is_classifier(self):
            classes = vars(self)["classes_"].tolist()
        score = additive_scores(graph, self.encoder._schema(), self.shapes_.values(), self._level)
        score = score if classes is None else graph("Mul", score, self._in_order(np.ones(1)))
        bounds = self._interval() if isinstance(self, PrivateRegressor) else None
        write_model(graph, path, score, (), classes, classes is not None, bounds)

    def __sklearn_tags__(self) -> Any:
        return table_tags(super().__sklearn_tags__())


class AdditiveClassifier(
    AdditiveModel, PrivateClassifier, problem="additive_logistic", weights="w", models_probabilities=True
):
    """Fit additive logistic regression for two classes, with declared shapes as constraints: `problems/additive_logistic.py`.

    Parameters
    ----------
    classes : sequence, optional
        Declared labels, by default those of the schema.  Curves and their declared shapes belong to the score of the second
        label.

    Attributes
    ----------
    classes_ : ndarray
        The declared classes, sorted, as scikit-learn expects them.

    Examples
    --------
    >>> import dpconvex as dp
    >>> schema = dp.Schema({"age": (0, 100), "ward": {"levels": ["a", "b"]}}, "sick", ["no", "yes"])
    >>> table = {"age": np.arange(3000) % 100, "ward": ["a", "b"] * 1500}
    >>> sick = np.where(table["age"] > 60, "yes", "no")
    >>> options = {"epsilon": 3.0, "delta": 1e-5, "classes": ("no", "yes"), "seed": 0}
    >>> model = dp.AdditiveClassifier(schema, monotone={"age": "increasing"}, **options).fit(table, sick)
    >>> model.predict({"age": [10, 90], "ward": ["a", "a"]})
    array(['no', 'yes'], dtype='<U3')
    """

    classes: Sequence[Any] | None = None

    def _labels(self) -> tuple[Any, ...]:
        known = self.schema and self.schema.labels
        return tuple(known) if self.classes is None and known else super()._labels()

    def decision_function(self, X: Any) -> Array:
        """Return scores, shape (n,), above 0 for the second of `classes_`; costs no privacy."""
        return self._in_order(self._scores(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict from the released curves; costs no privacy."""
        return np.asarray(self.classes_[(self.decision_function(X) > 0).astype(int)])

    def predict_proba(self, X: Any) -> Array:
        """Return probabilities of both classes, shape (n, 2); costs no privacy."""
        scores = self.decision_function(X)
        return np.stack([expit(-scores), expit(scores)], axis=1)


class AdditiveRegressor(AdditiveModel, PrivateRegressor, problem="additive_regression", weights="w", kept=0.05):
    """Fit additive least squares with declared shapes as constraints: `problems/additive_regression.py`.

    Without a delta, or by name, `SufficientStatistics` releases the sums of the data once; fits to them cost nothing.  There is
    a sum for each pair of features, so fewer features are kept (`SplineEncoder.kept`) than for a classifier.

    Parameters
    ----------
    bounds : pair of float
        Public bounds of the target.

    Attributes
    ----------
    statistics_ : Statistics
        The sums, if they were released.

    Examples
    --------
    >>> import dpconvex as dp
    >>> table = {"dose": np.arange(3000) / 3000}
    >>> options = {"epsilon": 3.0, "delta": 1e-5, "bounds": (0, 2), "seed": 0}
    >>> schema = dp.Schema({"dose": (0, 1)}, "effect", label_bounds=(0, 2))
    >>> model = dp.AdditiveRegressor(schema, curvature={"dose": "concave"}, **options).fit(table, table["dose"] ** 0.5)
    >>> bool(abs(model.predict({"dose": [0.25]})[0] - 0.5) < 0.1)
    True
    """

    def _check_labels(self, labels: Any) -> None:
        known = self.schema and self.schema.label_bounds
        fits = not known or tuple(known) == self._interval()
        said = f"bounds are {self._interval()}, but the schema declares label_bounds {known}: pass bounds=schema."
        require(fits, said)

    def _declared(self, features: int) -> dict[str, Any]:
        return super()._declared(features) | ({"constant": CONSTANT, "capped": True} if takes_steps(self) else {})

    def _ways(self) -> dict[str, Any]:
        return {"mechanism": self.mechanism or (None if self.delta else SufficientStatistics("gamma"))}

    def _released_weights(self, data: Any, unit: Any = None) -> tuple[Array, Array]:
        if not isinstance(self._ways()["mechanism"], SufficientStatistics):
            return super()._released_weights(data, unit)
        self.statistics_: Statistics = self._fitted(statistics, data, unit=unit)
        self.release_ = self.statistics_.fit()
        return self.release_["w"], self.statistics_.noise_map(self.release_)

    def predict(self, X: Any) -> Array:
        """Predict from the released curves, in the units of the target and within its bounds; costs no privacy."""
        return np.clip(self._scores(X), *self._interval())
