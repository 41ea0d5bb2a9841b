"""A ledger of promises neither overspends nor forgets, with many threads, forks and processes, and sudden deaths."""

import fcntl
import hashlib
import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from refused import refused

from dpconvex import Budget, BudgetExceeded, DPConvexError, Privacy, TemplateError


def left(budget):
    return budget.remaining.epsilon, budget.remaining.delta


def sealed(text, content=b""):
    """Return a ledger with further lines: those of objects get a checksum of them and of the line before."""
    last = (b"\n" + content).splitlines()[-1]
    for line in text.encode().splitlines(keepends=True):
        if line.endswith(b"}\n"):
            seal = hashlib.sha256(last + line[:-1]).hexdigest()[:16]
            last = line[:-2] + f', "sum": "{seal}"}}'.encode()
            line = last + b"\n"
        content += line
    return content


def test_a_spend_that_does_not_fit_is_not_recorded():
    budget = Budget(Privacy(1, 1e-6))
    budget.spend(Privacy(0.5, 1e-7), "first")
    for privacy in (Privacy(0.5000000000000001), Privacy(0.1, 9.000000000000001e-7)):
        refused(BudgetExceeded, r"'second' asks for.*Nothing was spent", budget.spend, privacy, "second")
    assert [(entry.label, entry.privacy) for entry in budget.entries] == [("first", Privacy(0.5, 1e-7))]
    assert left(budget) == (0.5, 9e-7)
    budget.spend(Privacy(0.5, 9e-7), "third")
    assert left(budget) == (0.0, 0.0)


amounts = st.floats(1e-12, 10.0)


def test_no_less_is_said_to_be_spent_than_was_spent():
    budget = Budget(Privacy(3.0, 1e-5))
    for epsilon, delta in ((0.1, 1e-6), (1e-17, 1e-23), (1.00049, 0.0)):
        budget.spend(Privacy(epsilon, delta), "one of several")
    total = Fraction("1.10049") + Fraction("1e-17")
    assert Fraction(repr(budget.spent.epsilon)) >= total
    assert Fraction(repr(budget.spent.delta)) >= Fraction("1e-6") + Fraction("1e-23")
    shown = re.findall(r">spent in all</td><td[^>]*>([^<]*)<", budget._repr_html_())
    assert [Fraction(text) >= total for text in shown] == [True]
    assert [Fraction(text) >= total for text in re.findall("epsilon = ([0-9.]+)", str(budget.totals()[0]))] == [True]


@given(st.lists(amounts, max_size=30), amounts)
def test_what_is_accepted_never_exceeds_the_total_and_the_rest_can_be_spent(spends, total):
    budget, accepted = Budget(Privacy(total)), Fraction(0)
    for value in spends:
        fits = accepted + Fraction(repr(value)) <= Fraction(repr(total))
        try:
            budget.spend(Privacy(value), "x")
        except BudgetExceeded:
            assert not fits
        else:
            assert fits
            accepted += Fraction(repr(value))
    rest, exact_rest = budget.remaining.epsilon, Fraction(repr(total)) - accepted
    assert 0 <= Fraction(repr(rest)) <= exact_rest
    assert float(exact_rest) - rest <= np.spacing(rest)
    if rest > 0:
        budget.spend(Privacy(rest), "the rest")


def test_threads_do_not_overspend_together():
    budget, interval = Budget(Privacy(1)), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            spends = [pool.submit(budget.spend, Privacy(0.0025), "x") for _ in range(800)]
    finally:
        sys.setswitchinterval(interval)
    assert len(budget.entries) == 400
    assert sum(isinstance(spend.exception(), BudgetExceeded) for spend in spends) == 400


def test_refuses_another_total_and_another_adjacency(path):
    budget = Budget(Privacy(1), path)
    for other in (Privacy(2), Privacy(1, 1e-9), Privacy(1, adjacency="add-remove")):
        refused(TemplateError, r"total is epsilon = 1, replace-one.*Budget\.open", Budget, other, path)
    refused(TemplateError, r"add-remove.*replace-one", budget.spend, Privacy(0.1, adjacency="add-remove"), "a")
    assert budget.entries == ()


