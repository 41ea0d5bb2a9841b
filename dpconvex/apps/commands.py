"""The commands: prove, attack, fit, choose, predict, measure, and show problems, budgets and schemas."""

import argparse
import csv
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import dpconvex as dp
from dpconvex.apps import settings
from dpconvex.errors import DPConvexError, NotPrivate, TemplateError
from dpconvex.language.schema import Schema, draft
from dpconvex.language.tables import table_of
from dpconvex.learners.problem_files import locate, options as options_of
from dpconvex.release.files import writable, write_whole


def told(chosen: argparse.Namespace, data: Any, text: object) -> None:
    """Print JSON for a program to read, or text."""
    print(json.dumps(data, default=str) if chosen.json else text)


# What fits nothing


def problems(chosen: argparse.Namespace) -> None:
    listing, lines = [], []
    for name, text in dp.problems().items():
        known = options_of(name).items()
        options = {o: {"required": True} if p.default is p.empty else {"default": p.default} for o, p in known}
        listing.append({"name": name, "description": text, "options": options})
        shown = ", ".join(f"{o}={said['default']!r}" if "default" in said else o for o, said in options.items())
        lines.append(f"{name} - {text}\n    options: {shown}")
    told(chosen, listing, "\n".join(lines))


def verify(chosen: argparse.Namespace) -> None:
    learner = dp.load(chosen.problem, **settings.assignments(chosen.set))
    promise, mechanism, options = settings.terms(chosen, learner)
    prove = dp.verify_mixture if "share" in options else dp.verify
    certificate = prove(learner, promise, chosen.size, mechanism, **options)
    told(chosen, {"private": True, "certificate": certificate.to_dict()}, certificate)


def audit(chosen: argparse.Namespace) -> None:
    """Attack the certificate of a problem, and print claimed against found; a broken claim is an error."""
    learner = dp.load(chosen.problem, **settings.assignments(chosen.set))
    promise, mechanism, options = settings.terms(chosen, learner)
    options |= {name: getattr(chosen, name) for name in ("size", "effort", "runs", "seed")}
    picture = None if chosen.picture is None else writable(chosen.picture, {"the problem": chosen.problem})
    found = dp.audit(learner, promise, mechanism, **options)
    told(chosen, found.to_dict(), found)
    if picture is not None:
        found.plot(picture)
    if not found.holds:
        raise NotPrivate("a claim was broken: more was found than is claimed", chosen.problem, "report it")


def budget(chosen: argparse.Namespace) -> None:
    ledger = dp.Budget.open(chosen.ledger)
    entries = ledger.entries
    data: dict[str, Any] = {"total": ledger.privacy.to_dict(), "accounting": ledger.accounting}
    data["spends"] = [
        {"label": e.label, "epsilon": e.privacy.epsilon, "delta": e.privacy.delta, "event": e.known.to_dict()}
        for e in entries
    ]
    data |= {"spent": ledger.spent._asdict(), "remaining": ledger.remaining._asdict()}
    data["fixed_beforehand"] = [vars(item) for item in ledger.totals()]
    told(chosen, data, ledger if chosen.what == "show" else f"{chosen.ledger}: sound; {len(entries)} spends.")


def schema(chosen: argparse.Namespace) -> None:
    if chosen.what == "draft":
        if chosen.label is None:
            raise DPConvexError("a draft needs --label COLUMN, the column to be predicted.")
        write = writer(chosen.out, {"the table": chosen.file})
        write(draft(chosen.file, chosen.label))
        return
    found = dp.Schema.load(chosen.file)
    names, count, bound = found.feature_names, len(found.features), found.norm_bound
    told(
        chosen,
        {"columns": count, "features": names, "norm bound": bound, "label": found.label},
        f"{chosen.file}: sound; {count} columns become {len(names)} features,\n"
        f"records are divided by {bound:.4g}, the largest possible length; {found.label!r} is predicted.",
    )


def writer(path: str | None, inputs: Mapping[str, str | None]) -> Callable[[str], Any]:
    """Return what writes a text to a file, or prints it if there is none."""
    if path is None:
        return sys.stdout.write
    out = writable(path, inputs)
    return lambda text: write_whole(out, text.encode("utf-8"))


# What is paid for


def prepared(
    chosen: argparse.Namespace, declared: settings.Declared, promise: dp.Privacy
) -> tuple[Path, Any, dict[str, Any]]:
    """Return the file to write, the table, which is read before anything is paid, and options of every fit.

    So a typing error in it costs nothing: what is printed then is for the owner of the data and not part of any release.
    """
    inputs = {"the table": chosen.data, "the ledger": chosen.ledger, "the schema": chosen.schema}
    problem = str(locate(chosen.problem))
    out = writable(chosen.out, inputs | {"the file of settings": chosen.config, "the problem": problem})
    data = declared.table(chosen.data, empty=promise.adjacency == "add-remove")
    options = {"size": chosen.size, "backend": chosen.backend, "seed": chosen.seed}
    return out, data, options | {"budget": settings.ledger(chosen, promise)}


