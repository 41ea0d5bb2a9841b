"""False proofs that a checker might believe, written by hand; beside each the true claim, or the true graph, is accepted."""

import json

import pytest
from command_line import main
from refused import refused

import dpconvex as dp
from dpconvex.checker import Rejected, check
from dpconvex.checker.reading import Unreplayed, read_proof

# Of records x in the unit disk, with regularizer |w|^2 of 100 records: nodes 0 to 4.
START = [("variable", [2], [], {"name": "w"}), ("field", [2], [], {"field": "x"}), ("matmul", [], [1, 0], {})]
START += [("constant", [], [], {"value": [1]}), ("quad_over_lin", [], [0, 3], {"groups": [[0, 1]]})]
COVER = {"noise": "discrete Laplace", "epsilon": "0x1p-7", "delta": 0, "distance": "0x1p-20", "step": "0x1p-23"}
COVER |= {"dimension": 2, "scale": "0x1p20", "counting": 0}
CLAIM = {"privacy": {"epsilon": 1, "delta": 0, "adjacency": "replace-one"}, "perturbed": "output", "noise": "gamma"}
CLAIM |= {"size": 100, "added": 0, "tolerance": "0x1p-20", "settings": {}, "noise_dimension": 2, "cover": COVER}
CLAIM |= {"mechanism": "by hand", "jacobian_epsilon": 0, "noise_epsilon": 0}


def node_of(operation, shape, args, more):
    return {"op": operation, "shape": shape, **({"args": args} if args else {}), **more}


def replayed(nodes, bound, *, start=START, loss=-1, modulus=200, claim=(), **parts):
    """Whether output perturbation of a loss, the last node, is believed to need noise for gradients of so many."""
    graph = [node_of(*node) for node in (*start, *nodes)]
    numbers = {"gradient_bound": bound, "sensitivity": 2 * bound, "noise_scale": 2.04 * bound / modulus}
    numbers = {key: float(value).hex() for key, value in (numbers | {"strong_convexity": modulus}).items()}
    proof = {"format": "dpconvex proof 1", "claim": CLAIM | numbers | dict(claim), "nodes": graph, "cells": [0, 0]}
    proof |= {"record": {"x": {"dim": 2, "radius": 1, "norm": 2}}, "losses": [loss % len(graph)], "regularizer": 4}
    proof |= {"constraints": [], "parts": [], "centres": [], "tangents": [], "moments": [], "layout": []}
    try:
        return not check(json.dumps(proof | {"modulus": float(modulus).hex()} | parts).encode()).unreplayed
    except Rejected:
        return False


def number(value):
    return "constant", [], [], {"value": [value]}


def apply(operation, *args, **more):
    return operation, [], list(args), more


SIDES = {"rows": 2, "columns": 2, "degrees_of_freedom": 4, "nuclear_sensitivity": 1}
LOGISTIC = [apply("logistic", 2)]


def test_a_true_one_is_replayed():
    assert replayed(LOGISTIC, 1 + 1e-9)
    assert not replayed(LOGISTIC, 0.99)
    assert not replayed(LOGISTIC, 1 + 1e-9, modulus=201)


def test_products_of_different_scalars_are_no_inner_product():
    nodes = [("index", [2], [1], {"places": [1, 0]}), ("matmul", [], [5, 0], {})]
    nodes += [apply("logistic", 2), apply("logistic", 6), apply("add", 7, 8)]
    assert replayed(nodes, 2 + 1e-9)
    assert not replayed(nodes, 1 + 1e-9)


