"""Noisy counts of records in public cells: integer noise for all that one person moves of them (docs/theory.md, section 21)."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.optimize import nnls

from dpconvex.certificates.integer_noise import IntegerNoise, laplace_count
from dpconvex.model.privacy import Privacy
from dpconvex.util.arrays import Array, Indices

STEPS = 2**20  # Records that are weighted, or shared by knots, count in whole steps of this part of one
KNOWN = 1000  # Weight of a public total beside noisy sums, in least squares
MOST_TURNS = 100_000  # Of least squares
# Where scores and probabilities are cut, and probabilities of the label itself; knots for residuals, in parts of the label's
# range, and, more roughly, by the cell of the prediction; and for the label.
SCORES = tuple(k / 20 for k in range(1, 20))
LIKELY = (0.001, 0.003, 0.01, 0.03, *(k / 10 for k in range(1, 10)), 0.95, 0.99)
RESIDUALS = (-1.0, -0.5, -0.3, -0.2, -0.15, -0.1, -0.05, -0.02, 0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
ROUGHLY = (-1.0, -0.5, -0.2, -0.1, -0.05, -0.02, 0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
PREDICTIONS, TARGETS = (0.2, 0.4, 0.6, 0.8), tuple(k / 10 for k in range(11))


@dataclass(frozen=True)
class Cells:
    """The public cells in which an evaluation counts records, and the sums of them that it releases.

    A record lies in one cell of every table, and of one group; between two knots, it is shared by both in whole steps.

    Attributes
    ----------
    kind : {"probabilities", "scores", "labels", "numbers"}
        Two labels, by the probability or the score of the second; right and wrong labels; or residuals of a bounded number.
    cuts : tuple of float
        Where scores are cut, between 0 and 1.
    labels, groups : int
        How many there are.
    likelihood : bool
        Whether probabilities of the records' own labels are counted, too.
    """

    kind: str
    cuts: tuple[float, ...] = SCORES
    labels: int = 2
    groups: int = 1
    likelihood: bool = False

    @cached_property
    def tables(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the tables of one group."""
        if self.kind == "labels":
            return {"labels": (self.labels, 2)} | ({"likelihood": (len(LIKELY) + 1,)} if self.likelihood else {})
        if self.kind != "numbers":
            return {self.kind: (2, len(self.cuts) + 1)}
        by = len(PREDICTIONS) + 1, len(ROUGHLY)
        return {"residuals": (len(RESIDUALS),), "by_prediction": by, "targets": (len(TARGETS),)}

    @cached_property
    def weights(self) -> dict[str, Indices]:
        """Of each table of a group, whole weights of its cells in the sums that are released, shape (sums, cells).

        Every cell is a sum; of two labels with scores, so are all mistakes, and all of the second label; else all mistakes.
        """
        found = {name: np.eye(math.prod(shape), dtype=np.int64) for name, shape in self.tables.items()}
        first = next(iter(self.tables))
        if self.kind == "labels":
            found[first] = np.vstack([found[first], np.tile([0, 4], self.labels)])
        elif self.kind == "numbers":
            found[first] = 2 * found[first]
        else:
            said = np.arange(len(self.cuts) + 1) > self.cuts.index(0.5)
            wrong = np.concatenate([said, ~said]).astype(np.int64)
            found[first] = np.vstack([2 * found[first], wrong, np.repeat([0, 1], len(said))])
        return found

    @property
    def noisy(self) -> int:
        """The number of sums."""
        return self.groups * sum(len(own) for own in self.weights.values())

    @property
    def edges(self) -> Array:
        """The edges of cells of scores, or of likelihoods."""
        return np.array([0.0, *(LIKELY if self.kind == "labels" else self.cuts), 1.0])

    def steps(self, privacy: Privacy) -> int:
        """Return what one record adds to counts: 1, or steps, if it is weighted or shared by two knots."""
        return STEPS if privacy.keep == "weights" or self.kind == "numbers" else 1

    def sensitivity(self, privacy: Privacy) -> int:
        """Return how far one person moves all sums together, in absolute values, in steps.

        A record that comes or goes moves them by a column of each table.  One that is replaced moves them by the difference of
        two columns, and a person whose number of records changes by either.
        """
        longest, apart = 0, 0
        for own in self.weights.values():
            column = int(own.sum(axis=0).max())
            within = max(int(np.abs(own - other[:, None]).sum(axis=0).max()) for other in own.T)
            longest, apart = longest + column, apart + (within if self.groups == 1 else 2 * column)
        replaced = apart if privacy.unit is None else max(apart, longest)
        one = longest if privacy.adjacency == "add-remove" else replaced
        return one * int(privacy.person.weight) * self.steps(privacy)

    def noise(self, privacy: Privacy) -> IntegerNoise:
        """Return the noise on every sum, which makes all of them together epsilon-private."""
        return replace(laplace_count(privacy.epsilon, self.sensitivity(privacy)), dimension=self.noisy)

    def sums(self, counts: dict[str, Indices]) -> Array:
        """Return the sums, without noise, of the counts of cells, those of all groups one after the other."""
        parts = (counts[name].reshape(self.groups, -1) @ own.T for name, own in self.weights.items())
        return np.concatenate([part.ravel() for part in parts]).astype(float)

    def estimates(
        self, sums: Array, total: int | None, scale: float, clusters: int, replicates: int
    ) -> dict[str, Array]:
        """Estimate the counts of cells, none below 0, by least squares; and again, from records and noise that are drawn anew.

        Parameters
        ----------
        sums, scale : ndarray, shape (sums,), and float
            Noisy sums, and the scale of their noise, in records.
        total : int, optional
            The number of records, if it is public.
        clusters : int
            The variance of sampling is multiplied by it.

        Returns
        -------
        dict of str to ndarray, shape (1 + replicates, 1 + groups, *cells)
            The estimate comes first; and all records together come before each group, if there are several.
        """
        rng, found, start = np.random.default_rng(0), {}, 0
        for name, own in self.weights.items():
            noisy = sums[start : start + self.groups * len(own)].reshape(self.groups, -1)
            start += noisy.size
            several = []
            for k, part in enumerate([noisy.sum(axis=0), *(noisy if self.groups > 1 else ())]):
                known, noises = (None, 1) if k else (total, self.groups)
                drawn = [counted(own, part, known)]
                size = max(float(drawn[0].sum()), 1e-9)
                for _ in range(replicates):
                    again = rng.multinomial(round(size / clusters), drawn[0] / size) * float(clusters)
                    noise = rng.laplace(scale=scale, size=(noises, len(own))).sum(axis=0)
                    drawn.append(counted(own, own @ again + noise, known))
                several.append(np.reshape(drawn, (1 + replicates, *self.tables[name])))
            found[name] = np.stack(several, axis=1)
        return found


def counted(weights: Indices, sums: Array, total: int | None) -> Array:
    """Return counts, none below 0, whose weighted sums are nearest to noisy ones; with a total, if there is one."""
    if total is not None:
        weights, sums = np.vstack([weights, np.full_like(weights[:1], KNOWN)]), np.append(sums, KNOWN * total)
    return np.asarray(nnls(weights.astype(float), sums, maxiter=MOST_TURNS)[0])
