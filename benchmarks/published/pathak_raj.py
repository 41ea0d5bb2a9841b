"""The mechanism of Pathak and Raj as it was printed, so that it can be checked, refused and reproduced.

Both papers add a random linear term to a large-margin Gaussian objective: one matrix b with density proportional to
exp(-rate epsilon ||b||) on all of its entries, and the *same* b for every class.  Their proofs break in several places,
independent of each other; here each is a premise that is tested by itself, so that a template or a variant of the
mechanism with any one of them left is refused for that reason (docs/published.md has the mathematics):

1. the noise leaves out a part of the sensitive subspace (Pathak & Raj 2010, equation 8; 2012, equation 14);
2. the objective is not strongly convex, and may have no minimiser (2010, lemma 2);
3. a unit element is appended to the features, and the records leave the unit ball of lemma 1;
4. fields of the records were learnt from private data, such as mixture labels (2012, section 3.2);
5. the loss is divided by a number of records that adjacency by deletion protects (2012, equation 17);
6. the noise answers to the gradient of one class (lemma 1), not to that of all.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import scipy.sparse as sp

from benchmarks.published.noise_coverage import check_coverage
from dpconvex.certificates.certificate import Certificate
from dpconvex.errors import NotPrivate, TemplateError
from dpconvex.expressions.parameter_space import ParameterBlock, Space
from dpconvex.mechanisms.base import Engine
from dpconvex.mechanisms.objective_perturbation import ObjectivePerturbation
from dpconvex.model.privacy import Privacy
from dpconvex.noise.samplers import gamma_direction
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.util.arrays import Array

__all__ = ["PublishedPerturbation"]

# Bounds of records are computed in floating point; a unit element breaks the unit ball by far more than this.
ROUNDING = 1e-9


@dataclass(frozen=True)
class PublishedPerturbation:
    """Objective perturbation as Pathak and Raj printed it, with each of its parts as an option.

    The defaults are the paper of 2012; ``PublishedPerturbation.of(2010)`` is the workshop paper.  `certify` refuses both.
    A variant in which every premise holds is certified, by the theorem of `ObjectivePerturbation` and not by theirs.

    The noise matrix has a density proportional to ``exp(-rate epsilon ||b||)`` in the Frobenius norm: 1 (2012, equation 13) or
    1/2 (2010, equation 7).  `shared`: one matrix is added for all classes, as printed; or the classes have matrices of their
    own, drawn together.  `mean`: noise is added to an objective with the *mean* of the losses (2012, equation 14) or with their
    sum (2010, equation 8); a template always declares the mean, so divide the weights of a regularizer from 2010 by the number
    of records.  `fitted`: fields of the record that the published procedure learns from the private data.

    >>> PublishedPerturbation.of(2010)
    PublishedPerturbation(rate=0.5, shared=True, mean=False, fitted=())
    """

    rate: float = 1.0
    shared: bool = True
    mean: bool = True
    fitted: tuple[str, ...] = ()

    @classmethod
    def of(cls, year: int, fitted: tuple[str, ...] = ()) -> Self:
        """Return the mechanism of the paper of 2010 or of 2012."""
        if year == 2010:
            return cls(rate=0.5, mean=False, fitted=fitted)
        if year == 2012:
            return cls(fitted=fitted)
        raise TemplateError(f"PublishedPerturbation: the papers are of 2010 and 2012, not {year!r}.")

    def certify(self, analysis: Analysis, privacy: Privacy, size: int) -> Certificate:
        """Test every premise of the published proof, then the constants.

        Raises the first premise that fails, in the order of this module's docstring; `defects` lists all.
        """
        found = self.defects(analysis, privacy, size)
        if found:
            raise found[0]
        return self._certificate(analysis, privacy, size)

    def defects(self, analysis: Analysis, privacy: Privacy, size: int) -> tuple[NotPrivate, ...]:
        """Return every reason for which the mechanism is refused on a template, in order; empty if there is none."""
        found = []
        checks: tuple[Callable[[], object], ...] = (
            lambda: self._check_noise(analysis.form),
            lambda: check_convexity(analysis),
            lambda: check_ball(analysis),
            lambda: self._check_fields(analysis),
            lambda: self._check_count(analysis, privacy),
            lambda: self._check_constants(analysis, privacy, size),
        )
        for check in checks:
            try:
                check()
            except NotPrivate as reason:
                found.append(reason)
        return tuple(found)

    def run(self, analysis: Analysis, certificate: Certificate, engine: Engine, rng: np.random.Generator) -> Array:
        """Draw the noise of a certified variant and minimise; returns coordinates, shape (dim,)."""
        linear = self.noise(analysis.form.space, certificate.noise_scale, rng)
        return engine.minimise(certificate.strong_convexity, certificate.tolerance, linear=linear)

    def scale(self, epsilon: float, size: int) -> float:
        """Return the scale of the noise's norm in sum form: the reciprocal of its rate of decay."""
        return (size if self.mean else 1) / (self.rate * epsilon)

    def noise(self, space: Space, scale: float, rng: np.random.Generator) -> Array:
        """Draw b as printed: Gamma norm, uniform direction, all entries of a matrix, not only the symmetric part.

        Returns coordinates of the linear functional ``sum_c <b_c, Phi_c>``, which on symmetric variables is the symmetric part
        of b.
        """
        blocks = matched(space) if self.shared else list(space.blocks.values())
        sizes = [int(block.variable.size) for block in blocks]
        if self.shared:
            entries = np.tile(gamma_direction(sizes[0], scale, rng), len(blocks))
        else:
            entries = gamma_direction(sum(sizes), scale, rng)
        parts = np.split(entries, np.cumsum(sizes)[:-1])
        return np.concatenate([block.lift.T @ part for block, part in zip(blocks, parts, strict=True)])

    def span(self, space: Space) -> sp.csc_array:
        """Return an orthonormal basis of the subspace that the noise is drawn in, shape (dim, k)."""
        if not self.shared:
            return sp.csc_array(sp.eye_array(space.dim))
        blocks = matched(space)
        same = sp.eye_array(blocks[0].dim)
        return sp.csc_array(sp.vstack([same] * len(blocks)) / np.sqrt(len(blocks)))

    def _check_noise(self, form: LossForm) -> None:
        noise = "one noise matrix b, shared by all classes," if self.shared else "the noise"
        check_coverage(
            form,
            self.span(form.space),
            noise,
            "draw an independent symmetric matrix for each class, or noise on the sensitive subspace "
            "(ObjectivePerturbation)",
        )

    def _check_fields(self, analysis: Analysis) -> None:
        fields = analysis.form.template.record.fields
        for name in self.fitted:
            if name not in fields:
                raise TemplateError(f"PublishedPerturbation: no field {name!r} in the record {', '.join(fields)}.")
        if self.fitted:
            name = self.fitted[0]
            raise NotPrivate(
                f"the field {name!r} of a record is learnt from all the private records, so changing one person's data "
                "changes everybody's record, and nothing pays for that",
                f"{name}={fields[name]!r}",
                "assign it by a public rule or a model of public data, or learn it privately from a budget of its own",
            )

    def _check_count(self, analysis: Analysis, privacy: Privacy) -> None:
        if self.mean and privacy.adjacency == "add-remove":
            raise NotPrivate(
                "the objective divides the losses by the number of records, which add-remove adjacency protects; a record "
                "less changes the weight of all the others",
                analysis.form.template.losses[0],
                "divide by a public nominal number, as ObjectivePerturbation does, or promise replace-one",
            )

    def _check_constants(self, analysis: Analysis, privacy: Privacy, size: int) -> None:
        if analysis.modulus <= 0:
            return  # reported by its own premise; without strong convexity there are no constants to compare
        needed = ObjectivePerturbation(noise="gamma", added=0.0).certify(analysis, privacy, size)
        scale = self.scale(privacy.epsilon, size)
        if scale < needed.noise_scale:
            raise NotPrivate(
                f"the noise is too small: its scale is {scale:.4g}, but {needed.noise_scale:.4g} is needed; the published "
                "lemma 1 bounds the gradient of one class, while one record moves those of all classes together, by up to "
                f"{needed.sensitivity:.4g}, and its curvature costs {needed.jacobian_epsilon:.3g} of epsilon besides",
                analysis.form.template.losses[0],
                "use ObjectivePerturbation, which bounds the joint gradient",
            )

    def _certificate(self, analysis: Analysis, privacy: Privacy, size: int) -> Certificate:
        """Return the certificate of a variant that kept every premise; its noise may be larger than needed."""
        space = analysis.form.space
        proof = ObjectivePerturbation(noise="gamma", added=0.0).certify(analysis, privacy, size)
        scale = self.scale(privacy.epsilon, size)
        return replace(
            proof,
            mechanism="published perturbation, repaired, with Gamma noise",
            noise_dimension=sum(int(block.variable.size) for block in space.blocks.values()),
            noise_scale=scale,
            noise_epsilon=proof.sensitivity / scale,
            predicted_risk=None,
            advice=(
                f"The scale of the noise is {scale / proof.noise_scale:.3g} times what the proof needs; "
                f"ObjectivePerturbation draws that, and in {proof.noise_dimension} dimensions.",
            ),
        )


