"""Commands about budgets and schemas: show and check a ledger, draft a schema from public data."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import dpconvex as dp
from dpconvex.errors import DPConvexError
from dpconvex.language.schema_draft import draft
from dpconvex.release.outputs import writable, write_whole


def budget(chosen: argparse.Namespace) -> None:
    """Show a ledger, or say that it is sound."""
    ledger = dp.Budget.open(chosen.ledger)
    entries = ledger.entries
    if chosen.json:
        spends = [
            {"label": e.label, "epsilon": e.privacy.epsilon, "delta": e.privacy.delta, "event": e.known.to_dict()}
            for e in entries
        ]
        told: dict[str, Any] = {
            "total": ledger.privacy.to_dict(),
            "accounting": ledger.accounting,
            "spent": ledger.spent._asdict(),
        }
        told["fixed_beforehand"] = [vars(item) for item in ledger.totals()]
        print(json.dumps({**told, "remaining": ledger.remaining._asdict(), "spends": spends}))
        return
    if chosen.what == "verify":
        print(f"{chosen.ledger}: sound; {len(entries)} spends.")
        return
    wide = max((len(entry.label) for entry in entries), default=0)
    print(f"total      {ledger.privacy}")
    for entry in entries:
        print(f"  {entry.label:<{wide}}  {entry.privacy}" + (f"; {entry.event}" if entry.event is not None else ""))
    print(f"accounting {ledger.accounting}: {ledger.rule}")
    for item in ledger.totals()[:1]:
        print(f"           had all been fixed beforehand: {item}")
    print(f"spent      epsilon = {ledger.spent.epsilon:g}, delta = {ledger.spent.delta:g}")
    print(f"remaining  epsilon = {ledger.remaining.epsilon:g}, delta = {ledger.remaining.delta:g}")


def schema(chosen: argparse.Namespace) -> None:
    """Draft a schema, or say what a schema makes of a record."""
    if chosen.what == "draft":
        if chosen.label is None:
            raise DPConvexError("a draft needs --label COLUMN, the column to be predicted.")
        out = None if chosen.out is None else writable(chosen.out, {"the table": chosen.file})
        text = draft(chosen.file, chosen.label)
        if out is None:
            print(text, end="")
        else:
            write_whole(out, text.encode("utf-8"))
        return
    found = dp.Schema.load(Path(chosen.file))
    told = {
        "columns": len(found.features),
        "features": found.feature_names,
        "norm bound": found.norm_bound,
        "label": found.label,
    }
    if chosen.json:
        print(json.dumps(told))
        return
    print(f"{chosen.file}: sound; {len(found.features)} columns become {len(found.feature_names)} features,")
    print(f"records are divided by {found.norm_bound:.4g}, the largest possible length; {found.label!r} is predicted.")
