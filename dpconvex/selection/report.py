"""Write a report of a release for decision makers: one HTML page that needs no network and prints well."""

import hashlib
import html
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from string import Template as Page
from typing import Any

import numpy as np

from dpconvex.accounting.budget import Budget, amount_text
from dpconvex.certificates.text import meaning_text
from dpconvex.data.schema import Schema
from dpconvex.fitting.problem_files import load, problems, takes_intercept
from dpconvex.fitting.release import Release, functions_of
from dpconvex.fitting.statistics import Coefficients
from dpconvex.model.privacy import Privacy
from dpconvex.selection.evaluation import Evaluation
from dpconvex.selection.measures import MEANING
from dpconvex.util.arguments import instance, require
from dpconvex.util.charts import bar_of, chart
from dpconvex.util.markup import digits, downward, upward
from dpconvex.util.places import replaceable_path, write_atomically

PAGE = Path(__file__).with_name("report.html")
RATES = (0.01, 0.05, 0.1)  # False positive rates at which risks are stated
SHOWN = 60  # Largest number of coefficients shown
UNIT_LINE = ("privacy unit", "taken as public", "assumed")  # Lines of a certificate
BESIDE = ("constant", "auc", "r2")  # Stated next to an error
SQUARED = {"error": ("mean squared error", "of predictions"), "constant": ("that of a constant", "of the mean")}


def report(
    release: Any,
    evaluation: Evaluation | None = None,
    budget: Budget | None = None,
    path: str | os.PathLike[str] | None = None,
    *,
    coefficients: Coefficients | None = None,
    title: str | None = None,
) -> str:
    """Write a report of a release, for its users and an ethics board, from released numbers alone; return its HTML.

    Parameters
    ----------
    release : Release or estimator
        A fitted additive model adds its curves.
    evaluation : Evaluation, optional
        Its measured errors.
    budget : Budget, optional
        The ledger that says what was spent on the same people, and by whom.
    path : str or path, optional
        Where to write it, such as ``report.html``.
    coefficients : Coefficients, optional
        Intervals of its parameters, as `dpconvex.intervals` releases them.
    title : str, optional
        Heading of the page.
    """
    found = getattr(release, "release_", release)
    own = "Pass its `release`." * hasattr(release, "release")
    instance(Release).check("report", own, release=found)
    for given, kind in ((evaluation, Evaluation), (budget, Budget), (coefficients, Coefficients)):
        instance(kind).or_none.check("report", **{kind.__name__.lower(): given})
    file = None if path is None else replaceable_path(path)
    label = "a label" if found.schema is None else found.schema.label
    privacy, certificate = total_guarantee(found)[0], found.certificate
    lines = [] if certificate is None or privacy is None else list(certificate.lines())
    risks = [(a, certificate.risk(a)) for a in RATES] if hasattr(certificate, "risk") and privacy else []
    page = Page(PAGE.read_text(encoding="utf-8")).substitute(
        title=escape(title or f"A model that predicts {label}"),
        date=f"{datetime.now(UTC):%d %B %Y}",
        board=statement(found, evaluation, budget, coefficients),
        learnt="\n".join(learnt_section(found, getattr(release, "shapes_", {}), coefficients)),
        judged="<p>Nobody measured it.</p>" if evaluation is None else "\n".join(evaluation_section(evaluation)),
        meaning="Nothing is claimed." if privacy is None else escape(f"{meaning_text(privacy)}.".capitalize()),
        unit=escape((privacy and privacy.unit) or "person"),
        claimed="" if privacy is None else claims(privacy, risks, lines),
        size=f"The number of records is {'public' if privacy is None or privacy.adjacency == 'replace-one' else 'protected'}.",
        spent="<p>No ledger was given.</p>" if budget is None else budget_section(budget, found),
        digest=hashlib.sha256(found.to_bytes()).hexdigest(),
        certificate=table(["", ""], lines),
    )
    if file is not None:
        write_atomically(file, page.encode("utf-8"))
    return page


def total_guarantee(release: Release) -> tuple[Privacy | None, Any, str]:
    """Return the guarantee of everything in a release (None without one), its event, and a text of its parts."""
    return getattr(release.certificate, "whole", (release.spent, None, "")) if release.private else (None, None, "")


def missing_charges(release: Release, budget: Budget) -> list[str]:
    """Return the charges of a release that are missing in a ledger: its fit, and learnt schemas."""
    event, paid, entries = getattr(release.certificate, "event", None), release.spent or Privacy(1.0), budget.entries
    pairs = ((item.event, item.privacy) for item in entries)
    same = (own == event if own and event else cost.claims == paid.claims for own, cost in pairs)
    schemas = {one.entry for one in (release.learnt.costs if release.learnt else ())}
    return ["its fit"] * (not any(same)) + sorted(schemas - {item.label for item in entries})