def check_convexity(analysis: Analysis) -> None:
    """Refuse an objective without strong convexity."""
    if analysis.modulus <= 0:
        raise NotPrivate(
            "the objective is not strongly convex: a trace is linear and the Huber loss is flat where a margin is kept "
            "(Pathak & Raj 2010, lemma 2, claims otherwise); for most draws of b it falls without limit along equal "
            "matrices (Phi, ..., Phi), and there is no minimiser to release",
            analysis.form.template.regularizer,
            "add lambda * cp.sum_squares(Phi_c) for every class; its modulus is 2 lambda",
        )


def check_ball(analysis: Analysis) -> None:
    """Refuse records outside the unit ball of the published lemma 1, which bounds ``||z z'||`` by 1."""
    gram = analysis.gram
    blocks = np.array([generator.block for generator in gram.generators])
    leaves = [leaf for group in analysis.form.leaves for leaf in group]
    worst, where = 0.0, None
    for leaf, rows in zip(leaves, gram.rows, strict=True):
        # One variable at a time.
        owners = [np.unique(blocks[row != 0])[:, None] for row in rows]
        apart = [np.where(blocks == owner, row, 0.0) for row, owner in zip(rows, owners, strict=True)]
        parts = np.concatenate(apart) if apart else np.empty((0, 0))
        if len(parts):
            norm = float(np.sqrt(gram.squared_norms(np.unique(parts, axis=0)).max()))
            if norm > worst * (1 + ROUNDING):
                worst, where = norm, leaf
    if worst > 1 + ROUNDING:
        raise NotPrivate(
            "the published proof takes every record z from the unit ball, so that it moves the gradient of a class by at most "
            f"||z z'|| <= 1; here that can be {worst:.4g}, because a unit element appended to the features counts like any "
            "other",
            where,
            "scale the extended record into the unit ball: z = (x / radius, 1) / sqrt(2)",
        )


def matched(space: Space) -> list[ParameterBlock]:
    """Return the blocks of a space, which must all take the same matrix."""
    blocks = list(space.blocks.values())
    kinds = {(block.variable.shape, block.symmetric) for block in blocks}
    if len(kinds) != 1:
        shapes = ", ".join(f"{block.variable.name} {block.variable.shape}" for block in blocks)
        raise TemplateError(
            f"PublishedPerturbation: one matrix b does not fit variables of different shapes: {shapes}."
        )
    return blocks
