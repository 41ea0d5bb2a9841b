"""The table of a proof's keys, with the kind of each value, for every operation, claim and domain (docs/checking.md).

A table is a tuple of groups of keys: those of the first group are required, and of every other group all or none.
"""

Group = dict[str, str]

LAWS, NUMBERS = '"gamma" | "gaussian" | "matrix"', "list of number"
RUNS, RUN = "mean_number_of_runs", ("eta", "gamma", "epsilon_of_a_fit", "epsilon_of_a_score", "delta_of_a_fit")
SPLIT = "parts_of_the_data"
SEVERAL: tuple[Group, ...] = (
    {RUNS: "positive"},
    {SPLIT: "count", "records_in_all_parts": "count"},
    dict(zip(RUN, ("number", "share", "positive", "positive", "probability"), strict=True)),
)
SETTINGS: dict[str, tuple[Group, ...]] = {
    "objective": (
        {},
        {"smoothing": "amount"},
        {"rows": "count", "columns": "count", "degrees_of_freedom": "positive", "nuclear_sensitivity": "amount"},
    ),
    "output": ({}, {"smoothing": "amount"}),
    "gradients": (
        {"steps": "count", "step_size": "amount"},
        {"radius": "amount"},
        {"clip": "positive", "momentum": "amount", "largest_step": "amount"},
        {"length_steps": "whole", "averaged": "whole"},
        {"directions": "positive"},
        {"sampling": "share", "multiplier": "positive"},
    ),
    "statistics": (
        {"weight_of_linear_statistics": "positive"},
        {"statistics_of_residuals": "1"},
        {"whitened_field": "whole"},
    ),
    "queries": ({"level": "positive"}, {"rounds": "count"}, {"vertices": "count"}),
}
COVER: Group = {"noise": '"discrete Laplace" | "discrete Gaussian"', "epsilon": "positive", "delta": "probability"}
COVER |= {"distance": "positive", "step": "positive", "dimension": "count", "scale": "positive", "counting": "amount"}
CLUSTERING: Group = {"noise": '"gamma" | "gaussian"', "epsilon": "positive", "delta": "probability", "rounds": "count"}
CLUSTERING |= {"classes": "count", "components": "count", "features": "count", "radius": "positive"}
CLUSTERING |= {"weight": "positive", "sensitivity": "positive", "scale": "positive", "step": "positive"}
WHITENING: Group = {"epsilon": "amount", "delta": "probability", "level": "positive", "share": "amount"}
WHITENING |= {"composed": "amount", "sensitivity": "positive", "sigma": "positive", "field": "text"}
WHITENING |= {"features": "count", "radius": "positive"}
CLAIM: Group = {"privacy": "privacy", "mechanism": "text", "size": "count", "noise": LAWS, "cover": "cover"}
CLAIM |= {"noise_dimension": "whole", "noise_scale": "positive", "tolerance": "amount", "perturbed": "text"}
for _name in ("gradient_bound", "sensitivity", "strong_convexity", "added", "jacobian_epsilon", "noise_epsilon"):
    CLAIM[_name] = "amount"
# Queries have nothing beside their levels: no cover, no bound on a loss, and units in which their sensitivity is 1.
QUERIES: Group = {key: CLAIM[key] for key in ("privacy", "mechanism", "size", "perturbed")} | {"noise": '"gaussian"'}
QUERIES |= {"noise_dimension": "whole", "noise_scale": "positive", "noise_epsilon": "amount"}
QUERIES |= dict.fromkeys(("gradient_bound", "sensitivity"), "1")
QUERIES |= dict.fromkeys(("strong_convexity", "added", "hessian_bound", "jacobian_epsilon"), "0")
PROOF: Group = {"format": '"dpconvex proof 1"', "claim": "claim"}
GRAPH: Group = {"record": "map of domain", "nodes": "list of node", "losses": "list of whole"}
GRAPH |= {"regularizer": "whole", "constraints": "list of constraint"}
GRAPH |= {"cells": "list of whole", "parts": "list of whole", "centres": "list of list of term"}
GRAPH |= {"tangents": "list of tangent", "modulus": "amount", "moments": "list of moment"}
GRAPH |= {"layout": "list of list of whole"}
TABLES: dict[str, tuple[Group, ...]] = {
    "proof": (PROOF, GRAPH, {"sampled": "sampled"}),
    "privacy": (
        {"epsilon": "positive", "delta": "probability", "adjacency": '"replace-one" | "add-remove"'},
        {"unit": "text", "most": "count"},
        {"keep": '"first" | "random" | "weights"'},
    ),
    "cover": (COVER, {"sensitivity": "amount"}, {"noise_cap": "amount"}, {"records": "amount"}),
    "clustering": (CLUSTERING,),
    "whitening": (WHITENING,),
    "ball": ({"dim": "count", "radius": "positive", "norm": '1 | 2 | "inf"'},),
    "box": ({"lower": NUMBERS, "upper": NUMBERS},),
    "constraint": ({"kind": '"equality" | "inequality" | "semidefinite"', "args": "list of whole"},),
    "moment": (
        {"bases": "list of whole", "monomials": "list of list of whole", "patterns": "list of " + NUMBERS}
        | {"scale": "amount", "weights": "whole"},
    ),
    "sampled": (
        {},
        {"steps": "count", "sampling": "share", "multiplier": "positive", "epsilon": "positive", "delta": "share"},
    ),
}
TABLES |= {f"settings of {kind}": (*groups, *SEVERAL) for kind, groups in SETTINGS.items()}
PARTS: tuple[Group, ...] = {"clustering": "clustering"}, {"whitening": "whitening"}, {"hessian_bound": "amount"}
TABLES |= {f"claim of {kind}": (CLAIM | {"settings": f"settings of {kind}"}, *PARTS) for kind in SETTINGS}
TABLES["claim of queries"] = (QUERIES | {"settings": "settings of queries"},)

NODE: Group = {"op": "text", "shape": "list of whole"}
PLACES: Group = {"places": "list of whole"}
GROUPS: Group = {"groups": "list of list of whole"}
NO_KEYS: Group = {}
OPERATIONS: dict[str, tuple[int, Group]] = {  # how many arguments each has, 0 for any number, and its keys
    **dict.fromkeys(("index", "select", "reshape", "transpose", "broadcast"), (1, PLACES)),
    "concatenate": (0, PLACES),
    **dict.fromkeys(("add", "maximum"), (0, NO_KEYS)),
    **dict.fromkeys(("multiply", "divide", "matmul", "rel_entr"), (2, NO_KEYS)),
    **dict.fromkeys(("negate", "abs", "exp", "log", "logistic", "neg_log_normcdf"), (1, NO_KEYS)),
    **dict.fromkeys(("norm_nuc", "sigma_max", "log_det", "lambda_max"), (1, NO_KEYS)),
    **dict.fromkeys(("sum", "max", "log_sum_exp"), (1, GROUPS)),
    "norm": (1, GROUPS | {"p": "positive"}),
    "quad_over_lin": (2, GROUPS),
    "sum_largest": (1, {"k": "count"}),
    "power": (1, {"p": "number"}),
    "huber": (1, {"M": "positive"}),
    "declared": (1, {"low": "number", "high": "number", "curvature": "amount"}),
}
TABLES |= {f"node {op}": (NODE | {"args": "list of whole"} | keys,) for op, (_, keys) in OPERATIONS.items()}
TABLES |= {"node constant": (NODE | {"value": NUMBERS},), "node field": (NODE | {"field": "text"},)}
TABLES["node variable"] = NODE | {"name": "text"}, {"symmetric": "1"}