def test_even_powers_are_steep_at_the_ends_of_ranges_and_no_squares():
    """(x'w)^4 on the unit disk, whose slope is 4 at most, and the fourth powers of w as a regularizer."""
    disk = [("norm", [], [0], {"groups": [[0, 1]], "p": 2}), number(1)]
    inside = {"constraints": [{"kind": "inequality", "args": [5, 6]}], "loss": 7}
    assert replayed([*disk, apply("power", 2, p=4)], 4 + 1e-9, **inside)
    assert not replayed([*disk, apply("power", 2, p=4)], 4 - 1e-9, **inside)
    assert not replayed([*disk, apply("power", 2, p=3)], 4 + 1e-9, **inside)
    assert not replayed([*disk, apply("power", 2, p=4)], 4 + 1e-9, loss=7)
    fourth = [*LOGISTIC, ("power", [2], [0], {"p": 4}), ("sum", [], [6], {"groups": [[0, 1]]}), apply("add", 4, 7)]
    fourth += [("sum_largest", [], [0], {"k": 1}), apply("add", 8, 9)]
    for regularizer, holds in ((8, True), (10, True), (7, False), (9, False)):
        assert replayed(fourth, 1 + 1e-9, loss=5, regularizer=regularizer) == holds


def test_units_of_the_record_are_any_but_the_rows_are_the_same():
    """logistic((x - .5)'w) on the unit square: rows are up to .5^.5 long, in whatever units they are written."""
    nodes = [("constant", [2], [], {"value": ["-0x1p-1", "-0x1p-1"]}), ("add", [2], [1, 5], {})]
    nodes, needed = [*nodes, ("matmul", [], [6, 0], {}), apply("logistic", 7)], 0.5**0.5
    square = {"record": {"x": {"lower": [0, 0], "upper": [1, 1]}}}

    def units(shift, scale, name="x"):
        return {"units": {name: {"shift": shift, "scale": scale}}}

    half = "0x1p-1"
    assert replayed(nodes, needed * (1 + 1e-9), **square, **units([half, half], [1, 1]))
    assert not replayed(nodes, needed * (1 + 1e-9), **square)
    shifts, scales = ([half, half], [1, 0], [half, half], [half, 7]), ([1, 1], [1, 1], [3, 100], ["0x1p-9", 1])
    for shift, scale in zip(shifts, scales, strict=True):
        assert replayed(nodes, 5e3, **square, **units(shift, scale))
        assert not replayed(nodes, needed * (1 - 1e-9), **square, **units(shift, scale))
    wrong = [units([half], [1]), units([half, half], [1]), units([0, 0], [1, 0]), units([0, 0], [-1, -1])]
    for parts in (*wrong, units([0, 0], [1, 1], "u")):
        assert not replayed(nodes, 5e3, **square, **parts)
    assert replayed(nodes, 50.0)
    assert not replayed(nodes, 50.0, **units([half, half], [1, 1]))  # of a ball


@pytest.mark.parametrize("constant", ["0x1p1001", "0x1p999"])
def test_what_is_unbounded_stays_so(constant):
    nodes = [number(constant), number("0x1p-981"), apply("multiply", 5, 2), apply("maximum", 7, 5)]
    assert not replayed([*nodes, apply("multiply", 6, 8)], 2.0**-60)
    assert not replayed([*nodes, apply("multiply", 6, 8), apply("multiply", 9, 9)], 2.0**-60)


def test_a_number_added_to_what_is_unbounded_bounds_nothing():
    nodes = [number("0x1p1000"), number("-0x1p0"), number("0x1p-1000"), apply("multiply", 5, 2), apply("add", 8, 6)]
    nodes += [apply("logistic", 9), apply("multiply", 7, 10), apply("power", 11, p=2)]
    assert not replayed(nodes, 3)


@pytest.mark.parametrize("domain", [{"lower": [-1, -1], "upper": [1, 1], "norm": 2}, {"dim": 2, "radius": 1}])
def test_domains_are_balls_or_boxes(domain):
    assert not replayed(LOGISTIC, 2, record={"x": domain})


