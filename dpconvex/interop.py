"""Certificates and ledgers for other libraries: OpenDP's `Measurement` and dp-accounting's `DpEvent`."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from dpconvex.accounting.budget import Budget, schema_cost
from dpconvex.accounting.composition import Amount, best_total
from dpconvex.accounting.events import Approximate, Composition, Event, Gaussian, Pure, Tail
from dpconvex.certificates.certificate import Certificate
from dpconvex.errors import NotPrivate, TemplateError
from dpconvex.fitting.solve import solve
from dpconvex.fitting.verify import verify
from dpconvex.model.privacy import Privacy, check_privacy
from dpconvex.model.template import Template
from dpconvex.noise.gaussian import failure_delta
from dpconvex.numerics import BOUND_SLACK, ROUNDED_UP
from dpconvex.util.arguments import between, instance, number, recast, require
from dpconvex.util.plain_data import is_whole

__all__ = ["charge", "dp_event", "opendp"]
# Largest total epsilon for truncation failures, and largest number of parts of an event.
WITHIN, MOST = 32.0, 1000


def library() -> Any:
    with recast("events need dp-accounting: pip install 'dpconvex[interop]'", ImportError):
        import dp_accounting.pld
    return dp_accounting


def dp_event(certificate: Certificate, beyond: float = 1e-15) -> Any:
    """Return a `DpEvent` of dp-accounting that dominates the release (docs/interop.md).

    A `DpEvent` cannot express a delta.  Add the release's additional delta, at most `beyond`, to each delta of the accountant.
    Keep the accountant's default neighbouring relation: `REPLACE_ONE` counts the distance between neighbours twice.
    If the release used a learnt schema, the event includes the epsilon and delta of the schema.
    """
    apart = "dp_event: the schema was learnt for other neighbours than the fit, so their costs do not add up."
    require(certificate.whole[1] is not None, apart)
    costs = [schema_cost(one)[0] for one in (certificate.learnt.costs if certificate.learnt else ())]
    da, events, lost = library(), [], 0.0
    fit = certificate.event or Approximate(certificate.epsilon, certificate.delta)
    for leaf in (*fit.leaves(), *(Approximate(cost.epsilon, cost.delta) for cost in costs)):
        kind, scale, more = da.NoOpDpEvent, 0.0, getattr(leaf, "delta", 0.0)
        if isinstance(leaf, Tail):
            more = failure_delta(leaf.probability, WITHIN)
        elif isinstance(leaf, Pure | Approximate):  # Laplace noise at the corner of randomised response
            kind, scale = da.LaplaceDpEvent, 2 * math.log1p(math.expm1(min(leaf.epsilon, 700.0)) / 2)
            scale *= 1 + BOUND_SLACK
        else:
            kind, (scale, more) = da.GaussianDpEvent, leaf.level()
        lost += more
        events += [kind(math.nextafter(1 / scale, 0.0))] if scale > 0 else []
    if not lost <= beyond:
        why = f"besides its event, the release has a delta = {lost:.3g}, which no DpEvent can express"
        remedy = f"pass beyond={lost * ROUNDED_UP!r}, and add it to every delta of the accountant"
        raise NotPrivate(why, "the certificate", remedy)
    return events[0] if len(events) == 1 else da.ComposedDpEvent(events)


def charge(budget: Budget, spend: Any, entry: str, delta: float | None = None, apart: float | None = None) -> None:
    """Charge the cost of another library's release to a ledger, before the release.  Totals never decrease.

    Parameters
    ----------
    spend : DpEvent or Measurement
        An event of dp-accounting, or a measurement of OpenDP on data sets.  Its privacy map is evaluated for neighbours of the
        ledger.  Neither event nor map is checked.
    delta : float, optional
        Delta at which the epsilon of a spend without a pure guarantee is recorded, beside its event.
    apart : float, optional
        Distance between neighbours in lengths of one record: by default 2 under replace-one, otherwise 1. For an event of
        `dp_event` it is 1. A `NoOpDpEvent` costs nothing, and makes no entry.
    """
    instance(Budget).check("charge", budget=budget)
    between(0, 0.5).or_none.check("charge", delta=delta)
    number("a number, 1 or above", lambda value: 1 <= value < math.inf).or_none.check("charge", apart=apart)
    total = budget.privacy
    if total.keep is not None:
        raise TemplateError(f"charge: {entry!r} does not limit a {total.unit} to {total.most} records.")
    measured = hasattr(spend, "output_measure")
    if not measured and is_nothing(library(), spend):
        return
    known = from_opendp(spend, total, delta) if measured else from_dp_event(spend, total, delta, apart)
    known = known if measured or total.most == 1 else known.of_group(total.most)
    parts: list[Any] = list(known.leaves())
    if isinstance(known, Approximate) or all(isinstance(part, Pure) for part in parts):
        epsilon = math.fsum(part.epsilon for part in parts) * (ROUNDED_UP if len(parts) > 1 else 1)
        promise = total.part(epsilon, getattr(known, "delta", 0.0))
    else:  # its delta is too large for basic composition
        delta = at(delta)
        promise = total.part(best_total([total.part(1.0, 2 * delta)], [known], delta).epsilon, delta)
    budget.spend(promise, entry, known)


def at(delta: float | None) -> float:
    if delta is None:
        raise TemplateError("charge: the cost is not pure: pass delta=, at which its epsilon is entered.")
    return delta


def from_opendp(measurement: Any, total: Privacy, delta: float | None) -> Event:
    """Return the event of a measurement for one person of the ledger; by symmetric distance, a replaced record counts twice."""
    import opendp.prelude as odp

    metric, distance, replaced = measurement.input_metric, total.most, total.adjacency == "replace-one"
    if not replaced and "size=" in str(measurement.input_domain):
        why = "a measurement on data of a fixed size does not cover added or removed records"
        raise TemplateError(f"charge: {why}. Leave size= out of its domain, or count in replace-one.")
    if metric in [odp.symmetric_distance(), odp.insert_delete_distance()]:
        distance *= 1 + replaced
    elif not (replaced and metric in [odp.change_one_distance(), odp.hamming_distance()]):
        raise TemplateError(f"charge: a measurement between {metric} does not cover {total.adjacency} neighbours.")
    if measurement.output_measure == odp.zero_concentrated_divergence():
        measurement = odp.c.make_zCDP_to_approxDP(measurement)
    found, measure = measurement.map(distance), measurement.output_measure
    if measure == odp.max_divergence():
        return Pure(found)
    if measure == odp.smoothed_max_divergence():
        return Approximate(found.epsilon(at(delta)), at(delta))
    if measure != odp.approximate(odp.max_divergence()):
        raise TemplateError(f"charge: the output measure {measure} is not supported.")
    return Approximate(*found)


def from_dp_event(event: Any, total: Privacy, delta: float | None, apart: float | None) -> Event:
    """Return the event of a `DpEvent`; if there is none, as for Poisson samples, the epsilon of dp-accounting."""
    da, replaced = library(), total.adjacency == "replace-one"
    if not isinstance(event, da.DpEvent):
        raise TemplateError(f"charge: expected a DpEvent, or a Measurement of OpenDP, not {event!r:.60}.")
    parts = read(da, event, 1.0 + replaced if apart is None else apart)
    if parts:
        return parts[0] if len(parts) == 1 else Composition(tuple(parts))
    relation = da.NeighboringRelation.REPLACE_ONE if replaced else da.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = da.pld.PLDAccountant(relation)
    why = f"known neither here nor to dp-accounting's PLDAccountant for {relation.name} without apart="
    require(apart is None and accountant.supports(event), f"charge: the cost of {event!r:.120} is {why}.")
    return Approximate(accountant.compose(event).get_epsilon(at(delta)) * (1 + 1e-9), at(delta))


def is_nothing(da: Any, event: Any) -> bool:
    """Return whether an event contains no release."""
    match event:
        case da.ComposedDpEvent(events=events):
            return all(is_nothing(da, part) for part in events)
        case da.SelfComposedDpEvent(event=part, count=count):
            return count == 0 or is_nothing(da, part)
    return isinstance(event, da.NoOpDpEvent)


def read(da: Any, event: Any, distance: float) -> list[Event]:
    """Return the parts of an event; an empty list if a part has no counterpart here."""
    match event:
        case da.GaussianDpEvent(noise_multiplier=noise) if noise > 0:
            return [Gaussian(math.nextafter(distance / noise, math.inf))]
        case da.LaplaceDpEvent(noise_multiplier=noise) if noise > 0:
            return [Pure(math.nextafter(distance / noise, math.inf))]
        case da.ComposedDpEvent(events=events):
            parts = [read(da, part, distance) for part in events if not is_nothing(da, part)]
            return [leaf for part in parts for leaf in part] if all(parts) else []
        case da.SelfComposedDpEvent(count=count) if not is_whole(count, 1):
            raise TemplateError(f"charge: the count of a composition must be a positive whole number, not {count!r}.")
        case da.SelfComposedDpEvent(event=part, count=count):
            leaves = read(da, part, distance)
            if len(leaves) == 1 and isinstance(leaves[0], Gaussian):
                return [Gaussian(leaves[0].mu * math.sqrt(count) * ROUNDED_UP)]
            return leaves * count if len(leaves) * count <= MOST else []
    return []


def opendp(template: Template, privacy: Privacy, size: int, *, clip: bool = False, **options: Any) -> Any:
    """Return an OpenDP `Measurement` that maps data, a mapping of arrays, to the `Release` of `dp.solve`.

    Its input metric is symmetric distance for add-remove, and change-one distance for replace-one.  Its privacy map is the
    certificate's, also for groups.  OpenDP checks neither function nor map: you confirm that you trust them by
    ``enable_features("contrib", "honest-but-curious")``. Options, such as mechanism, are those of `verify`.
    """
    import opendp.prelude as odp

    check_privacy("opendp", privacy)  # not for units: the data have no identifiers
    certificate, fields = verify(template, privacy, size, **options), {*template.record.fields}

    def cost(distance: int) -> float | tuple[float, float]:
        found = certificate.for_group(distance) if distance else Amount(0.0, 0.0)
        return found.epsilon if privacy.pure else (found.epsilon, found.delta)

    return odp.m.make_user_measurement(
        odp.user_domain(str(template.record), lambda data: isinstance(data, Mapping) and {*data} == fields),
        odp.change_one_distance() if privacy.adjacency == "replace-one" else odp.symmetric_distance(),
        odp.max_divergence() if privacy.pure else odp.approximate(odp.max_divergence()),
        partial(solve, template, privacy=privacy, size=size, clip=clip, **options),
        cost,
        TO="ExtrinsicObject",
    )