def fit(chosen: argparse.Namespace) -> None:
    schema = settings.schema_of(chosen)
    declared = settings.declare(chosen.problem, schema, chosen.options)
    promise, mechanism, further = settings.terms(chosen, declared.learner)
    out, data, options = prepared(chosen, declared, promise)
    solve: Any = dp.solve_mixture if "share" in further else dp.solve
    found = solve(declared.learner, data, promise, mechanism, **options, **further, label=f"fit {chosen.problem}")
    save(chosen, found.release if "share" in further else found, schema, out)


def tune(chosen: argparse.Namespace) -> None:
    schema, candidates = settings.schema_of(chosen), {}
    if schema.labels is None:
        raise TemplateError("tune counts wrong labels; a regression has none. Fit it with the settings of your choice.")
    for varied in settings.grid(chosen.grid):
        declared = settings.declare(chosen.problem, schema, chosen.options | varied)
        candidates[", ".join(f"{key}={value!r}" for key, value in varied.items())] = declared.learner
    promise, mechanism, further = settings.terms(chosen, declared.learner)
    if "share" in further:
        raise TemplateError("tune takes no mixtures: their components are learnt for each fit.")
    out, data, options = prepared(chosen, declared, promise)
    found = dp.tune(candidates, data, promise, mechanism, **options, **further)
    if not chosen.json:
        print(f"Chosen: {found.choice}\n")
    save(chosen, found.release, schema, out)


def save(chosen: argparse.Namespace, release: dp.Release, schema: Schema, out: Path) -> None:
    release, proof = replace(release, schema=schema), release.certificate
    release.save(out)
    if not release.private:
        print(f"dpconvex {chosen.name}: {release.status}", file=sys.stderr)
    data = {"file": str(out), "private": release.private, "certificate": proof and proof.to_dict()}
    told(chosen, data, f"{proof}\n\nSaved {out}: {release!r}")


def model_of(chosen: argparse.Namespace) -> tuple[dp.Release, settings.Declared]:
    """Return a saved release with its functions, and what it knows of tables and labels."""
    saved = dp.Release.load(chosen.model)
    if saved.schema is None:
        remedy = "fit it with dpconvex fit, or write it with the save(path, schema) of an estimator"
        raise TemplateError(f"{chosen.model}: it does not say which columns it reads; {remedy}.")
    name, options = (chosen.problem, {}) if chosen.problem is not None else (saved.source or (None, {}))
    if name is None:
        raise TemplateError(f"{chosen.model}: it was fitted with a problem file of your own; name that with --problem.")
    schema = saved.schema if chosen.clip is None else replace(saved.schema, clip=chosen.clip)
    declared = settings.declare(name, schema, options | settings.assignments(chosen.set))
    return dp.Release.load(chosen.model, template=declared.learner), declared


def predict(chosen: argparse.Namespace) -> None:
    """Write the predictions of a saved release, one line for each record."""
    release, declared = model_of(chosen)
    schema = declared.schema
    write = writer(chosen.out, {"the table": chosen.data, "the model": chosen.model, "the problem": chosen.problem})
    X, _ = schema.encode(chosen.data, labelled=False)
    columns: dict[str, Sequence[Any]] = {}
    if chosen.id == schema.label:
        raise TemplateError(f"--id names a column to pass through, and {schema.label!r} is the one that is predicted.")
    if chosen.id is not None:
        columns |= {name: values.tolist() for name, values in table_of(chosen.data).columns([chosen.id]).items()}
    columns[schema.label] = declared.predicted(release.predict(X))
    if chosen.scores:
        columns |= per_label("score", release.decision_function(X), schema)
    if chosen.probabilities:
        columns |= per_label("probability", release.predict_proba(X), schema)
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([list(columns), *zip(*columns.values(), strict=True)])
    if chosen.out is not None or not chosen.json:
        write(text.getvalue())
    if chosen.json:
        data: dict[str, Any] = {"label": schema.label, "predictions": columns.pop(schema.label)}
        print(json.dumps(data | ({"columns": columns} if columns else {}), default=str))


def per_label(what: str, values: Any, schema: Schema) -> dict[str, Sequence[float]]:
    """Return scores as columns, one for each label if there is one for each."""
    array, title = np.asarray(values, dtype=float), f"{what} of {schema.label}"
    if array.ndim == 1 or schema.labels is None:
        return {title: array.tolist()}
    return {f"{title} {label}": array[:, place].tolist() for place, label in enumerate(schema.labels)}


def evaluate(chosen: argparse.Namespace) -> None:
    release, declared = model_of(chosen)
    chosen.adjacency = chosen.adjacency or (release.spent and release.spent.adjacency)
    promise = settings.privacy(chosen)
    data = declared.table(chosen.data, empty=promise.adjacency == "add-remove")
    options = {"budget": settings.ledger(chosen, promise), "name": f"evaluate {chosen.model}", "seed": chosen.seed}
    found = dp.evaluate(declared.learner, release, data, promise, **options)
    measured = {"error": found.error, "interval": list(found.interval), "records": found.records}
    told(chosen, measured | {"private": found.spent is not None}, found)
