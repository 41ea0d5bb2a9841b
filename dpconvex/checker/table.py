"""Reads `table.toml`, the table of a proof's keys with the kind of each value; other checkers may read it too.

A table is a tuple of groups of keys.  All keys of the first group are required; of every other group, all or none.
"""

import tomllib
from pathlib import Path
from typing import Any

Group = dict[str, str]

# Names of settings: the mean number of runs if the best of several is released, the distribution of their number with the cost of
# one, the epsilon of a target's range, and the numbers of parts and of all records if the best fit to a part is released.
RUNS, ONE_RUN = "mean_number_of_runs", ("eta", "gamma", "epsilon_of_a_fit", "epsilon_of_a_score", "delta_of_a_fit")
RANGE, PARTS, RECORDS = "epsilon_of_the_range", "parts_of_the_data", "records_in_all_parts"
NODE: Group = {"op": "text", "shape": "list of whole"}
READ: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TABLES: dict[str, tuple[Group, ...]] = {name: tuple(groups) for name, groups in READ["objects"].items()}
for _kind, _groups in READ["settings"].items():
    TABLES[f"settings of {_kind}"] = (*_groups, *READ["settings_of_any"])
    _first, *_rest = READ["claim_of_queries" if _kind == "queries" else "claim"]
    TABLES[f"claim of {_kind}"] = _first | {"settings": f"settings of {_kind}"}, *_rest
OPERATIONS: dict[str, tuple[int, Group]] = {
    op: (keys.pop("arguments"), keys) for op, keys in READ["operations"].items()
}
for _op, (_, _keys) in OPERATIONS.items():
    TABLES[f"node {_op}"] = (NODE | {"args": "list of whole"} | _keys,)
for _leaf, (_first, *_rest) in READ["leaves"].items():
    TABLES[f"node {_leaf}"] = NODE | _first, *_rest
