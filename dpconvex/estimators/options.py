"""Help for users of scikit-learn: names of options that differ here, and warnings that fits and scores cost privacy."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from typing import Any

import numpy as np

from dpconvex.data.columns import check_aligned
from dpconvex.data.encoded import origins
from dpconvex.data.learnt import origin_of
from dpconvex.data.partitions import Partitions
from dpconvex.errors import warn
from dpconvex.fitting.solve import AGAIN, note_fit
from dpconvex.model.template import Template
from dpconvex.util.arguments import require

GUARANTEE = ("epsilon", "delta", "adjacency", "unit", "most", "keep")
TAKEN = (*GUARANTEE, "clip", "size", "mechanism", "backend", "budget", "seed")
LAMBDA = "`regularization`, the factor of half the squared weights beside the mean loss; about"
OTHERS = {
    "C": f"{LAMBDA} 1 / (n C) for n records",
    "alpha": f"{LAMBDA} alpha / n for n records",
    "random_state": "`seed`, for tests only: with a seed, a fit is not private",
    "eps": "`epsilon`",
    "data_norm": "`radius`",
    "accountant": "`budget`",
    "class_weight": "a factor of the loss for each label, in a Template of your own (PrivateEstimator)",
    "sample_weight": "a field of a Template of your own; fit it by solve, with data {'x': X, 'y': y, 'weight': w}",
}


def with_hints(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method: an unknown option raises an error with the name to use, and fits without a budget are counted."""
    known = list(signature(function).parameters)[1:]

    @wraps(function)
    def told(self: Any, *arguments: Any, **options: Any) -> Any:
        for option in options:
            if option not in known:
                call = type(self).__name__ + ("" if function.__name__ == "__init__" else f".{function.__name__}")
                near = get_close_matches(option, known, n=1)
                ours = OTHERS.get(option) or (f"did you mean `{near[0]}`?" if near else f"there are {', '.join(known)}")
                raise TypeError(f"{call} has no option {option!r}: {'here it is ' * (option in OTHERS)}{ours}")
        if function.__name__ == "fit":
            check_aligned({**dict(zip(known, arguments, strict=False)), **options})
        if function.__name__ != "fit" or not is_uncounted(self):
            return function(self, *arguments, **options)
        fitted, done = arguments[0] if arguments else options.get("X"), 0
        self._again = note_fit(fitted) > 0
        try:
            result = function(self, *arguments, **options)
            done = 1
            return result
        finally:
            note_fit(fitted, done)

    return told


def warn_of_refit(estimator: Any, data: Any) -> None:
    """Warn of a repeated fit without a budget: by a copy, as searches make them, by this estimator, or of the same data.

    The data are marked, so that the function that fits them does not warn again.
    """
    name, again = type(estimator).__name__, vars(estimator).pop("_again", False)
    spent = f"each fit spends epsilon = {estimator.privacy().epsilon:g} on the same people"
    if is_copy(estimator):
        search = f"a copy of {name} is fitted, as cross-validation and searches do: {spent}, and scores are not private"
        warn(f"{search}. Count the fits with budget=..., or choose privately with dpconvex.tune.")
    elif "release_" in vars(estimator) and is_uncounted(estimator):
        warn(f"this {name} was fitted before: {spent}, if the data are about them. Count the fits with budget=....")
    elif again:
        warn(f"{AGAIN}: {spent}. Count fits with budget=....")
    if is_uncounted(estimator):
        note_fit(data, told=True)


def is_uncounted(estimator: Any) -> bool:
    return estimator.budget is None and estimator.seed is None


def is_copy(estimator: Any) -> bool:
    return getattr(estimator, "_is_clone", False) and is_uncounted(estimator)


def scored(score: Callable[..., float]) -> Callable[..., float]:
    """Wrap a score: warn that it is not private, and raise if labels and features have different indexes."""

    @wraps(score)
    def told(self: Any, *arguments: Any, **options: Any) -> float:
        if self.seed is None and not is_copy(self):
            warn("a score is computed from data, and is not private: for private data, use dpconvex.evaluate.")
        check_aligned({**dict(zip("Xy", arguments, strict=False)), **options})
        return score(self, *arguments, **options)

    return told


def as_candidate(
    estimator: Any, data: Any, features: str, label: str, asked: Mapping[str, Any], varied: Collection[str] = ()
) -> tuple[Any, Template, Any]:
    """Return a copy with the options of `dpconvex.tune`, its template, and the data with targets in the template's units."""
    given, name = estimator.get_params(deep=False), type(estimator).__name__
    own = {item.name: item.default for item in fields(estimator)}
    for option in TAKEN:
        where = "dp.Privacy(...)" if option in GUARANTEE else f"tune(..., {option}=...)"
        said = f"tune: {name} has {option}={given[option]!r}, an option of tune itself: {where}. Leave it out."
        require(option not in varied and (given[option] is own[option] or given[option] == own[option]), said)
    model = type(estimator)(**given | {option: asked[option] for option in TAKEN})
    said = f"tune: {name} maps features first, learns labels, or has fields beside x and y"
    made = "templates, {'a': model.template(columns)}, and {'x': model.features(table), 'y': y}"
    said += f"; pass {made if hasattr(estimator, 'features') else 'a template'} for the mapped records."
    require(getattr(estimator, "encoder", None) is None, said)
    if parted := isinstance(data, Partitions):
        records, width = model._records(data, None), (data.width(features),)
    else:
        more = {key: column for key, column in data.items() if key not in (features, label)}
        records, width = model._records(data[features], data[label], **more), np.shape(data[features])[1:]
    template = model.template(model.n_features_in_)
    record = template.record.fields
    width = np.shape(records["x"])[1:] if estimator.maps_features and not parted else width
    anew = "" if parted else ", ".join(sorted(set(record) - {*records}))
    compare = "Fit each candidate under one budget=, and compare them by dpconvex.evaluate."
    require(not anew, f"tune: each fit of {name} learns the field {anew!r} of the records anew. {compare}")
    require(set(record) == {"x", "y"} and getattr(record["x"], "shape", None) == width, said)
    learnt = getattr(getattr(model, "bounds", None), "learnt", None)
    known = origin_of(*origins(data)).learnt
    said = f"tune: the bounds of {name} were learnt, but its features were not encoded by the same schema"
    require(learnt is None or learnt in known, f"{said}, so that its cost is left out. Encode them by this schema.")
    model._again = is_uncounted(model) and note_fit(data if parted else data[features]) > 0
    warn_of_refit(model, records if parted else data)
    return model, template, records if parted else {**data, features: records["x"], label: records["y"]}