def statement(
    release: Release, evaluation: Evaluation | None, budget: Budget | None, coefficients: Coefficients | None
) -> str:
    """Return a paragraph for an ethics board."""
    privacy, _, parts = total_guarantee(release)
    if privacy is None:
        return warning(f"Not private: {release.not_private_because or release.status}. Do not publish this model.")
    said = [f"This model was learnt under differential privacy: {amount_text(privacy)}{parts}. {protected(privacy)}"]
    if release.certificate is not None:
        method = getattr(release.certificate, "mechanism", "a private bound")
        said.append(f"Random noise hides what each {privacy.unit or 'person'} adds to the fit (the method: {method}).")
    holds = "It holds whatever else a reader knows, and for all later uses of the model."
    said.append(f"That means: {meaning_text(privacy)}. {holds}")
    if evaluation is not None and evaluation.private:
        beside = ((MEANING[name][0], value) for name, value in evaluation.summary().items() if name in BESIDE)
        measured = f"{evaluation.measure} {evaluation.first} on {evaluation.records} records"
        measured += "".join(f"; {name} {value}" for name, value in beside)
        cost = amount_text(evaluation.spent or privacy)
        said.append(f"How well it does was measured privately, too ({cost}): {measured}.")
    if coefficients is not None and coefficients.private:
        cost = amount_text(coefficients.spent or privacy)
        said.append(f"The intervals of its parameters are another release about the same people: {cost}.")
    if budget is not None and not missing_charges(release, budget):
        spends = f"{amount_text(budget.spent, upward)}, of a total of {amount_text(budget.privacy)}"
        said.append(f"The ledger of these people counts {spends}.")
    if privacy.adjacency == "replace-one":
        said.append("The number of records is taken as public.")
    return f'<div class="board"><p><b>For the ethics board.</b> {escape(" ".join(said))}</p></div>'


def claims(privacy: Privacy, risks: Sequence[tuple[float, float]], lines: Sequence[tuple[str, str]]) -> str:
    """Return what an attacker finds at most, and whom the guarantee protects."""
    unit = escape(privacy.unit or "person")
    head = ["wrongly suspected, of those who are not in the data", "found at most, of those who are"]
    found = [(f"{100 * a:g} of 100", f"{upward(100 * (1 - missed), 3)} of 100") for a, missed in risks]
    asked = (
        f"Suppose somebody tries to tell from the model whether one {unit} is in the data, with all the skill there is:"
    )
    parts = [f"<p>{asked}</p>", table(head, found)] if risks else []
    parts.append(f"<p><b>Protected</b> are the records of one {unit}, as declared:</p>")
    return "\n".join([*parts, table(["", ""], [line for line in lines if line[0] in UNIT_LINE])])


def protected(privacy: Privacy) -> str:
    """Return a sentence that says which records a guarantee protects together."""
    if privacy.unit is None:
        return "It protects each record. A person with several records is protected less."
    used = {"first": "its first records are used", "random": "records drawn at random are used"}
    more = {None: "the fit is refused", "weights": "each counts less"} | used
    unit, most = privacy.unit, f"{privacy.most} record{'s' * (privacy.most > 1)}"
    return f"All records of a {unit} are protected together, up to {most}; of a {unit} with more, {more[privacy.keep]}."