def test_a_spend_is_on_the_disk_before_it_returns_and_a_disk_that_fails_leaves_a_sound_ledger(path, monkeypatch):
    budget, synced = Budget(Privacy(1), path), list[bytes]()
    before, write, sync = path.read_bytes(), os.write, os.fsync

    def full(descriptor, data=b""):
        raise OSError(28, "No space left on device")

    def watch(descriptor):
        sync(descriptor)
        synced.append(path.read_bytes())

    for function, stands_in, words in (
        ("write", lambda descriptor, data: write(descriptor, data[:7]), "undone; release nothing"),
        ("write", full, r"No space left on device.*release nothing"),
        ("fsync", full, "it counts, but release nothing"),
    ):
        assert path.read_bytes() == before
        assert budget.entries == ()
        monkeypatch.setattr(os, function, stands_in)
        refused(DPConvexError, words, budget.spend, Privacy(0.5), "a")
        monkeypatch.undo()
    assert budget.spent.epsilon == 0.5
    monkeypatch.setattr(os, "fsync", watch)
    budget.spend(Privacy(0.5), "watched")
    assert [b"watched" in content for content in synced] == [True]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_ledger_that_is_cut_short_anywhere_never_gives_budget_back_silently(tmp_path_factory, data):
    """Every proper prefix is refused, unless it ends with a line: those are the states that were once true."""
    file = tmp_path_factory.mktemp("cut") / "ledger"
    budget = Budget(Privacy(1), file)
    for label in "abc":
        budget.spend(Privacy(0.25), label)
    content = file.read_bytes()
    size = data.draw(st.integers(0, len(content) - 1))
    file.write_bytes(content[:size])
    kept = content[:size].count(b"\n")
    refused(DPConvexError, r"gone|torn|no complete line", budget.spend, Privacy(0.25), "the process that knows better")
    if not (kept and content[:size].endswith(b"\n")):
        refused(DPConvexError, r"torn.*Budget\.repair" if kept else "line; restore", Budget.open, file)
        if not kept:
            refused(DPConvexError, "no complete line", Budget.repair, file)
            return
        whole = content[size : size + 1] == b"\n"  # all of a spend is there but its end of line
        assert Budget.repair(file) == ("" if whole else content[:size].rpartition(b"\n")[2].decode())
        kept += whole
    assert len(Budget.open(file).entries) == kept - 1
    Budget.open(file).spend(Privacy(0.25), "after the repair")


HEADER = '{"ledger": "dpconvex", "version": 1, "epsilon": 1.0, "delta": 0.0, "adjacency": "replace-one"}\n'
SPEND = '{"label": "a", "epsilon": 0.5, "delta": 0.0}\n'


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        *(("", "no complete line"), ("\n", "line 1"), ("[]\n", "ledger of a privacy budget")),
        *((SPEND, "ledger of a privacy budget"), (HEADER.replace("1,", "2,", 1), "version 2")),
        *((HEADER.replace("1.0", "NaN"), "epsilon"), (HEADER.replace("1,", "true,", 1), "version True")),
        (HEADER.replace('"delta"', '"epsilon": 2.0, "delta"'), "line 1.*twice"),
        (HEADER + SPEND.replace('"delta"', '"epsilon": 0.1, "delta"'), "line 2.*twice"),
        *((HEADER + "not json\n" + SPEND, "line 2"), (HEADER + "\0" * 20, "torn")),
        (HEADER + SPEND + SPEND.replace("0.5", "-0.5"), "line 3.*epsilon"),
        (HEADER + SPEND.replace("0.5", "true"), "line 2.*epsilon"),
        (HEADER + SPEND.replace('"a"', "3"), "line 2.*label"),
        (HEADER + SPEND.replace("label", "name"), "line 2.*label"),
        (HEADER + SPEND.replace("}", ', "event": {"kind": "magic"}}'), "line 2: not an entry"),
        *((HEADER + SPEND.replace("}", ', "event": {}}'), "line 2: not an entry"), (HEADER + SPEND * 3, "exceed")),
        (HEADER + SPEND.replace("0.0}", "0.1}"), "exceed"),
    ],
)
def test_refuses_a_file_that_is_not_a_sound_ledger(path, content, complaint):
    path.write_bytes(sealed(content))
    refused(DPConvexError, f"(?s){path}.*{complaint}", Budget, Privacy(1), path)
    assert path.read_bytes() == sealed(content)


def test_a_ledger_that_vanishes_is_not_started_anew(path):
    budget = Budget(Privacy(1), path)
    budget.spend(Privacy(0.5), "a")
    path.unlink()
    refused(DPConvexError, "cannot be opened", budget.spend, Privacy(0.5), "b")
    assert not path.exists()
    Budget(Privacy(1), path)  # a new and empty one
    refused(DPConvexError, "gone", budget.spend, Privacy(0.5), "b")


def test_a_spend_that_waited_sees_what_the_new_file_holds(path):
    budget, used = Budget(Privacy(1), path), path.with_name("used")
    Budget(Privacy(1), used).spend(Privacy(0.5), "elsewhere")
    with ThreadPoolExecutor(1) as pool, path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        waiting = pool.submit(budget.spend, Privacy(0.7), "waited")
        time.sleep(0.2)
        used.replace(path)
        fcntl.flock(other, fcntl.LOCK_UN)
        refused(BudgetExceeded, None, waiting.result, 10)
    assert [entry.label for entry in Budget.open(path).entries] == ["elsewhere"]


def test_a_file_that_is_replaced_under_the_lock_is_an_error(path, monkeypatch):
    budget, fsync = Budget(Privacy(1), path), os.fsync

    def late(descriptor):
        fsync(descriptor)
        copy = path.with_name("copy")
        copy.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
        copy.replace(path)

    monkeypatch.setattr(os, "fsync", late)
    refused(DPConvexError, r"replaced during the spend.*release nothing", budget.spend, Privacy(0.7), "lost")
    monkeypatch.undo()
    budget.spend(Privacy(0.7), "anew")
    assert [entry.label for entry in Budget.open(path).entries] == ["anew"]


