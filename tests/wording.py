"""Wording of messages, in one snapshot: ``python tests/wording.py`` writes it anew; read in the diff what changed.

Tests compare what a message does: its type, the place that it names, and the code and values that it quotes, which are the
arguments at fault and the remedy.  Sentences around these may change without a test.
"""

import json
import re
from pathlib import Path

SNAPSHOT = Path(__file__).with_name("wording.json")
CODE = re.compile(r"`[^`]+`|'[^']*'|\"[^\"]*\"|--\w+|\b(?:dp|cp|cvxpy|dpconvex)\.\w+(?:\.\w+)*|\b\w+=|\b\w+\(")


def words(call):
    """Return the type and the text of what a call raises, with its notes."""
    try:
        call()
    except Exception as error:
        return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
    return "accepted"


def behaviour(text):
    """Return the type, the place and the code that a message names, apart from its wording."""
    kind, _, said = text.partition(": ")
    where = re.search(r"^  where: (.+)$", said, flags=re.MULTILINE)
    caller = re.match(r"(\w+): ", said)
    code = sorted({*CODE.findall(said.replace(where[0], "") if where else said)})
    return kind, rounded(where[1]) if where else caller and caller[1], [*map(rounded, code)]


def rounded(text):
    """Numbers that are found by a search have few digits that are the same everywhere."""
    return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.2g}", text)


def check(group, name, found):
    known = json.loads(SNAPSHOT.read_text(encoding="utf-8"))[group][name]
    assert behaviour(found) == behaviour(known), "read what changed, and run: python tests/wording.py"


if __name__ == "__main__":
    import test_messages
    import test_options
    import test_refusals

    groups = {"refusals": test_refusals.REFUSED, "options": test_options.OPTIONS}
    groups |= {"messages": test_messages.MESSAGES, "warnings": test_messages.WARNINGS}
    said = {"warnings": test_messages.warned}
    found = dict.fromkeys(groups)
    for group in reversed(groups):  # warnings first: of data that were used before, there are more
        found[group] = {name: said.get(group, words)(call) for name, call in groups[group].items()}
    SNAPSHOT.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