def test_features_of_no_symmetric_matrix_are_no_squares():
    """The nuclear norm of [[1, x], [x, x^2]] is 2, and the length of (1, x, x^2) the root of 3."""
    nodes = [("variable", [3], [], {"name": "v"}), ("field", [], [], {"field": "t"}), apply("multiply", 6, 6)]
    nodes += [("concatenate", [3], [3, 6, 7], {"places": [0, 1, 2]}), ("matmul", [], [8, 5], {}), apply("logistic", 9)]
    nodes += [apply("quad_over_lin", 5, 3, groups=[[0, 1, 2]]), apply("add", 4, 11)]
    matrix = {"perturbed": "objective", "noise": "matrix", "noise_dimension": 5, "settings": SIDES}
    matrix |= {"cover": COVER | {"dimension": 5}, "added": 2**40, "noise_scale": (2 * 1.733 / 0.99).hex()}
    record = {"x": {"dim": 2, "radius": 1, "norm": 2}, "t": {"lower": [-1], "upper": [1]}}
    layout = [[0, 0], [0, 1], [0, 0], [0, 1], [1, 1]]
    parts = {"record": record, "cells": [0, 0, 1, 1, 1], "layout": layout, "regularizer": 12}
    assert not replayed(nodes, 3**0.5 + 1e-6, loss=10, modulus=2.0**40, claim=matrix, **parts)


def test_norms_see_all_of_an_entry():
    nodes = [number(1000), number("0x1p-20"), number(-1001), apply("multiply", 6, 2), apply("multiply", 5, 2)]
    nodes += [apply("maximum", 8, 7), apply("maximum", 9, 7), apply("add", 10, 11)]
    nodes += [("concatenate", [2], [12, 3], {"places": [0, 1]}), apply("norm", 13, p=2, groups=[[0, 1]])]
    ball = [apply("norm", 0, p=2, groups=[[0, 1]])]
    constraints = [{"kind": "inequality", "args": [15, 3]}]
    assert not replayed([*nodes, *ball], 2.0**-19, loss=14, constraints=constraints)


def test_a_part_that_is_left_out_curves_nothing():
    nodes = [*LOGISTIC, number(2**40), apply("multiply", 6, 4), apply("concatenate", 4, 7, places=[0])]
    assert replayed(nodes, 1 + 1e-9, loss=5)
    assert not replayed(nodes, 1 + 1e-9, loss=5, regularizer=8, modulus=2**40)


@pytest.mark.parametrize("more", [{}, {"groups": [[0], [1]]}])
def test_entries_that_are_taken_twice_are_not_all(more):
    nodes = [*LOGISTIC, ("power", [2], [0], {"p": 2}), ("index", [2], [6], {"places": [0, 0], **more})]
    assert not replayed([*nodes, apply("sum", 7, groups=[[0, 1]])], 1 + 1e-9, loss=5, regularizer=8)


@pytest.mark.parametrize(("radius", "holds"), [("0x1p+0", True), ("0x1p+4", False), ("0x10p+0", False)])
def test_hexadecimal_numbers_have_a_point_after_the_first_digit(radius, holds):
    record = {"x": {"dim": 2, "radius": radius, "norm": 2}}
    assert replayed(LOGISTIC, 1 + 1e-9, record=record) == holds


def test_norms_of_parts_are_no_ball():
    square = apply("power", 2, p=2)
    ball, box = apply("norm", 0, p=2, groups=[[0, 1]]), ("norm", [2], [0], {"p": 2, "groups": [[0], [1]]})
    constraints = [{"kind": "inequality", "args": [6, 3]}]
    assert replayed([square, ball], 2 + 1e-9, loss=5, constraints=constraints)
    assert not replayed([square, box], 2 + 1e-9, loss=5, constraints=constraints)


def test_declared_functions_do_not_bend_down():
    nodes = [*LOGISTIC, apply("declared", 2, low=0, high=0, curvature="-0x1p-2"), apply("add", 5, 6)]
    objective = {"perturbed": "objective", "noise_scale": "0x1.05p+1"}
    assert not replayed(nodes, 1 + 1e-9, claim=objective)


