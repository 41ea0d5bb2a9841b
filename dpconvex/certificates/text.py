"""Text of certificates: eight lines, and the proof."""

import html
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

from dpconvex.accounting.budget import amount_text, schema_cost
from dpconvex.accounting.composition import as_fraction, ceiling
from dpconvex.accounting.events import Approximate, Composition, Event
from dpconvex.certificates.derivation import Derivation
from dpconvex.checker import Report, check
from dpconvex.checker.table import PARTS, RANGE, RECORDS, RUNS
from dpconvex.model.privacy import Privacy, text
from dpconvex.util.arguments import Kind
from dpconvex.util.markup import details, html_list, html_table, paragraph, shorten_numbers, upward

Rows = Iterator[tuple[str, str, str]]
COMPARED = (
    *("epsilon", "delta", "size", "gradient_bound", "sensitivity", "strong_convexity", "hessian_bound"),
    *("jacobian_epsilon", "noise_epsilon", "noise_dimension", "noise_scale", "expected_noise", "expected_shift"),
)
# First words of an assumption about public arrays, of one about a user's own atom, and of advice about a privacy unit and about
# few records.
PUBLIC, DECLARED, UNIT_COST, FEW_RECORDS = "Taken as public: ", "The atom ", "Noise for a ", "Few records: "
# The quantity that receives the noise, by `perturbed`; nothing is printed for an objective.
ON = {"output": " (on the parameters)", "gradients": " (at every step)", "statistics": " (on the statistics)"}


def number(value: float) -> str:
    return f"{value:.6g}"


def cost(value: float) -> str:
    return upward(value, 6)


