"""What each sharpening buys: every bound is made plainer in turn, and every learner is certified again (docs/left_out.md).

``python -m benchmarks ablation [--switch NAME] [--quick]`` prints, for each switch, how many certificates get more noise or more
predicted risk, how much more the worst has, and what happens to the time of the proofs.  A switch only makes a bound plainer or a
method absent, so what it leaves is as proved as before.
"""

from __future__ import annotations

import argparse
import importlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

import dpconvex as dp
from benchmarks import chosen
from benchmarks.ablation_templates import TEMPLATES

__all__ = ["SWITCHES", "main"]

# More than this is worth lines, if it is so for more than two learners.
TENTH = 1.1
SIZE, FEATURES = 1000, 5
C = "dpconvex.sensitivity."


class Switch(NamedTuple):
    """What is switched off, and what replaces it: the module, a colon, the path of the name; and its stand-in."""

    what: str
    patches: tuple[tuple[str, Any], ...]


def always(value: Any) -> Callable[..., Any]:
    return lambda *arguments, **options: value


def off(what: str, value: Any, *targets: str) -> Switch:
    return Switch(what, tuple((target, value) for target in targets))


def longest(piece: Any, gram: Any, length: float | None = None) -> float:
    """Bound the trace of a piece by its longest vector alone."""
    gradients = importlib.import_module(C + "gradient_norms").Gradients
    return float(
        max(piece.outer, piece.spread) * (gradients(piece.terms, gram).bound if length is None else length) ** 2
    )


def no_products(first: Any, second: Any, cross: bool, sign: float = 1.0) -> Any:
    return np.outer(first.norms, second.norms)


SWITCHES = {
    "norm angles": off("joint bound of a norm", always(None), C + "curvature:norm_form"),
    "moving slopes": off("Gaussian profile of one margin", always(None), C + "neighbour_differences:slopes_of"),
    "joint means": off("gradient and covariance", always(math.inf), C + "curvature:MeanJoint.loss"),
    "matrix noise": off("chosen by default", always(()), "dpconvex.mechanisms.recipe:rank_one_structures"),
    "vertices": off("enumerated for one gradient", 0, C + "gradient_norms:LARGEST_ENUMERATION"),
    "pairs of vertices": off("enumerated for two", 0, C + "gradient_norms:LARGEST_PAIR_ENUMERATION"),
    "products": off("inner products of terms", no_products, C + "gradient_norms:largest_products"),
    "shared length": off("parts of one record", always(None), C + "gram:Gram._share_length"),
    "spectrum": off("dominating all Hessians", always(None), C + "curvature:dominating_spectrum"),
    "Popoviciu": off("eigenvalue of a covariance", lambda piece, gram, trace: trace, C + "curvature:eigenvalue_bound"),
    "Frank-Wolfe": off("trace of a piece", longest, C + "curvature:trace_bound"),
}

SETTINGS: dict[str, tuple[dp.Privacy, Any]] = {
    "default": (dp.Privacy(1.0), None),
    "output": (dp.Privacy(1.0), dp.OutputPerturbation()),
    "gaussian": (dp.Privacy(1.0, 1e-6), dp.ObjectivePerturbation("gaussian")),
    "gaussian, add-remove": (dp.Privacy(1.0, 1e-6, "add-remove"), dp.ObjectivePerturbation("gaussian")),
}


def found(target: str) -> tuple[Any, str] | None:
    """Return the owner of a name and the name in it; None if the code has it no longer."""
    module, path = target.split(":")
    *parents, last = path.split(".")
    try:
        owner = importlib.import_module(module)
        for parent in parents:
            owner = getattr(owner, parent)
    except (ImportError, AttributeError):
        return None
    return (owner, last) if last in vars(owner) else None


def present() -> dict[str, Switch]:
    """Return the switches of what the code still has."""
    return {name: one for name, one in SWITCHES.items() if all(found(target) for target, _ in one.patches)}


@contextmanager
def switched(switch: Switch) -> Iterator[None]:
    """Make a bound plainer for a while."""
    old = []
    try:
        for target, value in switch.patches:
            place = found(target)
            assert place is not None
            old.append((*place, vars(place[0])[place[1]]))
            setattr(*place, value)
        yield
    finally:
        for owner, name, value in reversed(old):
            setattr(owner, name, value)


def learners(quick: bool) -> dict[str, Callable[[], dp.Template]]:
    """Return how each learner is built, anew for each switch, so that nothing is remembered."""
    gallery = {name: lambda name=name: dp.load(name, features=FEATURES) for name in dp.problems()}
    return dict(list(gallery.items())[::4]) if quick else gallery | TEMPLATES


def measured(build: Callable[[], dp.Template]) -> dict[str, float]:
    """Return the mean noise and the predicted risk in each setting, and the seconds of all proofs."""
    start, numbers = time.process_time(), {}
    template = build()
    for setting, (privacy, mechanism) in SETTINGS.items():
        try:
            certificate = dp.verify(template, privacy, SIZE, mechanism)
        except dp.DPConvexError:
            numbers[f"{setting}: noise"] = math.inf
            continue
        mean = getattr(certificate, "mean_noise", None)
        numbers[f"{setting}: noise"] = certificate.noise_dimension * certificate.noise_scale if mean is None else mean
        risk = getattr(certificate, "predicted_risk", None)
        if risk:
            numbers[f"{setting}: risk"] = risk
    return {**numbers, "seconds": time.process_time() - start}


def row(name: str, before: dict[str, dict[str, float]], after: dict[str, dict[str, float]]) -> Iterator[str]:
    """Yield the lines of a table for one switch."""
    seconds = [sum(numbers["seconds"] for numbers in side.values()) for side in (before, after)]
    yield f"| {name} | seconds | | {seconds[1] / max(seconds[0], 1e-9):.2f} | |"
    for what in [f"{setting}: {kind}" for setting in SETTINGS for kind in ("noise", "risk")]:
        ratios = {}
        for learner, numbers in before.items():
            old, new = numbers.get(what, math.inf), after[learner].get(what, math.inf)
            if 0 < old < math.inf:
                ratios[learner] = new / old
        more = sorted((learner for learner, ratio in ratios.items() if ratio > TENTH), key=lambda one: -ratios[one])
        if more:
            yield f"| {name} | {what} | {len(more)} | {ratios[more[0]]:.2f} | {', '.join(more[:4])} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks ablation", description=__doc__)
    parser.add_argument("--switch", choices=list(SWITCHES), help="one alone")
    parser.add_argument("--quick", action="store_true", help="every fourth problem only")
    options = chosen(parser, arguments, quick=True, switch="curvature")
    builders, switches = learners(options.quick), present()
    print("| switched off | what | more than a tenth | worst | where |\n|---|---|---|---|---|")
    before = {name: measured(build) for name, build in builders.items()}
    for name in [options.switch] if options.switch else SWITCHES:
        if name not in switches:
            print(f"| {name} | is in the code no longer | | | |")
            continue
        with switched(switches[name]):
            after = {learner: measured(build) for learner, build in builders.items()}
        print(*row(name, before, after), sep="\n", flush=True)
