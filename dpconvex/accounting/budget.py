"""The privacy budget: a privacy filter for adaptive composition, with its ledger in memory, a file or a database."""

import getpass
import os
import platform
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Self

from dpconvex.accounting import file_ledger
from dpconvex.accounting.composition import Amount, Basic, Entry, Total, rule_of, tail_probability, totals
from dpconvex.accounting.database_ledger import DatabaseLedger, is_address
from dpconvex.accounting.events import Approximate, Composition, Event, Gaussian, Tail, event_of
from dpconvex.accounting.file_ledger import FileLedger
from dpconvex.data.learnt import Learnt
from dpconvex.errors import BudgetExceeded, DPConvexError, TemplateError, shown
from dpconvex.model.privacy import Privacy, text
from dpconvex.noise.gaussian import GRID_LOSS, failure_delta, gaussian_delta
from dpconvex.numerics import TAIL_SLACK
from dpconvex.util.arguments import instance, recast, require
from dpconvex.util.markup import downward, html_table, paragraph, progress_bar, upward
from dpconvex.util.places import replaceable_path
from dpconvex.util.plain_data import build, is_real
from dpconvex.util.runtime import Interrupt, this_process

VERSION = 1
AS_IT_IS: Any = dict.fromkeys((Privacy, Event), lambda made: made)
ORIGIN = ("time", "user", "host", "dataset")
RARE = 0.1  # Share of a learnt schema's delta for levels of a category that only one person has


