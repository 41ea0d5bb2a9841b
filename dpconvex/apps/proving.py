"""Commands that need no data: list problems, prove one private, attack the proof."""

from __future__ import annotations

import argparse
import json

import dpconvex as dp
from dpconvex.apps.settings import assignments, labelling, mechanism_of, privacy, say, whitening_of
from dpconvex.errors import NotPrivate
from dpconvex.learners.problem_files import options as options_of
from dpconvex.release.outputs import writable


def list_problems(chosen: argparse.Namespace) -> None:
    """Print names, descriptions and options of the shipped problems."""
    found = dp.problems()
    if chosen.json:
        listing = [
            {
                "name": name,
                "description": text,
                "options": {
                    option: {"required": True} if p.default is p.empty else {"default": p.default}
                    for option, p in options_of(name).items()
                },
            }
            for name, text in found.items()
        ]
        print(json.dumps(listing, default=str))
        return
    wide = max(map(len, found), default=0)
    for name, text in found.items():
        print(f"{name:<{wide}}  {text}")
        listed = ", ".join(o if p.default is p.empty else f"{o}={p.default!r}" for o, p in options_of(name).items())
        print(f"{'':<{wide}}  options: {listed}")


def verify(chosen: argparse.Namespace) -> None:
    """Print the certificate of a problem."""
    promise = privacy(chosen.epsilon, chosen.delta, chosen.adjacency)
    learner = dp.load(chosen.problem, **assignments(chosen.set))
    share = labelling(learner, chosen.share)
    prove = dp.verify_mixture if share else dp.verify
    share |= whitening_of(chosen.whitening, share)
    certificate = prove(learner, promise, chosen.size, mechanism_of(chosen.mechanism, learner), **share)
    print(json.dumps({"private": True, "certificate": certificate.to_dict()}) if chosen.json else certificate)


def audit(chosen: argparse.Namespace) -> None:
    """Attack the certificate of a problem, and print claimed against found; a broken claim is an error."""
    promise = privacy(chosen.epsilon, chosen.delta, chosen.adjacency)
    learner = dp.load(chosen.problem, **assignments(chosen.set))
    share = labelling(learner, chosen.share)
    options = {"size": chosen.size, "effort": chosen.effort, "runs": chosen.runs, "seed": chosen.seed}
    picture = None if chosen.picture is None else writable(chosen.picture, {"the problem": chosen.problem})
    say(chosen, "searching for the worst records")
    mechanism = mechanism_of(chosen.mechanism, learner)
    share |= whitening_of(chosen.whitening, share)
    found = dp.audit(learner, promise, mechanism, **options, **share)
    print(json.dumps(found.to_dict(), default=str) if chosen.json else found)
    if picture is not None:
        found.plot(picture)
    if not found.holds:
        raise NotPrivate("a claim was broken: more was found than is claimed", chosen.problem, "report it")
