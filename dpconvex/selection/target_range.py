"""Pure fits to targets in a small part of their bounds: two choices say where most of them lie (docs/theory.md, section 24)."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from dpconvex.accounting.events import Composition, Pure
from dpconvex.certificates.certificate import Certificate
from dpconvex.certificates.derivation import Derivation
from dpconvex.certificates.text import RANGE
from dpconvex.data.batch import Batch
from dpconvex.fitting.release import Release
from dpconvex.fitting.solve import FitJob
from dpconvex.fitting.verify import FitOptions
from dpconvex.mechanisms.private_selection import rate, select
from dpconvex.model.privacy import Privacy
from dpconvex.util.arrays import Indices, frozen, quietly

SOURCE = "permute-and-flip (McKenna & Sheldon 2020), then the fit, composed adaptively; docs/theory.md, section 24"
# The choices' part of epsilon falls with the root of records times epsilon; the middle has MIDDLE of it.
FALLING, LARGEST, MIDDLE = 6.5, 0.6, 0.6
# Cells of the bounds, one of them in the middle; cells on each side of the middle of a range; what twice the width costs a range,
# in the exponent of its probability.
CELLS, DOUBLED = 2047, 2.0
SIDES = np.unique(np.rint(np.minimum(2.0 ** (np.arange(-2, 23) / 2), CELLS))).astype(np.int64)


@dataclass(frozen=True)
class RangePlan:
    """The division of a pure guarantee between the range of the target and the fit, fixed before the data are read."""

    privacy: Privacy
    size: int
    constant: float  # The prediction where the parameter b is 1; 0 if there is none, and the range is one around 0

    @property
    def epsilon(self) -> float:  # Of the range
        return self.privacy.epsilon * min(FALLING / math.sqrt(self.size * self.privacy.epsilon), LARGEST)

    def whole(self, fit: Certificate) -> Certificate:
        """Return the certificate of the range and the fit together."""
        step = Derivation("range of the target", "", {"epsilon": self.epsilon}, "choices of a middle and of a width")
        both = step, fit.derivation
        return fit.copied(
            privacy=self.privacy,
            settings=fit.settings | {RANGE: self.epsilon},
            derivation=Derivation("range of the target, then the fit", "", self.privacy.claims, SOURCE, both),
            event=fit.event and Composition((Pure(self.epsilon), fit.event)),
        )

    def chosen(self, counts: Indices, rng: np.random.Generator | None) -> tuple[float, float]:
        """Choose the middle of a range and half its width, from numbers of targets in cells from -1 to 1.

        One person moves half the difference of numbers below and above a cell by at most their number of records, or half of it
        under add-remove, and the number outside of a range by at most their number, one way under add-remove.
        """
        epsilon, adjacency, most = self.epsilon, self.privacy.adjacency, self.privacy.most
        upto, place = np.cumsum(counts), CELLS // 2
        if self.constant:
            lost = np.maximum(2 * np.maximum(upto - counts, upto[-1] - upto) - upto[-1], 0)
            place = select([Fraction(n, 2 * most) for n in lost.tolist()], MIDDLE * epsilon, adjacency, rng)
            epsilon *= 1 - MIDDLE
        padded = np.pad(upto, (CELLS + 1, CELLS), constant_values=(0, upto[-1]))
        outside = upto[-1] - padded[place + CELLS + 1 + SIDES] + padded[place + CELLS - SIDES]
        charges = DOUBLED * np.log2(2 * SIDES + 1) / rate(epsilon, adjacency)
        pairs = zip(outside.tolist(), charges.tolist(), strict=True)
        side = SIDES[select([Fraction(n, most) + Fraction(charge) for n, charge in pairs], epsilon, adjacency, rng)]
        return (2 * place + 1) / CELLS - 1, float(2 * side + 1) / CELLS


@quietly
def solve_in_range(template: Any, data: Any, privacy: Privacy, *, constant: float, **options: Any) -> Release:
    """Fit ``x @ w + constant * b`` to targets y from -1 to 1, moved to the range of most of them; options as for `solve`."""
    asked = FitOptions(units=True, **options)
    call = FitJob(data, privacy, [template], asked)
    plan = RangePlan(privacy, call.size, constant)
    fit = asked.prove(call.templates[0], privacy.minus(privacy.part(plan.epsilon)), call.size)
    call.check(fit)
    call.pay(plan.whole(fit.certificate).event)
    with call.told():
        batch = call.record.validate(call.data, clip=asked.clip, empty=True)
        counts = call.cut(batch).added_up(counts_of, None)
    middle, half = plan.chosen(np.zeros(CELLS, np.int64) if counts is None else counts, call.source.seeded)
    found = call.run(fit, batch.mapped(moved, batch.share((middle, half))), call.source.next())
    learnt = {name: half * value for name, value in found.parameters.items()}
    learnt |= {"b": learnt["b"] + middle / constant} if constant else {}
    certificate: Any = found.certificate
    return replace(found, parameters=learnt, certificate=plan.whole(certificate), **call.source.spending(privacy))


def counts_of(batch: Batch, _: None) -> Indices:
    places = np.floor((np.asarray(batch.fields["y"][:]) + 1) / 2 * CELLS)
    return np.bincount(np.clip(places, 0, CELLS - 1).astype(np.int64), minlength=CELLS)


def moved(batch: Batch, where: tuple[float, float]) -> Batch:
    y = np.clip((np.asarray(batch.fields["y"][:]) - where[0]) / where[1], -1.0, 1.0)
    return Batch({**batch.fields, "y": frozen(y)}, batch.group)
