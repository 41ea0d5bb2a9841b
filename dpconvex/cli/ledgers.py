"""The command that shows a budget: it needs the ledger and its accounting, and neither CVXPY nor a table."""

import argparse
from typing import Any

import dpconvex as dp
from dpconvex.accounting.budget import ORIGIN
from dpconvex.accounting.database_ledger import is_address
from dpconvex.cli.main import told
from dpconvex.util.arguments import require


def budget(chosen: argparse.Namespace) -> None:
    said = "dpconvex budget move takes two places, FROM and TO; show and verify take one."
    require((chosen.what == "move") == (chosen.to is not None), said)
    if chosen.what == "move":
        dp.Budget.move(chosen.ledger, chosen.to)
    place = chosen.to or chosen.ledger
    ledger = dp.Budget.open(place)
    place = ledger.path if is_address(place) else place  # which has no password
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
    told(chosen, data, ledger if chosen.what == "show" else f"{place}: sound; {counted}.")
