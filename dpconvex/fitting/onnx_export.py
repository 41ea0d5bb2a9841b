"""Models as ONNX graphs in double precision, from tables or features to scores, labels, probabilities or predictions."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import softmax

from dpconvex.data.schema import Schema
from dpconvex.data.schema_columns import Column, Levels
from dpconvex.data.tables import objects, text_of
from dpconvex.errors import TemplateError
from dpconvex.util.arguments import recast
from dpconvex.util.arrays import Array
from dpconvex.util.places import replaceable_path, write_atomically

Function = Callable[[Array], Any]
SAME = 1e-9  # Relative error up to which functions count as equal
OPSET, ML_OPSET = 18, 3


class Graph:
    """An ONNX graph: each call adds a node and returns the name of its result; arrays among the arguments become constants."""

    def __init__(self, status: str) -> None:
        with recast("to_onnx needs the package onnx: pip install 'dpconvex[onnx]'", ImportError):
            import onnx
        self.onnx, self.status, self.nodes, self.constants = onnx, status, list[Any](), list[Any]()
        self.inputs, self.outputs = list[Any](), list[Any]()

    def __call__(self, kind: str, *arguments: Any, **attributes: Any) -> str:
        names, result = list(map(self._name, arguments)), f"{kind}_{len(self.nodes)}"
        domain = "ai.onnx.ml" if kind == "LabelEncoder" else ""
        self.nodes.append(self.onnx.helper.make_node(kind, names, [result], domain=domain, **attributes))
        return result

    def _name(self, argument: Any) -> str:
        if isinstance(argument, str):
            return argument
        name = f"constant_{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.asarray(argument), name))
        return name

    def input(self, name: str, width: int, texts: bool = False) -> str:
        """Add an input of shape (n, width), with numbers or texts."""
        self.inputs.append(self._value(name, "STRING" if texts else "DOUBLE", [None, width]))
        return name

    def output(self, name: str, result: str, kind: str = "DOUBLE", shape: Sequence[int | None] = (None,)) -> None:
        self.nodes.append(self.onnx.helper.make_node("Identity", [result], [name]))
        self.outputs.append(self._value(name, kind, shape))

    def _value(self, name: str, kind: str, shape: Sequence[int | None]) -> Any:
        return self.onnx.helper.make_tensor_value_info(name, getattr(self.onnx.TensorProto, kind), shape)

    def save(self, path: Any) -> None:
        helper = self.onnx.helper
        graph = helper.make_graph(self.nodes, "dpconvex", self.inputs, self.outputs, self.constants)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="dpconvex", ir_version=8)
        helper.set_model_props(model, {"privacy": self.status})
        self.onnx.checker.check_model(model)
        write_atomically(replaceable_path(path), model.SerializeToString())


def encoded(graph: Graph, schema: Schema, name: str) -> str:
    """Add an input for a column of a table; return the name of its encoding, shape (n, features).

    Texts are encoded by a list of levels, numbers by their bounds; days count from the first of year 1. In a learnt column,
    unreadable entries count as missing.
    """
    column: Column = schema.features[name]
    learnt = schema.learnt is not None and name in schema.learnt.columns
    known, count = column.missing is not None, len(column.names(name))
    absent = column.encode(str, objects([None]), False) if known else np.full((1, count), np.nan)
    if isinstance(column, Levels):
        levels = [text_of(level) for level in column.content]
        other = getattr(column, "other", False) and column.encode(str, objects([f"other than {levels}"]), False)
        unknown = other if other is not False else absent if learnt else np.full((1, count), np.nan)
        table = np.concatenate([column.encode(str, objects(levels), False), absent, unknown])
        texts, places = graph.input(name, 1, texts=True), list(range(len(levels) + 1))
        keys = {"keys_strings": [*levels, ""], "values_int64s": places, "default_int64": len(places)}
        return graph("Squeeze", graph("Gather", table, graph("LabelEncoder", texts, **keys)), np.array([1]))
    (lower, upper), given = column.ends, graph.input(name, 1)
    given = graph("Where", graph("IsInf", given), np.float64(np.nan), given) if learnt else given
    inside = graph("Min", graph("Max", given, np.float64(lower)), np.float64(upper))
    share = graph("Div", graph("Sub", inside, np.float64(lower)), np.float64(upper - lower))
    place = graph("Sub", share, np.float64(0.5))
    return graph("Where", graph("IsNaN", given), absent, graph("MatMul", place, np.eye(1, count)))


def features_of(graph: Graph, schema: Schema) -> str:
    """Add inputs for the columns of a table, and return the name of the features that `Schema.encode` makes."""
    rows = graph("Concat", *(encoded(graph, schema, name) for name in schema.features), axis=1)
    if schema.unit:
        length = graph("Sqrt", graph("ReduceSum", graph("Mul", rows, rows), np.array([1])))
        length = graph("Where", graph("Equal", length, np.float64(0)), np.float64(1), length)
        rows = graph("Mul", rows, graph("Div", np.float64(1), length))
    else:
        rows = graph("Mul", rows, np.float64(1 / schema.norm_bound))
    return graph("Pad", rows, np.array([0, 0, 0, 1]), np.float64(schema.constant)) if schema.constant else rows


def affine(function: Function, width: int) -> tuple[Array, Array] | None:
    """Return A and b if ``function(x) = x @ A + b`` at public points, otherwise None."""
    first = np.asarray(function(np.zeros((1, width))), dtype=float)
    matrix = np.asarray(function(np.eye(width)), dtype=float) - first
    points = public_points(width)
    return (matrix, first[0]) if alike(function(points), points @ matrix + first) else None


def public_points(width: int) -> Array:
    """Return public points of many lengths, so that a function with a clip is not taken for an affine one."""
    return np.asarray(np.random.default_rng(0).uniform(-1, 1, (64, width)) * np.logspace(-2, 3, 64)[:, None])


def alike(one: Any, other: Array) -> bool:
    found = np.asarray(one)
    same = found.shape == other.shape and found.dtype.kind in "fiu"
    return same and bool((np.abs(found - other) <= SAME * np.maximum(1.0, np.abs(other))).all())


def width_of(function: Function, widths: Sequence[int]) -> int:
    """Return the number of features that a function takes, among the sizes of its parameters; raise if there is none."""
    for width in widths:
        with suppress(Exception):  # a function of a user can raise anything
            if len(function(np.zeros((2, width)))) == 2:
                return width
    raise TemplateError("to_onnx: the number of features is not known; fit named columns, or a table with a schema.")


def export(
    path: Any,
    status: str,
    functions: Sequence[Function | None],
    labels: Sequence[Any] | None,
    width: int | Sequence[int],
    schema: Schema | None = None,
    scaled: bool = False,
    bounds: tuple[float, float] | None = None,
) -> None:
    """Write a model with scores, or predictions, that are affine in its features; raise `TemplateError` for other models.

    The functions are for predictions, scores and probabilities. Predictions are clipped to `bounds`. If `scaled`, predictions
    in [-1, 1] are mapped to the label bounds of the schema, and clipped to these.
    """
    predict, scores, probabilities = functions
    graph, function = Graph(status), scores or predict
    if function is None:
        raise TemplateError("to_onnx: there is no function to predict with; load the release with its template.")
    found = affine(function, count := width if isinstance(width, int) else width_of(function, width))
    if found is None:
        raise TemplateError("to_onnx: scores or predictions must be linear in the features, with a constant.")
    rows = graph.input("x", count) if schema is None else features_of(graph, schema)
    result = graph("Add", graph("MatMul", rows, found[0]), found[1])
    if scaled and scores is None and schema is not None and schema.label_bounds is not None:
        lower, upper = bounds = schema.label_bounds
        result = graph("Add", graph("Mul", result, np.float64((upper - lower) / 2)), np.float64((lower + upper) / 2))
    points = public_points(count)
    known = points @ found[0] + found[1]
    known = np.stack([0 * known, known], axis=1) if known.ndim == 1 else known
    labels = None if scores is None else labels
    if labels is not None and known.shape[1] != len(labels):
        said = f"to_onnx: only linear, softmax and additive models work, not scores of {len(labels)} labels (grades)"
        raise TemplateError(f"{said}. Keep the file of `save`, which predicts in Python.")
    logistic = probabilities is not None and labels is not None and alike(probabilities(points), softmax(known, axis=1))
    write_model(graph, path, result, found[1].shape, labels, logistic, bounds)


def export_estimator(estimator: Any, path: Any) -> None:
    """Write the predictions of a fitted estimator from features, or from the table of the encoder in its pipeline."""
    schema = getattr(estimator, "schema_", None) or getattr(estimator, "encoder_", None)
    fitted, raw = object.__new__(type(estimator)), replace(estimator.release_, schema=None)
    vars(fitted).update(vars(estimator), release_=raw)  # public points are longer than features of the schema
    classes = estimator.classes_.tolist() if hasattr(estimator, "classes_") else None
    is_bounded = classes is None and hasattr(estimator, "_unbounded")
    predict = "_unbounded" if is_bounded else "predict"
    functions = [getattr(fitted, name, None) for name in (predict, "decision_function", "predict_proba")]
    bounds = estimator._interval() if is_bounded else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about features without names
        export(path, estimator.release_.status, functions, classes, estimator.n_features_in_, schema, bounds=bounds)


def write_model(
    graph: Graph,
    path: Any,
    result: str,
    shape: tuple[int, ...],
    labels: Any,
    logistic: bool,
    bounds: tuple[float, float] | None = None,
) -> None:
    """Add the outputs, with predictions clipped to bounds, and write the model."""
    if bounds is not None:
        result = graph("Min", graph("Max", result, np.float64(bounds[0])), np.float64(bounds[1]))
    graph.output("prediction" if labels is None else "score", result, shape=(None, *shape))
    if not shape:  # as two scores; the first wins ties
        result = graph("MatMul", graph("Unsqueeze", result, np.array([1])), np.array([[0.0, 1.0]]))
    if labels is not None:
        place, names = graph("ArgMax", result, axis=1, keepdims=0), np.array(labels)
        names, kind = (names.astype(object), "STRING") if names.dtype.kind == "U" else (names.astype(np.int64), "INT64")
        if names.tolist() != list(labels):
            raise TemplateError(f"to_onnx: labels must be texts or whole numbers, not {list(labels)!r}.")
        graph.output("label", graph("Gather", names, place), kind)
        if logistic:
            graph.output("probability", graph("Softmax", result, axis=1), shape=(None, len(labels)))
    graph.save(path)


def hats(graph: Graph, rows: str, knots: Array, nodes: int) -> str:
    """Return the name of the weights of the nodes of an encoded column, shape (n, nodes); for levels, of the column itself."""
    if not len(knots):
        return rows
    count = len(knots)
    place = graph("Add", graph("Slice", rows, np.array([0]), np.array([1]), np.array([1])), np.float64(0.5))
    along = graph("Div", graph("Sub", place, knots[:-1]), np.diff(knots))
    along = graph("Min", graph("Max", along, np.float64(0)), np.float64(1))
    steps = np.eye(count - 1, nodes, 1) - np.eye(count - 1, nodes)
    weights = graph("Add", graph("MatMul", along, steps), np.eye(1, nodes))
    if nodes == count:
        return weights
    absent = graph("Slice", rows, np.array([1]), np.array([2]), np.array([1]))
    return graph("Where", graph("Greater", absent, np.float64(0)), np.eye(1, nodes, nodes - 1), weights)


def additive_scores(graph: Graph, schema: Schema, shapes: Iterable[Any], level: float) -> str:
    """Return the name of the sum of released curves of the columns of a table, shape (n,)."""
    rows = {name: encoded(graph, schema, name) for name in schema.features}
    total = graph("Identity", np.array([[level]]))
    for shape in shapes:
        axes = shape.block.axes
        first, *rest = (hats(graph, rows[axis.name], axis.knots, axis.nodes) for axis in axes)
        part = graph("MatMul", first, shape.values.reshape(axes[0].nodes, -1))
        part = graph("ReduceSum", graph("Mul", part, rest[0]), np.array([1])) if rest else part
        total = graph("Add", total, part)
    return graph("Squeeze", total, np.array([1]))
