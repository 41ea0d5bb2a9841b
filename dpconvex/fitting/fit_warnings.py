"""Warnings of fits that learn little, by public facts: few records for the guarantee (docs/choosing.md), constant losses."""

import math

import numpy as np

from dpconvex.certificates.certificate import Certificate, QueriesCertificate
from dpconvex.certificates.text import FEW_RECORDS
from dpconvex.errors import shorten
from dpconvex.fitting.adaptive import own_form
from dpconvex.noise.gaussian import gaussian_level
from dpconvex.optim.public_slopes import public_facts
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sums.linear_scores import linear_scores

FEW = 4.0  # Records times level per parameter, below which answers are often no better than a constant's: measured
SMALL_SHARE = 0.99  # Smaller shares of informative records are told


def few_records(form: LossForm, certificate: Certificate, fits: bool = True) -> str:
    """Return a warning if records times level per parameter are below `FEW`; empty otherwise.

    The level is mu of GDP, or epsilon without a delta.  Noise of minimisers has a length of about p / epsilon or sqrt(p) / mu;
    that of steps is compared with the parameters of one score, because the classes of a record share its slopes.  Only fits ask
    for the share of informative records, which takes as long as their public facts.
    """
    privacy, size, share = certificate.privacy, certificate.size, 1.0
    vertices = int(certificate.settings.get("vertices", 0))
    count = vertices or max(form.noise_dimension, 1)
    each, symbols = float(count), "n epsilon / p"
    if isinstance(certificate, QueriesCertificate) and not vertices:
        scores, share = linear_scores(form), informative_share(form) if fits else 1.0
        each, symbols = min(each, float(scores.shape[0])), "n mu / p"
    elif not privacy.pure:
        each, symbols = math.sqrt(count), "n mu / sqrt(p)"
    level = privacy.epsilon if privacy.pure else gaussian_level(privacy.epsilon, privacy.delta)
    found = share * size * level / each / privacy.most
    if found >= FEW:
        return ""
    told = f"with {share:.2g} of the records on the steep side, estimated quantiles are too near to the median. "
    of = f"{count} parameters" + f", {each:g} for each score" * (each < count and "sqrt" not in symbols)
    symbols += f" / {privacy.most}" * (privacy.most > 1)
    why = f"{symbols} is {found:.2g} (docs/choosing.md). Below {FEW:g}, answers are often no better than a constant's"
    helps = "More records, a larger epsilon or fewer features help."
    return f"{FEW_RECORDS}{size} for {of}: {why}. {told.capitalize() * (share < SMALL_SHARE)}{helps}"


def informative_share(form: LossForm) -> float:
    """Return the share of informative records, relative to a median: 2 min(q, 1 - q) for a quantile q, 1 for other losses."""
    public = public_facts(own_form(form)[0])[1]
    if not public.vanishes:  # with a link, slopes of all records are informative
        return 1.0
    down, up = (np.ravel(side) for side in public.longest)  # for one score, or for each score
    least, both = np.minimum(down, up), down + up
    known = (least > 0) & np.isfinite(both)
    return float(np.mean(np.where(known, 2 * least, 1.0) / np.where(known, both, 1.0)))


def constant_value(analysis: Analysis, certificate: Certificate) -> str:
    """Return a warning if all records with one value of a discrete field have a constant loss; empty otherwise."""
    form, record = analysis.form, analysis.form.template.record
    if not record.discrete:
        return ""
    if analysis.losses:
        moves = [loss.gradient_bound > 0 for loss in analysis.losses]
    elif isinstance(certificate, QueriesCertificate):
        moves = [bool(label.combine.count_nonzero()) for label in linear_scores(form).form.labels]
    else:
        moves = [any(analysis.rows[leaf].any() for leaf in leaves) for leaves in form.leaves]
    for name, choice in record.discrete.items() if any(moves) else ():
        for value in choice.values:
            own = [k for k, values in enumerate(record.combinations) if values[name] == value]
            if not any(moves[k] for k in own):
                what = f"for {name} = {value!r} the loss is constant, {shorten(str(form.losses[own[0]]), 60)}"
                remedy = f"For a loss of labels -1 and 1, write 2 * {name} - 1 in place of labels 0 and 1."
                return f"{what}: nothing is learnt from these records. {remedy}"
    return ""
