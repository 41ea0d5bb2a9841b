"""Attacks on adaptive steps: an adversary asks two neighbouring data sets the same queries until one is refused."""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import scipy

from dpconvex.auditing.drawn import DRAWS, MATRICES, SIDE, attack_sampler
from dpconvex.auditing.parts import gaussian_attack
from dpconvex.auditing.report import Attack
from dpconvex.certificates.certificate import Certificate
from dpconvex.data.batch import Batch
from dpconvex.errors import DPConvexError
from dpconvex.fitting.adaptive import in_own_fields
from dpconvex.mechanisms.noisy_queries import QueryNoise, choice_weights, clip_sums
from dpconvex.noise.discrete import GAUSSIAN
from dpconvex.noise.gaussian import GRID_VARIANCE
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sums.linear_scores import linear_scores
from dpconvex.sums.private_queries import PrivateQueries, VertexQueries
from dpconvex.util.arrays import Array, Indices

PARTS = (
    *("gradients", "second moment", "second moment in the metric", "counts by length", "curvatures", "slopes along"),
    *("squares of gradients", "squares of roots", "counts of roots", "lengths of rows", "second moment of cut rows"),
)
CHOICE = "choices of vertices"
PAID, TRIED = 6, 18  # Number of queries that share the level, and of queries asked unless one is refused
SIDES, OTHERS = 8, 20  # Numbers of fields and of labels, combined to candidate records, and number of other records
SMALL, EDGES = 1e-9, 2.0 ** np.arange(-24, 24, 0.25)  # Clip and cap below most records, and edges of histograms
WIDE = 2.0**4  # Clip of lengths that are counted
STEEP = 60.0  # Factor on parameters for curvatures and counts of roots: some losses bend there and some do not
FAR = 1000.0  # Sensitivity of the query for noise that is drawn


class Watched(QueryNoise):
    """Queries that add no noise, and record sums with the scale of their noise, or the log weights of choices."""

    def __init__(self, most: float) -> None:
        super().__init__(most, None)
        self.seen: list[tuple[float, Any]] = []

    def picked(self, levels: Indices, rate: float) -> int:
        self.seen.append((1.0, np.log(np.array(choice_weights(levels, rate), dtype=float))))
        return 0

    def drawn(self, scale: float, sums: Indices) -> Indices:
        self.seen.append((scale, clip_sums(sums)))
        return clip_sums(sums)


class Adversary:
    """An adversary that asks for each kind of sums over records, at parameters of its choice."""

    def __init__(self, form: LossForm, certificate: Certificate, rng: np.random.Generator) -> None:
        self.certificate, self.form, self.rng = certificate, form, rng
        self.scores = linear_scores(in_own_fields(form, form.template.record.sample(1, rng))[0])
        rows, columns = self.scores.shape
        self.table = rng.normal(size=(rows, columns)) / self.scores.radius
        self.probe = np.asarray(self.scores.projection @ rng.normal(size=len(self.scores.projection)))
        self.level = certificate.settings["level"] / math.sqrt(PAID) * (1 - 1e-9)

    def asked(self, part: str, batch: Batch, people: Indices | None, times: int) -> list[tuple[float, Any]]:
        """Return pairs (scale of the noise, exact sums) of all queries, asked `times` times or until one is refused."""
        noise, level = Watched(self.certificate.settings["level"]), self.level
        _, batch = in_own_fields(self.form, batch)
        known = self.scores, batch, self.certificate.privacy, noise
        if part == CHOICE:
            reach = np.ones((2, len(self.scores.features), self.scores.shape[1]))
            ask: Callable[[], Any] = partial(VertexQueries(*known).choose, self.table, SMALL, reach, level, 1)
        else:
            queries = PrivateQueries(*known, people)
            queries.set_metric(np.eye(self.scores.shape[0]))
            longest = math.sqrt(queries.rows.squared_norm(self.scores.radius)) * queries.rows.grid
            table = self.table * (STEEP if part in ("curvatures", "counts of roots") else 1)
            query, vectors = partial(queries.query, table, SMALL, longest), partial(queries.vectors, table)
            if part == "second moment of cut rows":
                queries.clip_rows(longest / 4)
            asks: dict[str, Callable[[], Any]] = {
                "gradients": partial(query, level=level),
                "counts by length": partial(query, edges=EDGES, histogram_level=level),
                "curvatures": partial(query, probe=self.probe, cap=SMALL, along_level=level),
                "slopes along": partial(query, cap=SMALL, along_level=level),
                "squares of gradients": partial(vectors, "gradients", SMALL, level),
                "squares of roots": partial(vectors, "roots", SMALL, level),
                "counts of roots": partial(vectors, "roots", WIDE, level, EDGES),
                "lengths of rows": partial(queries.lengths, EDGES, level),
                "second moment in the metric": partial(queries.second_moment_in_metric, longest / 4, level),
            }
            ask = asks.get(part, partial(queries.second_moment, level))
        with suppress(DPConvexError):
            for _ in range(times):
                ask()
        return noise.seen

    def attack(self, part: str, pool: Batch, others: Batch, record: Any) -> Attack:
        """Attack one kind of sums by the two people with the largest difference in it; a person's records are all equal."""
        privacy, certificate = self.certificate.privacy, self.certificate
        tried = range(0, pool.size, SIDES if "moment" in part else 1)  # moments do not depend on labels
        beside = others if part == CHOICE else rows_of(others, [])  # scores are absolute slopes

        def answers(own: list[int]) -> Array:
            whose = None if privacy.unit is None else np.zeros(len(own), dtype=np.int64)
            asked = self.asked(part, joined(beside, rows_of(pool, own)), whose, 1)
            return np.concatenate([sums / scale for scale, sums in asked])

        points = np.array([answers([k]) for k in tried])
        ends = points if privacy.adjacency == "replace-one" else answers([])[None]
        gaps = (points**2).sum(axis=1)[:, None] + (ends**2).sum(axis=1) - 2 * points @ ends.T
        first, second = divmod(int(np.argmax(gaps)), len(ends))
        chosen = [[tried[first]], [tried[second]] if ends is points else []]
        found = []
        for own in chosen:
            some = joined(others, rows_of(pool, own * privacy.most))
            people = None if privacy.unit is None else np.minimum(np.arange(some.size), OTHERS)
            found.append(self.asked(part, some, people, TRIED))
        norm = apart_as_choices if part == CHOICE else np.linalg.norm
        moved = (float(norm((a - b).astype(float))) / scale for (scale, a), (_, b) in zip(*found, strict=True))
        shift = math.sqrt(sum(distance**2 for distance in moved))
        how = f"exact sums of {len(found[0])} answers, under the distribution of their noise"
        places = [place_of(record, rows_of(pool, own)) if own else None for own in chosen]
        notes = (f"Both data sets have {OTHERS} other records, at random.",)
        epsilon, delta = certificate.noise_epsilon, certificate.noise_delta
        return gaussian_attack(part, epsilon, delta, shift, how, record=places[0], neighbour=places[1], notes=notes)