def learnt_section(release: Release, shapes: Mapping[Any, Any], coefficients: Coefficients | None) -> Iterator[str]:
    rows = [] if shapes else list(effects(release, coefficients))
    if coefficients is not None and not coefficients.private:
        yield warning(f"These intervals are not private: {coefficients.status}.")
    if rows:
        most = float(np.nanmax(np.abs([numbers for _, _, *numbers in rows]))) or 1.0
        means = "a number, over the range that is named; a level, where it is there"
        yield f"<p>What a column adds to {escape(effect_unit(release)[1])}: {means}.</p>"
        hidden = ", ".join(name for name, *_, low, high in rows if not high >= low)
        drawn = ((digits(v), f"{digits(a)} to {digits(b)}" * (b > a), bar_of(v, a, b, most)) for *_, v, a, b in rows)
        head = ["column", "effect", "interval" * (coefficients is not None), ""]
        cells = [(": ".join(filter(None, row[:2])), *own) for row, own in zip(rows, drawn, strict=True)]
        yield table(head, cells[:SHOWN], (1, 2), drawn=(3,))
        if coefficients is None:
            yield '<p class="soft">Nobody released intervals of effects. Noise moves small effects, and their signs.</p>'
        elif hidden:
            yield f'<p class="soft">Noise hides the curvature along these effects, which have no interval: {escape(hidden)}.</p>'
        if note := missing_intercept(release):
            yield warning(note)
    elif not shapes:
        shown = [(name, " × ".join(map(str, v.shape)) or "a number") for name, v in release.items()]
        yield table(["parameter", "shape"], shown)
    curves, levels = [], []
    for name, shape in shapes.items():
        nodes, off = shape.nodes[0], 2 * shape.deviations
        knots = [node for node in nodes if not isinstance(node, str)]
        if len(shape.nodes) == 1 and knots:
            count, most = len(knots), float(np.max(np.abs(shape.values) + off)) or 1.0
            reach = (part[:count] for part in (shape.values, shape.values - off, shape.values + off))
            box, line = (knots[0], knots[-1], -most, most), (knots[0], 0.0, knots[-1], 0.0)
            title = f"{name}: what it adds to the score"
            curves.append(chart(title, str(name), "score", knots, *reach, line=line, box=box))
        elif len(shape.nodes) == 1:
            for node, value, noise in zip(nodes, shape.values, off, strict=True):
                levels.append((f"{name} = {node}", f"{value:.3g}", f"± {noise:.2g}"))
    yield f'<div class="charts">{"".join(curves)}</div>'
    yield table(["level", "score", "noise"], levels, (1, 2)) if levels else ""


def missing_intercept(release: Release) -> str:
    """Return a warning about effects of a shipped problem on a schema's features without an intercept, or an empty text."""
    name, schema = release.source[0] if release.source else "", release.schema
    if not takes_intercept(name) or "b" in release or schema is None or schema.constant:
        return ""
    said = "The fit has no intercept. Effects of columns stand for it, and their signs may be wrong."
    return f"{said} Fit with fit_intercept=True, or with constant=0.5."


def effect_unit(release: Release) -> tuple[float, str]:
    """Return the factor from units of the score to those of effects, and the name of the quantity they add to."""
    schema, (name, settings) = release.schema, release.source or ("", {})
    learner = load(name, **settings) if name in problems() else None
    ratio, labels = learner.ratio if learner else "", schema.labels if schema else None
    if learner and functions_of(learner)["scaled"] and schema and schema.label_bounds and not ratio:
        low, high = schema.label_bounds
        return high / 2 - low / 2, f"{schema.label!r}, in its units"
    whose = f" of {labels[1]!r}" if labels and len(labels) == 2 else ""
    return 1.0, f"the score{whose}" + f"; exp of it is the {ratio}" * bool(ratio)


def shown_changes(schema: Schema) -> Iterator[tuple[float, str]]:
    """Yield, for each feature, the change whose effect is shown (before division by the norm bound), and its description."""
    for name, column in schema.features.items():
        first, *_, last = (f"{end:g}" if isinstance(end, float) else str(end) for end in column.content)
        base, further = getattr(column, "reference", None), len(column.names(name)) - 1
        if column.square == 1:
            yield from [(1.0, f"against {base!r}" if base else "")] * (further + 1)
        else:
            yield from [(1.0, f"{first} to {last}"), *[(math.sqrt(column.square), "against the middle")] * further]


def effects(release: Release, coefficients: Coefficients | None) -> Iterator[tuple[str, str, float, float, float]]:
    """Yield (name, change, effect, lower, upper) for the features of a model with one score, largest effect first."""
    schema, weights = release.schema, release.parameters.get("w")
    names = release.names if schema is None else tuple(schema.feature_names)
    if weights is None or weights.ndim != 1 or names is None or len(names) != len(weights):
        return
    rows = [] if coefficients is None else coefficients.rows()
    known = {name: (value, low, high) for name, value, _, _, low, high in rows}
    places = [f"w[{k}]" for k in range(len(weights))]
    said = "these coefficients are not those of the release's parameters; pass what dp.intervals returned for it."
    require(not rows or known.keys() >= set(places), said)
    found = np.array([known.get(name, (value, value, value)) for name, value in zip(places, weights, strict=True)])
    found[:, 0] = np.where(np.isnan(found[:, 0]), weights, found[:, 0])  # undetermined, with the fitted value
    known_changes = [(1.0, "")] * len(found)
    if schema is not None:
        length = 1.0 if schema.unit else schema.norm_bound
        known_changes = [(size / length, said) for size, said in shown_changes(schema)]
        known_changes += [(schema.constant, "")] * bool(schema.constant)
    found = found * effect_unit(release)[0] * np.array([size for size, _ in known_changes])[:, None]
    for k in np.argsort(-np.abs(found[:, 0]), kind="stable"):
        yield names[k], known_changes[k][1], *found[k].tolist()