WRONG = [apply("sum", 5, groups=[[0], [0]]), apply("concatenate", 5, 5, places=[0, 1])]
WRONG += [apply("sum", 5, 5, groups=[[0]]), apply("add", 6), apply("add", 7), number("0x1p+9999"), number("nan")]
WRONG += [("variable", [10**9], [], {"name": "v"}), ("constant", [2], [], {"value": [1]})]
WRONG += [("field", [2], [], {"field": "y"}), ("index", [], [], {"places": [0]}), ("index", [], [0], {"places": [2]})]


@pytest.mark.parametrize("node", WRONG)
def test_nodes_have_their_shape_and_arguments(node):
    """Nodes that nothing uses: rightly written, they are no harm."""
    assert replayed([*LOGISTIC, number(1)], 1 + 1e-9, loss=5)
    assert not replayed([*LOGISTIC, node], 1 + 1e-9, loss=5)


@pytest.mark.parametrize(("radius", "threshold", "holds"), [("0x1p1045", "0x1p1050", 0), ("0x1p900", "0x1p999", 1)])
def test_a_threshold_beyond_what_stands_for_infinity_is_none(radius, threshold, holds):
    nodes = [("variable", [], [], {"name": "t"}), ("field", [], [], {"field": "x"}), number("0x1p-800")]
    nodes += [apply("multiply", 2, 0), apply("negate", 1), apply("add", 3, 4), apply("huber", 5, M=threshold)]
    claim = {"noise_scale": "0x1.8p195", "noise_dimension": 1, "cover": COVER | {"dimension": 1}}
    parts = {"record": {"x": {"dim": 1, "radius": radius, "norm": 2}}, "cells": [0], "regularizer": 7}
    assert replayed([*nodes, apply("power", 0, p=2)], 2.0**201, start=[], loss=6, claim=claim, **parts) == holds


@pytest.mark.parametrize("shape", [[], [0]])
def test_a_reduction_of_nothing_is_not_curved(shape):
    """Its sum is 0, and its argument's squares had counted."""
    square = ("quad_over_lin", shape, [0, 3], {"groups": [[0, 1]] if shape == [] else []})
    nodes = [*LOGISTIC, square, ("sum", [], [6], {"groups": [[0]] if shape == [] else [[]]})]
    assert replayed(nodes, 1 + 1e-9, loss=5, regularizer=7) == (shape == [])


def test_nobody_can_write_to_the_terminal(capsys, tmp_path):
    claim = {"settings": {"\x1b[2K replayed: 12 steps \ud800": 1}}
    graph = [node_of(*node) for node in (*START, *LOGISTIC)]
    proof = {"format": "dpconvex proof 1", "claim": CLAIM | claim, "nodes": graph, "record": {}, "losses": [5]}
    (tmp_path / "proof.json").write_text(json.dumps(proof))
    assert main(["check", str(tmp_path / "proof.json")]) == 1
    assert all(c.isprintable() or c == "\n" for text in capsys.readouterr() for c in text)


@pytest.mark.parametrize("name", ["sensitivity", "noise_scale", "tolerance", "added"])
def test_no_number_of_a_claim_is_negative(name):
    learner = dp.load("linear_regression", features=2)
    proof = json.loads(dp.verify(learner, dp.Privacy(1.0), 1000, dp.SufficientStatistics("gamma")).proof)
    proof["claim"] |= {"noise_scale": (1e-9).hex(), name: "-0x1p+2"}
    refused(Rejected, "negative", check, json.dumps(proof).encode())


def of_clipped(noise=dp.NoisyGradientDescent(clip=0.3, steps=5), privacy=dp.Privacy(1.0, 1e-5)):  # noqa: B008
    return dp.verify(dp.load("logistic_regression", features=2), privacy, 1000, noise).proof


def of_steps(privacy=dp.Privacy(1.0, 1e-5, "add-remove")):  # noqa: B008
    return dp.verify(dp.load("logistic_regression", features=2), privacy, 1000, dp.AdaptiveSteps()).proof


