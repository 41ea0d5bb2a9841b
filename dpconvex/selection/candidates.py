"""Candidates of a private choice: templates, or estimators with the templates that they fit."""

from collections.abc import Collection, Iterable, Mapping
from itertools import product
from typing import Any, cast

import numpy as np

from dpconvex.data.columns import check_aligned
from dpconvex.data.domains import Box
from dpconvex.data.partitions import Partitions
from dpconvex.data.record import columns_of
from dpconvex.errors import shorten
from dpconvex.fitting.release import Release, functions_of
from dpconvex.fitting.verify import FitOptions
from dpconvex.model.privacy import Privacy
from dpconvex.model.template import Template
from dpconvex.selection.record_counter import RecordCounter
from dpconvex.util.arguments import one_of, require


def named_templates(
    candidates: Any, grid: Any, data: Any, features: str, label: str, privacy: Privacy, options: FitOptions
) -> tuple[dict[str, Template], dict[str, Any], Any, list[Any]]:
    """Return the candidates by name, their estimators, the data in the estimators' units, and mapped features (or None).

    Raise if the mistakes of a candidate cannot be counted, or if candidates declare different records.
    """
    columns_of(data)
    check_aligned({**(data if isinstance(data, Mapping) else {"data": data}), "unit": options.unit})
    several = isinstance(candidates, Iterable) and not hasattr(candidates, "get_params")
    said = "tune: pass several templates or estimators, or one estimator with a grid, as "
    said += "tune(LogisticRegression(), data, privacy, grid={'regularization': [1e-4, 1e-2]})."
    require(several != (grid is not None), said)
    every = candidates if several else grid_candidates(candidates, grid)
    given = every if isinstance(every, Mapping) else {str(k): c for k, c in enumerate(every)}
    asked = vars(options) | vars(privacy)
    found = {name: resolved(name, one, data, features, label, asked, grid or ()) for name, one in given.items()}
    require(found, "tune: there is no candidate to choose from.")
    first, reference = next(iter(found.items()))
    # If a candidate maps features by its own options, each has its own records.
    mapped = not isinstance(data, Partitions) and any(
        getattr(model, "maps_features", False) for model, *_ in found.values()
    )
    for name, (_, template, _) in found.items():
        counter = RecordCounter(template.record, trial_release(template), features, label, Privacy(1.0))
        counter.check("tune", strict=False)
        lacks = "declares no predict" if template.predict is None else "predicts more than one value"
        said = f"tune: candidate {name!r} {lacks}, so its mistakes cannot be counted."
        require(template.predict is not None and not counter.survives, said)
        alike = domains(*found[name], mapped * features) == domains(*reference, mapped * features)
        require(alike, f"tune: candidates {first!r} and {name!r} declare different records; use the same domains.")
    apart = {repr(template.source) if template.source else id(template) for _, template, _ in found.values()}
    said = f"tune: candidates of the grid {shorten(str(grid))} are the same fit"
    require(several or len(apart) == len(found), f"{said}: leave out what changes nothing.")
    models = {name: model for name, (model, *_) in found.items()}
    columns = [own[features] if mapped else None for _, _, own in found.values()]
    return {name: template for name, (_, template, _) in found.items()}, models, reference[-1], columns


def trial_release(template: Template) -> Release:
    zeros = {variable.name: np.zeros(variable.shape) for variable in template.variables}
    return Release(zeros, not_private_because="of no data", **functions_of(template))


def grid_candidates(estimator: Any, grid: Any) -> dict[str, Any]:
    """Return copies of an estimator, one for each combination of option values in the grid."""
    options = estimator.get_params(deep=False) if hasattr(estimator, "get_params") else {}
    known = f"options of an estimator ({', '.join(options) or 'which has get_params'})"
    said = f"tune: grid must map {known} to lists of values, not be {grid!r} of {estimator!r:.60}."
    several = isinstance(grid, Mapping) and all(map(np.iterable, grid.values()))
    require(several and set(grid) <= set(options), said)
    settings = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    made = [type(estimator)(**{**options, **one}) for one in settings]
    names = (", ".join(f"{option}={value!r}" for option, value in one.items()) for one in settings)
    return dict(zip(names, made, strict=True))


def resolved(
    name: str, candidate: Any, data: Any, features: str, label: str, asked: Mapping[str, Any], varied: Collection[str]
) -> tuple[Any, Template, Any]:
    """Return a candidate's estimator (None for a template), its template, and the data in its units."""
    if isinstance(candidate, Template):
        return None, candidate, data
    build: Any = getattr(candidate, "candidate", None)
    require(callable(build), f"tune: candidate {name!r} is not a Template but {type(candidate).__name__}.")
    if not isinstance(data, Partitions):
        one_of(data.keys()).check("tune", features=features, label=label)
    return cast(tuple[Any, Template, Any], build(data, features, label, asked, varied))


def domains(model: Any, template: Template, _: Any, but: str) -> list[Any]:
    """Return the bounds of the target that are scaled to [-1, 1], and the domains of all fields `but` one."""
    ends = model._interval() if hasattr(model, "_interval") else (-1.0, 1.0)
    fields = [(name, domain) for name, domain in template.record.fields.items() if name != but]
    return [ends, *((n, (d.lower.tolist(), d.upper.tolist()) if isinstance(d, Box) else d) for n, d in fields)]
