"""The command that shows a budget: it needs the ledger and its accounting, and neither CVXPY nor a table."""

import argparse
from typing import Any

import dpconvex as dp
from dpconvex.accounting.budget import ORIGIN
from dpconvex.cli.main import told


def budget(chosen: argparse.Namespace) -> None:
    ledger = dp.Budget.open(chosen.ledger)
    entries = ledger.entries
    data: dict[str, Any] = {"total": ledger.privacy.to_dict(), "accounting": ledger.accounting}
    data["spends"] = [
        {"label": e.label, "epsilon": e.privacy.epsilon, "delta": e.privacy.delta, "event": e.known.to_dict()}
        | {name: getattr(e, name) for name in ORIGIN}
        for e in entries
    ]
    data |= {"spent": ledger.spent._asdict(), "remaining": ledger.remaining._asdict()}
    if chosen.json:  # which takes seconds
        data["non_adaptive"] = [vars(item) for item in ledger.totals()]
    counted = f"{len(entries)} spend{'s' * (len(entries) != 1)}"
    told(chosen, data, ledger if chosen.what == "show" else f"{chosen.ledger}: sound; {counted}.")