@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 10.0, 60.0, 100.0, 110.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-9, 1e-3, 0.5])
@pytest.mark.parametrize("more", [{}, {"unit": "patient", "most": 3, "keep": "weights"}], ids=["records", "people"])
def test_steps_replay_at_every_guarantee_and_none_with_more_of_a_level(epsilon, delta, more):
    proof = json.loads(of_steps(dp.Privacy(epsilon, delta, **more)))
    report, claim = check(json.dumps(proof).encode()), proof["claim"]
    assert not report.unreplayed
    assert "adaptive queries" in report.trusted[0]
    assert not any("loss" in fact or "answer" in fact for fact in report.trusted)
    level, scale = (float.fromhex(text) for text in (claim["settings"]["level"], claim["noise_scale"]))
    claim["settings"]["level"], claim["noise_scale"] = (level * (1 + 1e-9)).hex(), (scale / (1 + 1e-9)).hex()
    refused(Rejected, "too small", check, json.dumps(proof).encode())


def of_people(keep):
    privacy, mechanism = dp.Privacy(1.0, unit="patient", most=3, keep=keep), dp.OutputPerturbation()
    return dp.verify(dp.load("large_margin_gaussian", features=2, classes=3), privacy, 1000, mechanism).proof


CLUSTERING = {"noise": "gamma", "epsilon": "0x1p-2", "delta": 0, "rounds": 3, "classes": 2, "components": 2}
CLUSTERING |= {"features": 2, "radius": 1, "weight": 1, "sensitivity": 2, "scale": 40, "step": "0x1p-20"}
SAMPLES = dp.NoisyGradientDescent(clip=0.3, sampling=0.1, steps=50)
STRICT = {
    "clipped steps": of_clipped,
    "samples": lambda: of_clipped(SAMPLES, dp.Privacy(1.0, 1e-5, "add-remove")),
    "people": lambda: of_people("weights"),
    "matrix": lambda: dp.verify(dp.load("softmax_regression", features=2), dp.Privacy(1.0), 1000, SHAPED).proof,
    "statistics": lambda: dp.verify(dp.load("ridge_regression", features=2), dp.Privacy(1.0), 1000, SUMS).proof,
    "queries": of_steps,
}
SHAPED, SUMS = dp.ObjectivePerturbation("matrix"), dp.SufficientStatistics("gamma")
NO_VALUES = (True, None, {"surplus": 1}, -1, "-0x1p+0", "0x1p+9999", "inf", "nan", 10**700)  # texts may be any
TEXTS, SIGNED = {"mechanism", "unit", "name", "field", "perturbed"}, {"low", "high", "p", "eta"}
OPTIONAL = {"sampled", "hessian_bound", "noise_cap", "records", "keep", "clustering", "symmetric", "rounds"}
OPTIONAL |= {"record"}  # which proofs of queries have beside a clustering alone


def objects(part, key=""):
    if isinstance(part, dict):
        yield key, part
    for name, inner in part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ():
        yield from objects(inner, name)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", STRICT)
def test_keys_that_are_unknown_missing_or_of_another_kind_are_rejected(name):
    proof = json.loads(STRICT[name]())
    if name == "statistics":
        proof["claim"]["clustering"] = CLUSTERING

    def is_read():
        try:
            read_proof(json.dumps(proof).encode())
        except (Rejected, Unreplayed):
            return False
        return True

    assert is_read()
    for where, part in list(objects(proof)):
        for key in {"field", "value", "surplus", "clip", "M", "symmetric"} - {*part} if where != "record" else ():
            part[key] = 0
            assert not is_read(), (where, key)
            del part[key]
        for key, old in list(part.items()):
            del part[key]
            assert not is_read() or key in OPTIONAL or where in ("record", "cover"), (where, key)
            for value in NO_VALUES:
                part[key] = value
                followed = (isinstance(value, str) and key in TEXTS) or (key, value) == ("norm", "inf")
                followed |= key in SIGNED and value in (-1, "-0x1p+0")
                assert not is_read() or followed, (where, key, value)
            part[key] = old
    assert is_read()
    wrong = proof | {"record": {}} if name == "queries" else {k: proof[k] for k in proof if k != "record"}
    refused(Rejected, None, check, json.dumps(wrong).encode())


