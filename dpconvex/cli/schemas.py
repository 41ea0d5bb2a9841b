"""The command that drafts a schema from a public table, learns one privately, or checks one."""

import argparse
import tomllib
from functools import partial
from pathlib import Path

import dpconvex as dp
from dpconvex.accounting.budget import settle
from dpconvex.cli.commands import ledger, privacy_of, writer
from dpconvex.cli.main import told
from dpconvex.data.draft import draft
from dpconvex.data.tables import table_of
from dpconvex.errors import DPConvexError, NotPrivate


def schema(chosen: argparse.Namespace) -> None:
    if chosen.what != "check":
        if chosen.label is None:
            raise DPConvexError(f"schema {chosen.what} needs --label COLUMN, the column to be predicted.")
        write = writer(chosen.out, {"the table": chosen.file, "the ledger": chosen.ledger})
        text = (draft if chosen.what == "draft" else partial(learn, chosen))(chosen.file, chosen.label)
        if chosen.out is not None or not chosen.json:
            write(text)
        return told(chosen, {"schema": tomllib.loads(text)}, "") if chosen.json else None
    found = dp.Schema.load(chosen.file)
    settle(None, learnt := found.learnt)  # which refuses a cost that was edited
    paid = "no cost is stated: bounds and levels must be public knowledge" if learnt is None else learnt.status
    if learnt is not None and any(one.not_private_because for one in learnt.costs):
        raise NotPrivate(learnt.status, chosen.file, "learn the schema without a seed")
    names, count, bound = found.feature_names, len(found.features), found.norm_bound
    sound = f"{chosen.file}: sound; {count} columns become {len(names)} features,\nrecords are divided by {bound:.4g}"
    said = f"{sound}, the largest possible length; {found.label!r} is predicted.\n{paid}"
    data = {"columns": count, "features": names, "norm bound": bound, "label": found.label}
    told(chosen, data | {"learnt": learnt and learnt.to_dict()}, said)


def learn(chosen: argparse.Namespace, file: str, label: str) -> str:
    """Learn a schema for what the options promise; return it as a TOML file that says so."""
    if chosen.epsilon is None:
        raise DPConvexError("schema learn needs --epsilon E, and a --delta: what may be paid for the schema.")
    promise, declared = privacy_of(chosen), {"labels": chosen.labels, "label_bounds": chosen.label_bounds}
    unit = chosen.privacy_unit
    whose = None if unit is None or Path(file).is_dir() else table_of(file).columns([unit])[unit]
    paid = {"unit": unit, "budget": ledger(chosen, promise, whose), "seed": chosen.seed}
    known = {name: kind for name, _, kind in (text.rpartition("=") for text in chosen.known)}
    found = dp.learn_schema(file, promise, label=label, known=known, ignore=chosen.ignore or (), **declared, **paid)
    return "\n".join([*(f"# {line}" for line in str(found.learnt).splitlines()), found.to_toml()])