def test_lines_without_an_origin_are_read_and_a_ledger_without_room_opens(path):
    path.write_bytes(sealed(HEADER + SPEND))
    assert Budget.open(path).entries[0].named == "a"
    roomless = HEADER.replace('"delta": 0.0', '"delta": 1e-06, "accounting": "gaussian"')
    path.write_bytes(sealed(roomless.replace("1.0", "100.0")))
    assert left(Budget.open(path)) == (0.0, 0.0)


def test_what_others_append_is_read_alone_and_what_else_they_change_is_noticed(path):
    """With 8,000 lines a spend after another's takes a fraction of what opening takes; a change before the end is refused."""
    spends = (SPEND.replace("0.5", f"1e-0{5 + k % 4}").replace('"a"', f'"{k}"') for k in range(8_000))
    path.write_bytes(sealed(HEADER + "".join(spends)))
    begun = time.process_time()
    budget, other = Budget.open(path), Budget.open(path)
    opened, begun = time.process_time() - begun, time.process_time()
    for _ in range(5):
        other.spend(Privacy(1e-3), "other")
        budget.spend(Privacy(1e-3), "own")
    assert time.process_time() - begun < opened
    assert budget.entries == other.entries == Budget.open(path).entries
    assert budget.spent == Budget.open(path).spent == other.spent
    for before, after in ((b"1e-05", b"1e-06"), (b'"epsilon": 1.0', b'"epsilon": 2.0'), (b'"5"', b'"6"')):
        content = path.read_bytes()
        path.write_bytes(content.replace(before, after, 1) + SPEND.replace("0.5", "0.001").encode())
        refused(DPConvexError, r"gone; restore|total is|checksum", budget.spend, Privacy(1e-3), "on another ledger")
        path.write_bytes(content)
    path.write_bytes(content + SPEND.encode() + b"torn")
    refused(DPConvexError, "torn", budget.spend, Privacy(1e-3), "on a torn line")
    path.write_bytes(sealed(SPEND * 2, content))
    refused(DPConvexError, "exceed", budget.spend, Privacy(1e-3), "on a ledger that is overspent")
    path.write_bytes(sealed(SPEND.replace("0.5", "true"), content))
    refused(DPConvexError, r"line 8012.*epsilon", budget.spend, Privacy(1e-3), "on a line that is none")


def test_a_ledger_that_cannot_be_used_is_refused_with_a_remedy(path):
    lost, circle = path.with_name("lost"), path.with_name("circle")
    lost.symlink_to("nowhere")
    circle.symlink_to(circle)
    for file, remedy in (
        (lost, "a broken link; remove the link"),
        (circle, "links form a loop; name a file"),
        (path / "ledger", "folder that exists"),
        (Path("/dev/null/ledger"), "name another file"),
        (path.with_name("a" * 300), "name another file"),
    ):
        for use in (lambda file=file: Budget(Privacy(1), file), lambda file=file: Budget.open(file)):
            refused(DPConvexError, f"{file}: the ledger cannot be .*{remedy}", use)


def test_a_line_that_lost_its_checksum_or_its_place_is_noticed(path):
    """A line is gone, twice, elsewhere, changed, or has no checksum that counts; the header, too."""
    budget = Budget(Privacy(10.0), path)
    for label in "abcd":
        budget.spend(Privacy(1.0), label)
    lines = path.read_bytes().splitlines(keepends=True)
    wrong = [lines[:k] + lines[k + 1 :] for k in range(1, 4)] + [lines[: k + 1] + lines[k:] for k in range(5)]
    wrong.append([lines[0], lines[2], lines[1], *lines[3:]])
    for before, after in ((b"10.0", b"90.0"), (b"10.0", b"11.0"), (b"1.0", b"0.1"), (b'"c"', b'"x"')):
        wrong.append([b"".join(lines).replace(before, after, 1)])
    for k, line in enumerate(lines):
        bare = re.sub(rb', "sum": "[0-9a-f]+"', b"", line).replace(b"1.0", b"1e-9", 1)
        forms = bare, *(bare.replace(b"}", b', "%s": %s}' % form) for form in ((b"sum", b"null"), (b"\\u0073um", b"3")))
        wrong += [[*lines[:k], form, *lines[k + 1 :]] for form in forms]
    wrong.append([re.sub(rb', "sum": "[0-9a-f]+"', b"", line) for line in lines])
    for content in wrong:
        path.write_bytes(b"".join(content))
        refused(DPConvexError, None, Budget.open, path)
        refused(DPConvexError, None, budget.spend, Privacy(1.0), "more")
    path.write_bytes(b"".join(lines))
    budget.spend(Privacy(1.0), "more")
    assert len(Budget.open(path).entries) == 5
