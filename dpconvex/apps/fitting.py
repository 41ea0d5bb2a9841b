"""Commands that pay and save a model: fit a problem to a table, and choose among several privately."""

import argparse
import json
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import dpconvex as dp
from dpconvex.apps.arguments import ON_THE_COMMAND_LINE, SETTINGS, words
from dpconvex.apps.settings import (
    assignments,
    declare,
    labelling,
    ledger,
    literal,
    mechanism_of,
    privacy,
    say,
    schema_of,
    table,
    whitening_of,
)
from dpconvex.errors import TemplateError
from dpconvex.language.schema import Schema, read_settings
from dpconvex.learners.problem_files import locate
from dpconvex.release.outputs import writable


def settings_of(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return what a file and the command line say together."""
    settings = read_settings(chosen.config, SETTINGS) if chosen.config is not None else {}
    given = {key: getattr(chosen, key) for key in ON_THE_COMMAND_LINE}
    settings |= {key: value for key, value in given.items() if value is not None}
    needed = ("epsilon",) if "schema" in settings else ("features", "label", "epsilon")
    for key in needed:
        if key not in settings:
            raise TemplateError(f"declare {key}, with --{key} or in the file that --config names.")
    if not isinstance(settings.setdefault("options", {}), dict):
        raise TemplateError(
            f"the setting options must be a table of the problem's options, not {settings['options']!r}."
        )
    return settings


def opened(
    chosen: argparse.Namespace, settings: dict[str, Any], schema: Schema, codes: list[Any]
) -> tuple[dp.Privacy, Path, Any]:
    """Return the promise, the file to write, and the table, which is read before anything is paid.

    So a typing error in it costs nothing: what is printed then is for the owner of the data and not part of any release.
    """
    promise = privacy(settings["epsilon"], settings.get("delta"), settings.get("adjacency"))
    inputs = {
        "the table": chosen.data,
        "the ledger": chosen.ledger,
        "the file of settings": chosen.config,
        "the schema": chosen.schema,
        "the problem": str(locate(chosen.problem)),
    }
    out = writable(chosen.out, inputs)
    say(chosen, f"reading {chosen.data}")
    return promise, out, table(chosen.data, schema, codes, empty=promise.adjacency == "add-remove")


def fit(chosen: argparse.Namespace) -> None:
    """Fit a problem to a table and save what is released."""
    settings = settings_of(chosen)
    schema = schema_of(settings)
    learner, codes = declare(chosen.problem, schema, settings["options"] | assignments(chosen.set))
    share = labelling(learner, settings.get("share"))
    promise, out, data = opened(chosen, settings, schema, codes)
    share |= whitening_of(settings.get("whitening"), share)
    say(chosen, "proving, and fitting")
    found = (dp.solve_mixture if "share" in share else dp.solve)(
        learner,
        data,
        promise,
        mechanism_of(settings.get("mechanism"), learner),
        settings.get("backend"),
        size=settings.get("size"),
        budget=ledger(chosen, promise),
        label=f"fit {chosen.problem}",
        seed=chosen.seed,
        **share,
    )
    save(chosen, found.release if isinstance(found, dp.Mixture) else found, schema, out)


def tune(chosen: argparse.Namespace) -> None:
    """Choose among settings of a problem privately, and save the release of the best."""
    settings = settings_of(chosen)
    schema = schema_of(settings)
    if schema.labels is None:
        raise TemplateError("tune counts wrong labels; a regression has none. Fit it with the settings of your choice.")
    fixed = settings["options"] | assignments(chosen.set)
    candidates: dict[str, Any] = {}
    codes: list[Any] = []
    for varied in grid(chosen.grid):
        name = ", ".join(f"{key}={value!r}" for key, value in varied.items())
        candidates[name], codes = declare(chosen.problem, schema, fixed | varied)
    if "m" in next(iter(candidates.values())).record.discrete:
        raise TemplateError("tune takes no mixtures: their components are learnt for each fit.")
    promise, out, data = opened(chosen, settings, schema, codes)
    say(chosen, f"fitting {len(candidates)} candidates")
    found = dp.tune(
        candidates,
        data,
        promise,
        mechanism=mechanism_of(settings.get("mechanism"), next(iter(candidates.values()))),
        backend=settings.get("backend"),
        size=settings.get("size"),
        budget=ledger(chosen, promise),
        seed=chosen.seed,
        **whitening_of(settings.get("whitening"), {}),
    )
    if not chosen.json:
        print(f"Chosen: {found.choice}\n")
    save(chosen, found.release, schema, out)


def grid(texts: list[str]) -> list[dict[str, Any]]:
    """Return all combinations of the values of options.

    >>> grid(["regularization=1e-3,1e-2", "width=1"])
    [{'regularization': 0.001, 'width': 1}, {'regularization': 0.01, 'width': 1}]
    """
    options = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name.strip().isidentifier() or not words(values):
            raise TemplateError(f"--grid takes OPTION=A,B,..., such as --grid regularization=1e-3,1e-2, not {text!r}.")
        options[name.strip()] = [literal(value) for value in words(values)]
    return [dict(zip(options, values, strict=True)) for values in product(*options.values())]


def save(chosen: argparse.Namespace, release: dp.Release, schema: Schema, out: Any) -> None:
    release = replace(release, schema=schema)
    release.save(out)
    if not release.private:
        print(f"dpconvex {chosen.name}: {release.status}", file=sys.stderr)
    proof = release.certificate
    if chosen.json:
        certificate = None if proof is None else proof.to_dict()
        print(json.dumps({"file": str(out), "private": release.private, "certificate": certificate}))
    else:
        print(f"{proof}\n\nSaved {out}: {release!r}")