DIVIDED = dict.fromkeys((f"{of}_level" for of in ("moment", "histogram", "curvature", "step")), "0x1p-4")
DIVIDED |= {"rounds": 10**6, "queries": 1}
FORGED = {
    "a graph beside it": lambda proof: proof.update(json.loads(of_clipped()) | {"claim": proof["claim"]}),
    "samples beside it": lambda proof: proof.update(sampled={}),
    "noise that is given away": lambda proof: proof["claim"]["settings"].update(level="0x1p-20"),
    "a level beyond the guarantee": lambda proof: proof["claim"]["settings"].update(level=(0.5).hex()),
    "a level for a smaller guarantee": lambda proof: proof["claim"]["privacy"].update(epsilon="0x1.f8p-1"),
    "a delta that is not there": lambda proof: proof["claim"]["privacy"].update(delta=0),
    "a delta that integers lose": lambda proof: proof["claim"]["privacy"].update(delta=(1e-60).hex()),
    "too many queries": lambda proof: proof["claim"]["settings"].update(DIVIDED),
    "another law": lambda proof: proof["claim"].update(noise="gamma"),
    "steps without a level": lambda proof: proof["claim"].update(settings={"steps": 3, "step_size": 1}),
    "queries as gradients": lambda proof: proof["claim"].update(perturbed="gradients"),
    "a cover": lambda proof: proof["claim"].update(cover=COVER),
    "half of a person": lambda proof: proof["claim"]["privacy"].update(keep="first"),
    "runs of nothing": lambda proof: proof["claim"]["settings"].update(dict.fromkeys(("eta", "gamma"), "0x1p-1")),
    "best of runs": lambda proof: proof["claim"]["settings"].update(mean_number_of_runs=1),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_claims_of_adaptive_steps_are_rejected(name):
    proof = json.loads(of_steps())
    FORGED[name](proof)
    try:
        assert check(json.dumps(proof).encode()).unreplayed
    except Rejected:
        return


def test_only_adaptive_steps_are_proved_without_a_graph():
    for make in (of_clipped, STRICT["statistics"], STRICT["matrix"]):
        proof = {key: part for key, part in json.loads(make()).items() if key in ("format", "claim")}
        refused(Rejected, None, check, json.dumps(proof).encode())


def test_a_number_is_no_weight_whatever_it_is_called():
    proof = json.loads(of_people("weights"))
    for name in ("constant", "variable", "negate"):
        forged = [n | ({"field": "weight_of_a_record"} if n["op"] == name else {}) for n in proof["nodes"]]
        refused(Rejected, "unknown keys field", check, json.dumps(proof | {"nodes": forged}).encode())
    field = next(k for k, node in enumerate(proof["nodes"]) if node.get("field") == "weight_of_a_record")
    (head,) = {k for k, node in enumerate(proof["nodes"]) if field in node.get("args", [])} & {*proof["losses"][:1]}
    end = len(proof["nodes"])
    one, less = {"op": "constant", "shape": [], "value": [4]}, {"op": "negate", "shape": [], "args": [field]}
    rest = [one, less, {"op": "add", "shape": [], "args": [end, end + 1]}]
    rest.append({"op": "multiply", "shape": [], "args": [end + 2, head]})
    false = proof | {"nodes": [*proof["nodes"], *rest], "losses": [end + 3] * len(proof["losses"])}
    assert "weights of the losses" in check(json.dumps(false).encode()).unreplayed[0]
    for ends in ((0, "0x1.0p-7"), (0, 0), (1, 1), (0, 2)):  # those that a fit gives are of 1 together, and any of these
        proof["record"]["weight_of_a_record"] = {"lower": [ends[0]], "upper": [ends[1]]}
        assert "weights of the losses" in check(json.dumps(proof).encode()).unreplayed[0]
