"""Figures 4 and 5 of Chaudhuri, Monteleoni & Sarwate (2011): errors against the number of records, tuned by Algorithm 4.

Each of five regularizations is fitted on records of its own, one is chosen by its mistakes on further 25,000 with the
exponential mechanism, and tested on 25,000 more; the whole keeps one promise.  Without privacy all five are fitted on the same
records.  The paper's curves begin at 60,000 records for each regularization, and the 10 % file ends at about 85,000.
"""

from __future__ import annotations

import sys
from argparse import Namespace

import numpy as np
from scipy.special import softmax

from benchmarks.papers.chaudhuri import WAYS, Log, number
from benchmarks.papers.chaudhuri_figures import draw_learning_curves
from benchmarks.papers.folds import LEARNERS, Records, kdd_records

__all__ = ["CANDIDATES", "SIZES", "learning_curves", "tuned"]

CANDIDATES = (-3.0, -2.5, -2.0, -1.5, -1.0)
SIZES = (10_000, 20_000, 40_000, 60_000, 80_000)
EPSILONS = (0.05, 0.01)
HELD_OUT = 25_000
CURVES = ("plain", "output", "objective", "pure+", "delta+")


def tuned(
    way: str, name: str, parts: list[Records], validation: Records, test: Records, epsilon: float, draws: int
) -> list[float]:
    """Return expected test errors of privately tuned classifiers, one for each draw of the fits.

    The expectation is over the private choice: every candidate's error counts with the probability that it is chosen.

    Parameters
    ----------
    parts : list of Records
        For each candidate its own, disjoint.
    """
    if way == "plain":
        parts, draws = parts[:1] * len(parts), 1
    runs = [
        list(WAYS[way].run(name, 10.0**power, part, epsilon, draws))
        for power, part in zip(CANDIDATES, parts, strict=True)
    ]
    found = []
    for fits in zip(*runs, strict=True):
        mistakes = [round(validation.error(fit) * len(validation.y)) for fit in fits]
        chances = softmax(-epsilon / 2 * np.asarray(mistakes))
        if way == "plain":
            chances = np.eye(len(fits))[np.argmin(mistakes)]
        found.append(float(chances @ [test.error(fit) for fit in fits]))
    return found


def learning_curves(options: Namespace) -> None:
    """Compute, print and draw the curves; every permutation draws its own records from the full file's mix."""
    log = Log(options.output / "chaudhuri_curves.csv", "learner", "way", "epsilon", "records")
    total = len(CANDIDATES) * max(SIZES) + 2 * HELD_OUT
    for k in range(options.permutations):
        records = kdd_records(options.path, total, np.random.default_rng(k))
        cut = np.arange(total)
        validation, test = records.some(cut[:HELD_OUT]), records.some(cut[HELD_OUT : 2 * HELD_OUT])
        for size in SIZES:
            starts = [2 * HELD_OUT + j * max(SIZES) for j in range(len(CANDIDATES))]
            parts = [records.some(cut[start : start + size]) for start in starts]
            for name in LEARNERS:
                for epsilon in EPSILONS:
                    for way in CURVES:
                        if way == "plain" and epsilon != EPSILONS[0]:
                            continue
                        if k not in log.found.get((name, way, epsilon, size), {}):
                            found = tuned(way, name, parts, validation, test, epsilon, options.draws)
                            log.add((name, way, epsilon, size), k, found)
            print(f"permutation {k}, {size:,} records: done", file=sys.stderr, flush=True)
    titles = {way: WAYS[way].title.removesuffix(", more regularization") for way in CURVES}
    for name in LEARNERS:
        for epsilon in EPSILONS:
            print(f"\nKDD, {name}, epsilon = {epsilon:g}, tuned: test error\n")
            print("| way | " + " | ".join(f"{size:,}" for size in SIZES) + " |")
            print("|---" * (len(SIZES) + 1) + "|")
            for way in CURVES:
                at = EPSILONS[0] if way == "plain" else epsilon
                cells = " | ".join(number(log.mean(name, way, at, size)) for size in SIZES)
                print(f"| {titles[way]} | {cells} |")
    draw_learning_curves(log, list(LEARNERS), titles, EPSILONS, SIZES, options.output)