def evaluation_section(found: Evaluation) -> Iterator[str]:
    meaning, tables = MEANING | (SQUARED if found.cells.kind == "numbers" else {}), found.cells.tables
    scored = {"probabilities", "scores"} & {*tables}
    if found.cells.kind == "numbers":
        ends, (called, meant) = " and ".join(map(digits, found.bounds)), meaning["absolute_error"]
        meaning["absolute_error"] = called, f"{meant}; {found.label} is between {ends}"
    if not found.private:
        yield warning(f"This evaluation is not private: {found.status}. Do not publish it.")
    rows = []
    for name, value in found.summary().items():
        called, meant = meaning[name]
        rows.append((called, value.text, value.reach, meant))
    yield table(["", "estimate", "95 %", "meaning"], rows, (1, 2))
    yield f'<p class="soft">On {found.records} records. Intervals count sampling and noise.</p><div class="charts">'
    if scored:
        yield chart("ROC curve", "false positive rate", "true positive rate", *found.roc()[:4])
    if "probabilities" in tables:
        low, high = (points := found.calibration()).reach
        drawn: Any = {"line": (low, low, high, high), "points": True, "box": (low, high, low, high)}
        yield chart("Calibration", "predicted probability", "observed share", *points[:4], **drawn)
    if found.crowding:
        yield f'<p class="soft">{escape(found.crowding)}.</p>'
    if "by_prediction" in tables:
        curve, (first, last) = found.residuals()[:4], found.bounds
        most = float(np.nanmax(np.abs(curve[1:]), initial=0.0)) or 1.0
        drawn = {"line": (first, 0, last, 0), "points": True, "box": (first, last, -most, most)}
        yield chart("Residuals", f"predicted {found.label}", "median of truth minus prediction", *curve, **drawn)
    yield "</div>"
    if found.groups:
        own = {name: part.main() for name, part in found.by_group().items()}
        groups = [(name, *map(str, rates.values())) for name, rates in own.items()]
        at = f"<p>Rates are those of a threshold of {found.threshold:g}.</p>" * bool(scored)
        yield f"<h3>By group</h3>{at}" + (table(["group", *next(iter(own.values()))], groups) if own else "")
    if found.hidden:
        names = ", ".join(map(repr, found.hidden))
        yield f"<p>Nothing is said of {escape(names)}: noise outweighs the number of records.</p>"


def budget_section(budget: Budget, release: Release) -> str:
    used = f"{amount_text(budget.spent, upward)} is spent and {amount_text(budget.remaining, downward)} is left"
    head = f"<p>{escape(f'Of a total of {budget.privacy}, {used} ({budget.accounting} accounting).')}</p>"
    costs = ((item, item.privacy.epsilon, item.privacy.delta) for item in budget.entries)
    rows = [(e.label, upward(x, 6), upward(d, 6), e.time[:16].replace("T", " "), e.user, e.host) for e, x, d in costs]
    if missing := ", ".join(missing_charges(release, budget)):
        why = "It is the ledger of other people, or somebody did not charge it"
        head = warning(f"This ledger does not list this model; missing: {missing}. {why}.") + head
    return head + table(["release", "epsilon", "delta", "when (UTC)", "by", "on"], rows, (1, 2))


def warning(said: str) -> str:
    return f'<p class="warn"><b>{escape(said)}</b></p>'


def table(head: Sequence[str], rows: Sequence[Sequence[Any]], right: Any = (), drawn: Sequence[int] = ()) -> str:
    """Return an HTML table that scrolls if it is too wide.  Cells are escaped, except in `drawn` columns of pictures."""

    def line(cells: Sequence[Any], tag: str, pictures: Sequence[int]) -> str:
        kinds = (f"{tag} class=n" if k in right else tag for k in range(len(cells)))
        said = (cell if k in pictures else escape(cell) for k, cell in enumerate(cells))
        return f"<tr>{''.join(f'<{kind}>{cell}</{tag}>' for kind, cell in zip(kinds, said, strict=True))}</tr>"

    body = "".join(line(row, "td", drawn) for row in rows)
    return f'<div class="scroll"><table><thead>{line(head, "th", ())}</thead><tbody>{body}</tbody></table></div>'


def escape(said: object) -> str:
    return html.escape(str(said))
