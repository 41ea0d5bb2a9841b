"""Commands that fit nothing: list problems, prove one private, attack the proof, show budgets and schemas."""

import argparse
import json
from typing import Any

import dpconvex as dp
from dpconvex.apps.settings import assignments, labelling, mechanism_of, privacy, whitening_of
from dpconvex.errors import DPConvexError, NotPrivate
from dpconvex.language.schema import draft
from dpconvex.language.template import Template
from dpconvex.learners.problem_files import options as options_of
from dpconvex.release.files import writable, write_whole


def problems(chosen: argparse.Namespace) -> None:
    """Print names, descriptions and options of the shipped problems."""
    listing: list[dict[str, Any]] = []
    for name, text in dp.problems().items():
        options = {
            option: {"required": True} if p.default is p.empty else {"default": p.default}
            for option, p in options_of(name).items()
        }
        listing.append({"name": name, "description": text, "options": options})
        if not chosen.json:
            listed = ", ".join(o + (f"={p['default']!r}" if "default" in p else "") for o, p in options.items())
            print(f"{name} - {text}\n    options: {listed}")
    if chosen.json:
        print(json.dumps(listing, default=str))


def claimed(chosen: argparse.Namespace) -> tuple[Template, dp.Privacy, Any, dict[str, Any]]:
    """Return a problem's learner, the promise, the mechanism, and further options of what proves or attacks it."""
    learner = dp.load(chosen.problem, **assignments(chosen.set))
    share = labelling(learner, chosen.share)
    share |= whitening_of(chosen.whitening, share)
    return learner, privacy(vars(chosen)), mechanism_of(chosen.mechanism, learner), share


def verify(chosen: argparse.Namespace) -> None:
    """Print the certificate of a problem."""
    learner, promise, mechanism, options = claimed(chosen)
    prove = dp.verify_mixture if "share" in options else dp.verify
    certificate = prove(learner, promise, chosen.size, mechanism, **options)
    print(json.dumps({"private": True, "certificate": certificate.to_dict()}) if chosen.json else certificate)


def audit(chosen: argparse.Namespace) -> None:
    """Attack the certificate of a problem, and print claimed against found; a broken claim is an error."""
    learner, promise, mechanism, options = claimed(chosen)
    options |= {"size": chosen.size, "effort": chosen.effort, "runs": chosen.runs, "seed": chosen.seed}
    picture = None if chosen.picture is None else writable(chosen.picture, {"the problem": chosen.problem})
    found = dp.audit(learner, promise, mechanism, **options)
    print(json.dumps(found.to_dict(), default=str) if chosen.json else found)
    if picture is not None:
        found.plot(picture)
    if not found.holds:
        raise NotPrivate("a claim was broken: more was found than is claimed", chosen.problem, "report it")


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
        told |= {"fixed_beforehand": [vars(item) for item in ledger.totals()], "remaining": ledger.remaining._asdict()}
        print(json.dumps(told | {"spends": spends}))
    else:
        print(ledger if chosen.what == "show" else f"{chosen.ledger}: sound; {len(entries)} spends.")


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
    found = dp.Schema.load(chosen.file)
    if chosen.json:
        told = {"columns": len(found.features), "features": found.feature_names}
        print(json.dumps(told | {"norm bound": found.norm_bound, "label": found.label}))
        return
    print(f"{chosen.file}: sound; {len(found.features)} columns become {len(found.feature_names)} features,")
    print(f"records are divided by {found.norm_bound:.4g}, the largest possible length; {found.label!r} is predicted.")