def columns(rows: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    found = list(rows)
    wide, broad = (max(len(row[k]) for row in found) for k in (0, 1))
    return (f"  {name:<{wide}}  {value:>{broad}}  {why}" for name, value, why in found)


def guarantee_text(privacy: Privacy, exceptions: str = "") -> str:
    kind = "pure DP" if privacy.pure else "approximate DP"
    return f"epsilon = {text(privacy.epsilon)}, delta = {text(privacy.delta)} ({kind}){exceptions and ', '}{exceptions}"


def meaning_text(privacy: Privacy) -> str:
    """Return the meaning of a guarantee for one person, as a factor on the probability of any conclusion, rounded up."""
    times = upward(math.exp(privacy.epsilon), 3) if privacy.epsilon < 700 else "exp(epsilon)"
    many = privacy.unit is not None
    other = "with other records" if many else "with another record"
    other = f"{other} in place of theirs" if privacy.adjacency == "replace-one" else f"without their record{'s' * many}"
    more = "" if privacy.pure else f", plus a probability of {text(privacy.delta)}"
    whose = f"whatever is concluded about one {privacy.unit or 'person'} is at most {times} times as likely"
    return f"{whose} as it would be {other}{more}"


def proof(derivation: Derivation, assumptions: Iterable[str]) -> list[str]:
    said = [f"  - {text}" for text in assumptions]
    return ["", "Derivation", *(f"  {line}" for line in derivation.lines()), *(["", "Assumed", *said] if said else [])]


def source(root: Derivation, key: str) -> str:
    """Return the source, or the rule, of the first derivation step whose rule contains `key`, level by level."""
    level = root.children
    while level:
        for step in level:
            if key in step.rule:
                return step.source or step.rule
        level = tuple(child for step in level for child in step.children)
    return root.source


def tree(step: Derivation) -> str:
    head = html.escape(shorten_numbers(next(iter(step.lines())).strip()))
    return f"<ul><li>{head}{''.join(tree(child) for child in step.children)}</li></ul>"


@dataclass(frozen=True, repr=False)
class Comparison:
    """The constants of two certificates, their ratios, and the certificate that moves the answer less."""

    first: Any
    second: Any

    def __repr__(self) -> str:
        lines = [f"{name + ':':<8}{one.mechanism}, {one.whole[0]}" for name, one in vars(self).items()]
        lines += ["", f"{'constant':<28}{'first':>12}{'second':>12}{'ratio':>9}"]
        for name in COMPARED:
            a, b = getattr(self.first, name), getattr(self.second, name)
            ratio = f"{b / a:.3f}" if a else "-"
            lines.append(f"{name.replace('_', ' '):<28}{number(a):>12}{number(b):>12}{ratio:>9}")
        a, b = self.first.expected_shift, self.second.expected_shift
        verdict = "Both perturb the answer equally."
        if abs(a - b) > 1e-6 * max(a, b):
            ratio = f": bounds differ {max(a, b) / min(a, b):.3g}-fold" if min(a, b) else ""
            verdict = f"The {'first' if a < b else 'second'} perturbs the answer less{ratio}."
        for kind in ("statistics", "queries"):
            if (self.first.perturbed == kind) != (self.second.perturbed == kind):
                verdict = f"Noise on {kind} and noise on an answer do not compare directly."
        if self.first.privacy != self.second.privacy:
            verdict = "The guarantees differ, so the noise of the two does not compare directly."
        return "\n".join([*lines, "", verdict])


class Printed:
    """Text of every certificate: the eight `lines`, as text and as HTML, and the proof."""

    def spending(self) -> Rows:
        yield from ()

    def __str__(self: Any) -> str:
        return "\n".join(f"{name + ':':<17}{said}" for name, said in self.lines())

    def explain(self: Any) -> str:
        """Return the eight lines, all constants, the shares of epsilon, the derivation and the assumptions, as text."""
        lines = [str(self), "", "Constants (sum form)", *columns(self.rows())]
        spent = [f"  {epsilon:>8}  ({share:>5})  {what}" for epsilon, share, what in self.spending()]
        lines += ["", "How epsilon is spent", *spent] if spent else []
        lines += [f"  {sentence}" for sentence in getattr(self, "advice", ())]
        return "\n".join([*lines, *proof(self.derivation, self.assumptions)])

    def _repr_html_(self: Any) -> str:
        spent, advice = list(self.spending()), getattr(self, "advice", ())
        paid = paragraph("How epsilon is spent") + html_table(["epsilon", "share", "pays for"], spent, numbers=(0, 1))
        return html_table(["certificate", ""], self.lines(), numbers=()) + details(
            "proof",
            html_table(["constant", "value", "from"], self.rows())
            + (paid if spent else "")
            + (html_list(advice) if advice else "")
            + details("derivation", tree(self.derivation))
            + details("assumptions", html_list(self.assumptions)),
        )


class CertificateText(Printed):
    """Text of a learner's certificate, its comparison with another one, and the check of its proof."""

    # The result of the check of the proof, in a sentence; empty before a check.
    replayed: ClassVar[str] = ""
    proved: ClassVar[bool] = True  # False if there is no proof, or if a check rejected it
    learnt: ClassVar[Any] = None  # Costs of the release's learnt schema

    @property
    def whole(self: Any) -> tuple[Privacy, Event | None, str]:
        """Guarantee and event of a fit with its learnt schema, and the parts in words; the event is None if neighbours differ."""
        costs = [(self.privacy, self.event or Approximate(self.epsilon, self.delta))]
        costs += map(schema_cost, self.learnt.costs if self.learnt else ())
        (own, *promises), events = zip(*costs, strict=True)
        learnt = f"{' and '.join(map(amount_text, promises))} for the schema, which was learnt"
        paid = f"{amount_text(own)} for the fit, and {learnt}"
        if len({(one.adjacency, one.unit) for one in (own, *promises)}) > 1:
            return own, None, f", of the fit alone: {paid}, about other neighbours; these do not add up"
        every = (own, *promises)
        sums = {name: ceiling(sum(as_fraction(getattr(one, name)) for one in every)) for name in ("epsilon", "delta")}
        keep = own.keep if all(one.keep == own.keep for one in promises) else None
        added = replace(own, **sums, most=min(one.most for one in every), keep=keep)
        return added, Composition(events), f"; of this {paid}" if promises else ""

    def with_costs(self, learnt: Any) -> Self:
        """Return a copy with the costs of a learnt schema."""
        found = object.__new__(type(self))
        vars(found).update(vars(self), learnt=learnt)
        return found

    @property
    def described(self: Any) -> str:
        return self.mechanism + ", on component labels of noisy k-means" * (self.clustering is not None)

    @property
    def error(self: Any) -> str:
        """The distance of the answer from the one without privacy, in a sentence."""
        mean = math.inf if self.predicted_risk is None else self.predicted_risk / self.size
        risk = f"excess empirical risk {mean:.3g} (predicted); " * (self.predicted_risk is not None)
        residual = 0.0 if self.cover is None else self.cover.size
        most, widest = self.noise_shift + residual, math.inf if self.diameter is None else self.diameter
        said = f"{most:.3g}" if most < widest else f"{widest:.3g}, the diameter of the constraints"
        return f"for the worst data, {risk}mean distance from the minimiser without noise: at most {said}"

    @property
    def proof(self: Any) -> bytes | None:
        """The proof that `check` replays (docs/checking.md), or None.  It is written on first use."""
        return self._written[0]

    @cached_property
    def _written(self: Any) -> tuple[bytes | None, str]:
        """The proof, or None, and the reason if there is none."""
        if not callable(self.writer):
            return self.writer, "its proof was left out"
        try:
            return self.writer(self), ""
        except Exception as error:  # the guarantee does not depend on this proof, so errors must not stop the release
            return None, f"no proof of it can be written ({type(error).__name__}: {error})"

    def check(self: Any) -> Report:
        """Replay the proof by an independent checker, which shares no code with the calculus.  The certificate prints the result.

        Raises
        ------
        Rejected
            At the first step that does not follow by the checker's rules, which are simpler than the calculus.
        """
        text, why = self._written
        report = Report(0, (), (why,)) if text is None else check(text, self.event and self.event.to_dict())
        self.noted(f"The proof was checked: {report}.")
        return report

    def noted(self: Any, replayed: str, proved: bool = True) -> Any:
        """Record the result of a check, which the certificate prints; return the certificate."""
        vars(self).update(replayed=replayed, proved=proved)
        return self

    def compare(self: Any, other: Any) -> Comparison:
        """Return the comparison with another certificate, which prints as a table."""
        certificates = Kind(
            "a certificate of a fit, as of `dp.verify`", lambda value: isinstance(value, CertificateText)
        )
        certificates.check("compare", other=other)
        return Comparison(self, other)

    def lines(self: Any) -> Iterator[tuple[str, str]]:
        n, parts = int(self.settings.get(RECORDS, self.size)), int(self.settings.get(PARTS, 0))
        fitted = f", of which {self.size}, one of {parts} parts, are fitted" * (parts > 0)
        unit = f"(substitution adjacency); the number of records, n = {n}, is public{fitted}"
        if self.privacy.adjacency == "add-remove":
            unit = f"(add-remove adjacency); the number of records is protected, and a nominal n = {n} stands for it{fitted}"
        yield "certificate", self.described
        whole, _, paid = self.whole
        costs = self.learnt.costs if self.learnt else []
        seeded = next((f"NOT PRIVATE: {one.not_private_because}; " for one in costs if one.not_private_because), "")
        yield "guarantee", seeded + guarantee_text(whole, self.exceptions) + paid
        cost = "".join(f"; {fact.rstrip('.').lower()}" for fact in self.advice if fact.startswith(UNIT_COST))
        yield "privacy unit", f"{self.privacy.whose} {unit}{cost}"
        yield "meaning", meaning_text(whole)
        arrays = [fact.removeprefix(PUBLIC).rstrip(".") for fact in self.assumptions if fact.startswith(PUBLIC)]
        columns = ", ".join(map(repr, self.learnt.columns if self.learnt else ()))
        learnt = columns and f", except bounds and levels of {columns}, which were learnt"
        yield "taken as public", ("; ".join(arrays) or "all that the template declares") + learnt
        runs = ", or how many runs there were" * (RUNS in self.settings)
        own = "; your own atoms are as declared" * any(fact.startswith(DECLARED) for fact in self.assumptions)
        someone = self.privacy.unit
        a_person = f"all records of one {someone} have the same identifier" if someone else "each person has one record"
        own += "; nothing about the loss: the guarantee holds for any loss" * (self.perturbed == "queries")
        yield "assumed", f"{a_person}; nobody observes how long a fit takes, or whether it failed{runs}{own}"
        yield "expected error", ". ".join([self.error, *(fact for fact in self.advice if fact.startswith(FEW_RECORDS))])
        said = "explain() prints it; check() replays it independently, or says what it cannot replay"
        yield "proof", "of the fit alone; " * bool(columns) + (self.replayed or said)

    def rows(self: Any) -> Rows:
        root, statistics, queries = self.derivation, self.perturbed == "statistics", self.perturbed == "queries"
        if queries:
            said = "GDP of all queries together; squared levels add up"
            yield "level mu", cost(self.settings["level"]), said
        elif statistics:
            yield "statistics", f"{self.noise_dimension}", source(root, "moments")
            yield "length of a record's", number(self.gradient_bound), source(root, "length")
            yield "sensitivity", number(self.sensitivity), source(root, "sensitivity")
        else:
            yield "gradient bound G", number(self.gradient_bound), source(root, "gradient")
            yield "sensitivity G_adj", number(self.sensitivity), source(root, "sensitivity")
            added = f", plus {number(self.added)} that the mechanism adds" if self.added else ""
            own = number((self.strong_convexity - self.added) / self.size)
            if self.strong_convexity:
                made = f"{self.size} x {own} of the regularizer{added}"
                yield "strong convexity mu", number(self.strong_convexity), made
            if self.curved:
                yield "largest Hessian eigenvalue", number(self.hessian_bound), "of one record's loss"
            yield "sensitive subspace", f"{self.noise_dimension} dimensions", source(root, "subspace")
        name = "noise deviation sigma" if self.is_gaussian else "noise scale 1/beta"
        mean = f"mean Euclidean norm of the noise b: {number(self.expected_noise)}{ON.get(self.perturbed, '')}"
        if not queries:
            yield name, number(self.noise_scale), mean
        if self.predicted_risk is not None:
            said = f"sum over the records, {number(self.predicted_risk / self.size)} each; a prediction from public numbers"
            yield "predicted excess risk", number(self.predicted_risk), said
        for setting, value in self.settings.items():
            if setting != "level":  # printed above
                both = "nuclear norm of the difference of two gradients, which this noise hides"
                public = f"{'of the noise' if self.noise == 'matrix' else 'a setting'}, from public numbers"
                shown = cost if {"epsilon", "delta"} & {*setting.split("_")} else number
                yield setting.replace("_", " "), shown(value), both if "sensitivity" in setting else public
        if self.cover is not None:
            what = "statistics from the exact ones" if statistics else "answer from the exact minimiser"
            gap = f"largest distance of the computed {what}"
            if not self.minimises and not statistics:
                gap = "bound on what rounding does to the answer of these steps; not a distance to a minimiser"
            yield "tolerance tau", number(self.cover.distance), gap
        for part in (self.cover, self.clustering):
            yield from () if part is None else part.rows()

    def spending(self: Any) -> Rows:
        for spent, what in self.shares():
            yield cost(max(spent, 0.0)), f"{100 * spent / self.epsilon:.0f} %", what

    def shares(self: Any) -> Iterator[tuple[float, str]]:
        """Yield each share of epsilon, and its purpose."""
        product = "the sensitivity" if self.perturbed == "statistics" else "G_adj"
        paid = {
            "gamma": f": beta x {product}",
            "gaussian": f", with {'all of delta' if self.clustering is None else 'its delta'}",
            "matrix": ": beta x the sensitivity in the nuclear norm",
        }
        yield self.noise_epsilon, f"the noise{paid[self.noise]}"
        if self.curved:
            whose = "one record" if self.privacy.most == 1 else f"one {self.privacy.unit}"
            yield self.jacobian_epsilon, f"{whose}'s curvature: log det(I + H/mu)"
        if self.cover is not None:
            yield self.cover.epsilon, "the residual noise, for the tolerance tau"
            if self.cover.counting:
                yield self.cover.counting, "a noisy number of records, which tau depends on"
        if self.clustering is not None:
            yield self.clustering.epsilon, "the component labels: noisy k-means"
        if RANGE in self.settings:
            yield self.settings[RANGE], "the range of the target: two private choices"
