"""The rule for adaptive steps as the default mechanism (docs/choosing.md); no guarantee depends on this rule."""

from collections.abc import Callable
from contextlib import suppress

from dpconvex.errors import DPConvexError
from dpconvex.fitting.adaptive import own_form
from dpconvex.mechanisms.adaptive_steps import AdaptiveSteps
from dpconvex.mechanisms.noisy_frank_wolfe import NoisyFrankWolfe
from dpconvex.mechanisms.plans import (
    has_bounded_gradients,
    has_domain,
    has_nonsmooth_loss,
    is_constrained,
    lacks_minimiser,
    nonsmooth_parts,
    records_per_parameter,
    weighs_features,
    worth_clipping,
)
from dpconvex.model.privacy import Privacy
from dpconvex.optim.public_slopes import public_facts
from dpconvex.optim.row_metrics import in_natural_units
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sums.linear_scores import linear_scores

MANY_AT_HINGES = 20.0  # Records per parameter and unit of the level, from which steps are better for hinges


def steps_are_default(
    read: Callable[[], LossForm], analysed: Callable[[], Analysis], privacy: Privacy, size: int, plan: AdaptiveSteps
) -> bool:
    """Return whether steps are the default; steps of whole gradients are taken only on request.

    With constraints, or penalties other than squares, steps of hinges are also on request only, unless there are many records,
    scores read products of scalars, share parameters or weigh nothing, records have targets, or minimisers fail or learn little.
    """
    with suppress(DPConvexError):  # the proof of the steps raises the error
        form = read()
        scores, bends = linear_scores(own_form(form)[0]), not has_nonsmooth_loss(form)
        usual = isinstance(plan, NoisyFrankWolfe) or not is_constrained(form)
        usual = usual or bool(in_natural_units(form.template.record))
        usual = usual or not nonsmooth_parts(form) or records_per_parameter(form, privacy, size) >= MANY_AT_HINGES
        if not usual and bends:
            usual = (scores.monomials is not None and scores.shape[0] > 1) or not weighs_features(form)
        if not usual and (bends or not scores.is_shared):
            public = public_facts(own_form(form)[0])[1]
            usual = public.metric is not None or not (public.has_labels and (public.is_lipschitz or any(public.sides)))
            none = lacks_minimiser(analysed) or not has_bounded_gradients(analysed)
            usual = usual or (none and not worth_clipping(analysed(), privacy, size))
        return usual and not scores.is_too_large and not (has_domain(form) and not public_facts(form)[1].is_finite)
    return True