def attack_queries(form: LossForm, certificate: Certificate, rng: np.random.Generator) -> Iterator[Attack]:
    """Attack each kind of sums that adaptive steps query, and the noise as drawn for them."""
    record, adversary = form.template.record, Adversary(form, certificate, rng)
    first, second, others = (record.sample(count, rng) for count in (SIDES, SIDES, OTHERS))
    x = {name: first.fields[name] for name in linear_scores(form).fields}
    for name, own in x.items():
        x[name] = np.concatenate([own, *(record.continuous[name].project(y) for y in (-own, 0 * own[:1]))])
    every, which = np.repeat(np.arange(2 * SIDES + 1), SIDES), np.tile(np.arange(SIDES), 2 * SIDES + 1)
    fields = {key: column[which] for key, column in second.fields.items()} | {n: own[every] for n, own in x.items()}
    pool = Batch(fields, second.group[which])
    for part in (*PARTS, CHOICE) if "vertices" in certificate.settings else PARTS:
        yield adversary.attack(part, pool, others, record)
    level = certificate.settings["level"]
    scale, noise = math.sqrt((FAR / level) ** 2 + GRID_VARIANCE), QueryNoise(level * (MATRICES + 1), None)
    entries = noise.noisy(np.zeros(DRAWS, dtype=np.int64), FAR, level).astype(float)
    yield attack_sampler("noise as drawn", GAUSSIAN, 1, scale, [entries], 1.0)
    zeros, upper = np.zeros((SIDE, SIDE), dtype=np.int64), np.triu_indices(SIDE, 1)
    matrices = [noise.noisy_symmetric(zeros, FAR, level).astype(float) for _ in range(MATRICES)]
    groups = [np.ravel([np.diag(one) for one in matrices]), np.ravel([one[upper] for one in matrices]) * math.sqrt(2)]
    yield attack_sampler("noise of a second moment as drawn", "gaussian", 1, scale, groups)


def apart_as_choices(moved: Array) -> float:
    """Return the GDP level of a choice between the vertices with the largest and the smallest change in log weight."""
    return 2 * float(scipy.special.ndtri(scipy.special.expit(np.ptp(moved) / 2)))


def rows_of(batch: Batch, index: list[int]) -> Batch:
    return Batch({name: column[index] for name, column in batch.fields.items()}, batch.group[index])


def joined(one: Batch, two: Batch) -> Batch:
    fields: dict[str, Array] = {name: np.concatenate([column, two.fields[name]]) for name, column in one.fields.items()}
    return Batch(fields, np.concatenate([one.group, two.group]))


def place_of(record: Any, one: Batch) -> dict[str, Any]:
    labels = {name: record.values(one, name)[0] for name in record.discrete}
    return {name: column[0] for name, column in one.fields.items()} | labels