class Budget:
    """Count the privacy cost of many releases about the same people, and refuse to exceed a total.

    With a `path` the ledger is a file with one JSON object per line.  Several processes on one machine may share it.  Every
    spend is appended under an exclusive lock and forced to the disk *before* `spend` returns, so every answer that is computed
    later is recorded.  A crash between the two wastes the spend.  If the last line is torn, the ledger raises an error until
    `Budget.repair` is called.  With the address of a database, processes on several machines share the ledger.

    Each spend is stored with its *event*, the description that accountants compose, such as Gaussian noise of a certain size.
    You cannot change the accounting later: a choice that depends on earlier releases is not proved private.

    Parameters
    ----------
    privacy : Privacy
        The total.  Only releases with the same adjacency can be charged to it.
    path : str or path, optional
        The ledger's file, or its database, "sqlite:///spent.db" or "postgresql://user@host/database" (extra ``ledger``).
        ``?ledger=NAME`` picks one of several ledgers.  It is created if it does not exist.  Without a path the ledger belongs to
        this process, and forks cannot spend from it.
    accounting : {"basic", "gaussian", "renyi"}, optional
        The privacy filter.  "basic" composes guarantees.  "gaussian" composes events as Gaussian differential privacy (mu-GDP),
        exactly for Gaussian noise on gradients and answers.  "renyi" composes Rényi divergences (RDP) of one order; it is better
        if curvature or pure guarantees make up much of the cost.  The last two need a delta, and reserve a tenth of it for the
        deltas of events.  Default: the accounting of an existing file, "basic" for a new one.
    dataset : str
        Your name for the data, such as "visits 2026". Each entry records it, with time, user and host.  You can change it later.

    Examples
    --------
    >>> budget = Budget(Privacy(epsilon=1))
    >>> budget.spend(Privacy(epsilon=0.7), "classifier of March")
    >>> budget.remaining
    Amount(epsilon=0.3, delta=0.0)
    >>> budget.spend(Privacy(epsilon=0.7), "classifier of April")
    Traceback (most recent call last):
    ...
    dpconvex.errors.BudgetExceeded: 'classifier of April' asks for epsilon = 0.7. The budget is epsilon = 1, ...
    """

    def __init__(
        self,
        privacy: Privacy,
        path: str | os.PathLike[str] | None = None,
        accounting: str | None = None,
        dataset: str = "",
    ) -> None:
        given: Any = privacy
        if not isinstance(given, Privacy):
            total = f"Budget(Privacy(epsilon={given if is_real(given) else 1.0})"
            file = isinstance(given, str | os.PathLike) and repr(os.fspath(given))
            further = f", {file}), or open an existing ledger: Budget.open({file})" if file else ")"
            raise TemplateError(f"Budget: the total must be a Privacy, not {shown(given)}. Write {total}{further}.")
        self.privacy, self.dataset = privacy, dataset
        self._asked = accounting
        self._rule = rule_of(Basic.name if accounting is None else accounting, privacy)
        self._store = None if path is None else ledger_at(path)
        self.path = self._store and self._store.address
        if not self._rule.remaining(self._rule.nothing).epsilon and not (self._store and self._store.exists()):
            why = f"no room for a fit in {privacy}: a truncation failure of its noise counts 1 + exp(epsilon) times"
            raise TemplateError(f"Budget: {accounting} accounting has {why}. Use 'basic'.")
        self._seen: list[Entry] = []
        self._sums = self._rule.nothing  # sums of the prices of `_seen`
        self._content = b""  # the content of the ledger from which `_seen` was read
        self._lock = threading.Lock()
        self._process = self._locking = this_process()
        if self._store is not None:
            chosen = {} if self._rule.name == Basic.name else {"accounting": self._rule.name}
            head = {"ledger": "dpconvex", "version": VERSION, **privacy.to_dict(), **chosen}
            self._store.create(file_ledger.line_of(head))
            self._take(self._store.read())

    @classmethod
    def open(cls, path: str | os.PathLike[str], dataset: str = "") -> Self:
        """Open the ledger of an existing file or database, with its recorded total, or raise `DPConvexError`."""
        store = ledger_at(path)
        return cls(rule_in(file_ledger.lines_of(store.read(), store)[0], store).total, path, dataset=dataset)

    @staticmethod
    def repair(path: str | os.PathLike[str]) -> str:
        """Repair the torn last line of a ledger.  First make sure that only a crash tore it.

        A complete spend stays and counts.  A fragment is removed and returned: no release was made on it.
        """
        require(not is_address(path), "Budget.repair: a database has no torn lines; restore it from a copy.")
        file = replaceable_path(path).absolute()
        with file_ledger.locked(file) as descriptor:
            whole, end, _ = file_ledger.read(descriptor).rpartition(b"\n")
            first, *lines = file_ledger.lines_of(whole + end, file)
            spends_in(lines, rule_in(first, file), file)
            return file_ledger.mend(descriptor, file)

    @staticmethod
    def move(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        """Move a ledger from a file into a database, or from there to a file.  The source is closed, and names the target.

        The source is closed first, so that no spend is counted in one of two copies.  After a crash, call it again.
        """
        old, new = ledger_at(source), ledger_at(target)

        def closing(content: bytes) -> bytes:
            first, *lines = file_ledger.lines_of(content, old)
            spends_in(lines, rule_in(first, old), old)
            other = f"{new}: a ledger exists there, and a closed one cannot be opened again"
            require(not new.exists(), f"{other}; name another file, or another ledger of the database (?ledger=NAME).")
            return file_ledger.line_of({"moved": str(new)}, content)

        content = old.read()
        kept = file_ledger.without_last(content)
        closed = kept + file_ledger.line_of({"moved": str(new)}, kept)
        if content != closed:  # equal if an earlier call closed the source, and crashed afterwards
            kept = file_ledger.without_last(old.append(closing))
        new.create(kept)
        if not new.read().startswith(kept):
            raise DPConvexError(f"{new}: another process made a ledger there meanwhile; restore {old} from a copy.")

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Entries of the ledger, in order."""
        return self._now()[0]

    def _now(self) -> tuple[tuple[Entry, ...], tuple[Any, ...]]:
        with self._alone():
            if self._store is not None:
                self._take(self._store.read())
            return tuple(self._seen), self._sums

    @property
    def accounting(self) -> str:
        """The accounting: "basic", "gaussian" or "renyi"."""
        return self._rule.name

    @property
    def spent(self) -> Amount:
        """Total of the spends: the sum of guarantees under basic accounting, otherwise epsilon at the ledger's delta."""
        return self._rule.spent(self._now()[1])

    @property
    def remaining(self) -> Amount:
        """Remaining budget, rounded down.  Under "gaussian" and "renyi" it is the largest Gaussian release that fits."""
        return self._rule.remaining(self._now()[1])

    def totals(self) -> list[Total]:
        """Return the non-adaptive composition of all spends at the ledger's delta, one `Total` per accountant, smallest first."""
        found = self.entries
        return totals([item.privacy for item in found], [item.known for item in found], self.privacy.delta)

    def spend(self, privacy: Privacy, label: str, event: Event | None = None) -> None:
        """Charge a release to the budget, *before* it is computed.  If this raises a `DPConvexError`, do not make the release.

        Parameters
        ----------
        privacy : Privacy
            Guarantee of the release.  If it exceeds the remaining budget, `BudgetExceeded` is raised.
        label : str
            Description of the release, for readers of the ledger.
        event : Event, optional
            Event of the release, from its certificate.  Without it, accounting uses the guarantee alone.
        """
        if not (isinstance(privacy, Privacy) and isinstance(label, str) and isinstance(event, Event | None)):
            raise TemplateError(
                f"Budget: spend a Privacy with a label and an event, not {privacy!r}, {label!r}, {event!r}."
            )
        if privacy.adjacency != self.privacy.adjacency:
            both = f"{label!r} is private under {privacy.adjacency}, but the budget's adjacency is {self.privacy.adjacency}"
            raise TemplateError(f"Budget: {both}; such costs do not add up. Use one adjacency throughout.")
        protected, counted = (privacy.unit or "record", self.privacy.unit or "record")
        both = f"{label!r} protects one {protected}, but the budget's privacy unit is one {counted}"
        require(privacy.unit == self.privacy.unit, f"Budget: {both}. Use one unit throughout.")
        cuts = self.privacy.keep in ("first", "random")  # people may have any number of records
        if privacy.keep in (None, "weights") and (privacy.most < self.privacy.most or cuts):
            number = "any number" if cuts else f"at most {self.privacy.most}"
            both = f"{label!r} allows at most {privacy.most} records of one {privacy.unit}, the budget {number}"
            raise TemplateError(f"Budget: {both}. Say most={self.privacy.most}, or keep='first'.")
        part = self.privacy.part(privacy.epsilon, privacy.delta)
        item = Entry(label, part, event, **origin(), dataset=str(self.dataset))
        if self.path is None and self._process != this_process():
            why = f"{label!r} cannot be charged in a fork: every fork of the process could spend the whole total"
            raise DPConvexError(f"Budget: {why}. Keep it in a file: dp.Budget(..., path=...). Nothing was spent.")
        fields = {"label": label, "epsilon": privacy.epsilon, "delta": privacy.delta}
        fields |= {name: getattr(item, name) for name in ORIGIN}
        fields |= {} if event is None else {"event": event.to_dict()}

        sums = self._sums

        def line(content: bytes) -> bytes:
            nonlocal sums
            if self._store is not None:
                self._take(content)
            sums = self._rule.plus(self._sums, item)
            if not self._rule.fits(sums):
                raise self._exceeded(item)
            Interrupt.check()
            return file_ledger.line_of(fields, content)

        with self._alone():
            if self._store is not None:
                self._take(self._store.append(line))
            else:
                line(b"")
                self._seen.append(item)
                self._sums = sums

    def _exceeded(self, item: Entry) -> BudgetExceeded:
        asked, left = Amount(item.privacy.epsilon, item.privacy.delta), self._rule.remaining(self._sums)
        none = " and no delta" if asked.delta > 0 == left.delta and left.epsilon >= asked.epsilon else ""
        said = f"{item.label!r} asks for {amount_text(asked)}. The budget is {amount_text(self.privacy)}, of which"
        why = self._rule.refusal(self._sums, item)
        return BudgetExceeded(f"{said} {amount_text(left, downward)}{none} is left{why}. Nothing was spent.")

    def _alone(self) -> threading.Lock:
        """Return this process's lock between threads.  A fork needs a new one: a lock held during the fork is never released."""
        process = this_process()
        if self._locking != process:
            self._lock, self._locking = threading.Lock(), process
        return self._lock

    def __deepcopy__(self, memo: object = None) -> Self:
        return self  # a copy could be spent once more

    __copy__ = __deepcopy__

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path is None:
            alone = "a budget without a file cannot be copied: each copy could spend the whole total"
            raise TypeError(f"{alone}. Give the budget a path, or remove it before copying (set_params(budget=None)).")
        return Budget.open, (str(self.path), self.dataset)  # an address without its password

    def __repr__(self) -> str:
        return f"Budget({self.privacy}{'' if self.path is None else f', path={str(self.path)!r}'})"

    def _repr_html_(self) -> str:
        found, sums = self._now()
        spent, left = self._rule.spent(sums), self._rule.remaining(sums)
        rows = [(e.named, *map(upward, (e.privacy.epsilon, e.privacy.delta)), str(e.event or "")) for e in found]
        rows += [("spent in all", *map(upward, spent), ""), ("left", *map(downward, left), "")]
        part = spent.epsilon / self.privacy.epsilon
        head = paragraph("Budget", f": {self.privacy}; {self._rule.name} accounting ({self._rule.says})")
        table = html_table(["release", "epsilon", "delta", "accounted as"], rows, numbers=(1, 2))
        return f"{head}<p>{progress_bar(part)} {100 * part:.0f} % spent</p>{table}"

    def __str__(self) -> str:
        found, sums = self._now()
        lines = [
            f"Budget: {self.privacy}; {self._rule.name} accounting ({self._rule.says}).",
            f"  spent  {amount_text(self._rule.spent(sums), upward)}, in {len(found)} spend{'s' * (len(found) != 1)}",
            f"  left   {amount_text(self._rule.remaining(sums), downward)}",
            *(f"  - {item.named}: {item.privacy}{f'; {item.event}' if item.event else ''}" for item in found),
        ]
        return "\n".join(lines)

    def _take(self, content: bytes) -> None:
        """Update entries and sums from the ledger's content; if its earlier lines are unchanged, read only the new ones."""
        if content and content == self._content:
            return
        path = self.path
        grown = bool(self._content) and content.startswith(self._content)
        lines = file_ledger.lines_of(content, path, len(self._content) if grown else 0)
        rule, seen, sums = self._rule, self._seen, self._sums
        if not grown:
            rule, seen = rule_in(lines.pop(0), path), []
            sums = rule.nothing
        other = f"this ledger's total is {rule.total}, not {self.privacy}"
        require(
            rule.total == self.privacy,
            f"{path}: {other}. Open it with Budget.open(path) (in a shell: without --budget), or make another file.",
        )
        if self._asked not in (None, rule.name):
            other = f"this ledger's accounting is {rule.name!r}, not {self._asked!r}, and cannot be changed"
            raise TemplateError(f"{path}: {other}: leave accounting= out, or make another ledger for other people.")
        entries, sums = spends_in(lines, rule, path, len(seen), sums)
        seen = [*seen, *entries]
        if not grown and seen[: len(self._seen)] != self._seen:
            raise DPConvexError(f"{path}: spends that were in this ledger are gone; restore the file.")
        self._rule, self._seen, self._sums, self._content = rule, seen, sums, content


def ledger_at(path: object) -> FileLedger | DatabaseLedger:
    """Return the ledger for a path or for the address of a database; the ledger need not exist yet."""
    return DatabaseLedger(str(path)) if is_address(path) else FileLedger(replaceable_path(path).absolute())


def origin() -> dict[str, str]:
    """Return the time (UTC), the user and the host for an entry; the user is empty if the system does not know it."""
    user = ""
    with suppress(KeyError, ImportError, OSError):
        user = getpass.getuser()
    return {"time": datetime.now(UTC).isoformat(timespec="seconds"), "user": user, "host": platform.node()}


def charge(budget: Budget | None, privacy: Privacy, label: str, event: Event | None = None) -> None:
    if budget is not None:
        instance(Budget).or_none.check("", budget=budget)
        budget.spend(privacy, label, event)


def charge_schema(budget: Budget | None, learnt: Learnt | None) -> None:
    """Check the recorded costs of a learnt schema, and charge each one that is not in the ledger yet."""
    for one in learnt.costs if learnt else ():
        promise, event = schema_cost(one)
        known = [item for item in budget.entries if item.label == one.entry] if isinstance(budget, Budget) else ()
        if budget is not None and event not in [item.event and with_rare_levels(item.event) for item in known]:
            budget.spend(promise, one.entry, event)


def schema_cost(learnt: Learnt) -> tuple[Privacy, Event]:
    """Return the guarantee and the event of a learnt schema.  Raise if the event costs more, or much less."""
    promise, event = build(Privacy, learnt.privacy, where="the cost of the schema"), event_of(learnt.event)
    mu, lost = event.level()
    lost += failure_delta(tail_probability(event), promise.epsilon)
    rare = RARE * promise.delta + failure_delta(GRID_LOSS, promise.epsilon)
    spent = gaussian_delta(promise.epsilon, mu) + lost
    kinds = {leaf.epsilon if isinstance(leaf, Approximate) else type(leaf) for leaf in event.leaves()}
    most = kinds <= {Gaussian, Tail, 0.0} and lost <= rare * (1 + TAIL_SLACK)
    if not (most and 0.999 * promise.delta <= spent <= promise.delta * (1 + TAIL_SLACK)):
        other = "more" if spent > promise.delta else "less"
        raise TemplateError(f"the schema states a cost of {promise}, its event costs {other}; learn the schema again.")
    return promise, with_rare_levels(event)


def with_rare_levels(event: Event) -> Event:
    """Return a schema's event with rare levels as (0, p)-private: files of earlier versions have failures, too few for groups."""
    return Composition(
        tuple(
            Approximate(0.0, leaf.probability) if isinstance(leaf, Tail) and leaf.probability > GRID_LOSS else leaf
            for leaf in event.leaves()
        )
    )


def amount_text(amount: Amount | Privacy, number: Callable[[float], str] = text) -> str:
    return f"epsilon = {number(amount.epsilon)}" + (f", delta = {number(amount.delta)}" if amount.delta else "")


def rule_in(line: tuple[bytes, bytes], path: object) -> Basic:
    """Return the composition rule, with its total, that the first line of a ledger states."""
    with recast(f"{path}, line 1: not the ledger of a privacy budget", ValueError):
        head = build(dict[str, Any], file_ledger.decoded(*line))
        kind, version = head.pop("ledger", None), head.pop("version", None)
        if (kind, version, type(version)) != ("dpconvex", VERSION, int):
            raise TemplateError(f"its header names {kind!r}, version {version!r}, not 'dpconvex', version {VERSION}")
        return rule_of(head.pop("accounting", Basic.name), Privacy.from_dict(head))


def spends_in(
    lines: list[tuple[bytes, bytes]], rule: Basic, path: object, before: int = 0, sums: tuple[Any, ...] = ()
) -> tuple[list[Entry], tuple[Any, ...]]:
    """Return the spends in `lines`, and the sums of prices including `sums` of earlier lines; raise if they exceed the total."""
    entries: list[Entry] = []
    total, made = rule.total.to_dict(), dict[str, tuple[Any, Any]]()  # parsed costs, by text
    try:
        for line in lines:
            spend = build(dict[str, Any], file_ledger.decoded(*line))
            if "moved" in spend:
                remedy = "open that one, or repeat the move if it does not exist"
                raise DPConvexError(f"{path}: this ledger was moved to {spend['moved']}; {remedy}.")
            cost = {name: spend.pop(name, None) for name in ("epsilon", "delta", "event")}
            if (text_of := repr(cost)) not in made:
                event = cost.pop("event")
                made[text_of] = build(Privacy, {**total, **cost}), None if event is None else event_of(event)
            entries.append(build(Entry, spend | dict(zip(("privacy", "event"), made[text_of], strict=True)), AS_IT_IS))
    except ValueError as error:
        where = f"{path}, line {before + 2 + len(entries)}"
        raise DPConvexError(f"{where}: not an entry with a label and a guarantee ({error}).") from error
    sums = rule.plus(sums or rule.nothing, *entries)
    if not rule.fits(sums, reading=True):
        raise DPConvexError(f"{path}: the spends in this ledger exceed its total; restore the file from a copy.")
    return entries, sums
