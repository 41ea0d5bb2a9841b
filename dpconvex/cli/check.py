"""The command that replays the proof in a file, and then loads the file."""

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path

import dpconvex as dp
from dpconvex.checker.files import FORMAT, replay_file
from dpconvex.checker.reading import Rejected
from dpconvex.cli.main import REFUSED
from dpconvex.errors import DPConvexError

UNREAD = "all of the file except the certificate and the proof: a load needs {}, which is not installed"


def check(chosen: argparse.Namespace) -> int:
    """Replay a proof, and load its file; return 0 only if all of the proof was replayed.  Without NumPy, only replay."""
    try:
        report = replay_file(chosen.model)
        try:
            loaded(chosen.model, report.form)
        except ModuleNotFoundError as missing:
            report = replace(report, trusted=(*report.trusted, UNREAD.format(missing.name)))
        except DPConvexError as error:
            raise Rejected(f"its proof follows, but it cannot be loaded: {error}") from error
    except Rejected as error:
        raise Rejected(f"{chosen.model}: {error}") from error
    trusted = [f"  trusted: {fact}" for fact in report.trusted]
    print(json.dumps(asdict(report)) if chosen.json else "\n".join([f"{chosen.model}: {report}", *trusted]))
    return REFUSED if report.unreplayed else 0


def loaded(path: str, form: str) -> None:
    """Load a file of this form; raise `DPConvexError` if it is damaged, or not of its shipped problem."""
    if form == FORMAT:
        dp.Certificate.from_json(Path(path).read_text(encoding="utf-8"))
    elif form:
        found = getattr(dp, form.removeprefix("dpconvex ").capitalize()).load(path)
        if getattr(found, "source", None) is not None:
            found.with_template(dp.load)
