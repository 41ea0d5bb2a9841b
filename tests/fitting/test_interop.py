"""What other libraries read: certificates as JSON, OpenDP's measurements, dp-accounting's events, and their spends in ledgers."""

import json
import math
from importlib.resources import files

import numpy as np
import pytest
from command_line import main
from refused import refused
from scipy.stats import norm

import dpconvex as dp

SCHEMA = json.loads((files("dpconvex.checker") / "certificate.schema.json").read_text("utf-8"))
PURE, BOTH, ADDED = dp.Privacy(1.0), dp.Privacy(1.0, 1e-6), dp.Privacy(1.0, 1e-6, "add-remove")
CLIPPED = dp.NoisyGradientDescent(clip=1.0)
LOGISTIC, RIDGE = dp.load("logistic_regression", features=3), dp.load("ridge_regression", features=3)
CASES = {
    "Gamma noise": (LOGISTIC, PURE, None),
    "Gaussian objective perturbation": (LOGISTIC, BOTH, dp.ObjectivePerturbation("gaussian")),
    "Gaussian output perturbation": (LOGISTIC, BOTH, dp.OutputPerturbation("gaussian")),
    "rounded kinks": (dp.load("hinge_svm", features=3), PURE, None),
    "matrix noise": (dp.load("large_margin_gaussian", features=2), PURE, None),
    "clipped steps": (LOGISTIC, ADDED, CLIPPED),
    "Poisson samples": (LOGISTIC, ADDED, dp.NoisyGradientDescent(clip=1.0, sampling=0.1)),
    "statistics": (RIDGE, BOTH, dp.SufficientStatistics()),
    "adaptive steps": (LOGISTIC, ADDED, dp.AdaptiveSteps()),
    "people": (LOGISTIC, dp.Privacy(1.0, 1e-6, unit="patient", most=3), CLIPPED),
}


@pytest.fixture(scope="module")
def certificates():
    return {name: dp.verify(learner, privacy, 3000, mechanism) for name, (learner, privacy, mechanism) in CASES.items()}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CASES)
def test_a_certificate_comes_back_from_json_and_fits_the_schema(certificates, name, tmp_path, capsys):
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    certificate, text = certificates[name], certificates[name].to_json()
    read = dp.Certificate.from_json(text)
    assert read == certificate
    assert (read.proof, str(read.check())) == (certificate.proof, str(certificate.check()))
    assert not list(validator(SCHEMA).iter_errors(json.loads(text)))
    path = tmp_path / "certificate.json"
    path.write_text(text, encoding="utf-8")
    assert main(["check", str(path)]) == 0
    assert "replayed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda whole: whole["certificate"]["privacy"].update(epsilon=0.5), "claim different things"),
        (lambda whole: whole["proof"]["claim"].update(sensitivity=0), "claim different things"),
        (lambda whole: whole["certificate"].update(size="many"), "claim different things"),
        (lambda whole: whole["certificate"].update(surplus={}), "claim different things"),
        (lambda whole: whole["certificate"].update(event={"kind": "gaussian", "mu": -1}), "must be finite"),
        (lambda whole: whole.update(format="dpconvex certificate 2"), "is not a 'dpconvex certificate 1'"),
        (lambda whole: whole.pop("proof"), "no 'proof'"),
        (lambda whole: whole["certificate"].update(noise_scale=-math.inf), "no exact number"),
    ],
)
def test_a_certificate_that_was_changed_is_refused(certificates, change, said, tmp_path, capsys):
    whole = json.loads(certificates["Gamma noise"].to_json())
    change(whole)
    refused(dp.DPConvexError, said, dp.Certificate.from_json, json.dumps(whole))
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(whole), encoding="utf-8")
    if "event" not in whole["certificate"] or whole["certificate"]["event"]["kind"] == "composition":
        assert main(["check", str(path)]) == 1  # the event is no part of the proof: docs/checking.md


def test_a_certificate_without_a_proof_is_no_data_for_others(certificates):
    refused(dp.DPConvexError, "to_json: its proof was left out", dp.verify(LOGISTIC, PURE, 3000, proof=False).to_json)


# What dp-accounting's total may be of ours: its Laplace noise stands for what is only known to be pure, and its Gaussian noise
# for Gaussian objective perturbation.
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("statistics", 1 + 1e-6),
        ("Gaussian output perturbation", 1.001),
        ("clipped steps", 1.001),
        ("Gamma noise", 1.25),
        ("Gaussian objective perturbation", 1.9),
    ],
)
def test_an_event_costs_in_dp_accounting_what_it_costs_here(certificates, name, most):
    pld = pytest.importorskip("dp_accounting.pld", reason="dp-accounting is not installed")
    certificate = certificates[name]
    event = dp.interop.dp_event(certificate)
    for delta in (1e-8, 1e-6, 1e-4):
        theirs = pld.PLDAccountant().compose(event).get_epsilon(delta)
        ours = certificate.for_group(1, delta).epsilon
        assert 0.999 * ours <= theirs <= most * ours, delta


def test_what_no_event_expresses_is_asked_for(certificates):
    da = pytest.importorskip("dp_accounting")
    with pytest.raises(dp.NotPrivate, match=r"has a delta = 9.9e-07, which no DpEvent can express"):
        dp.interop.dp_event(certificates["Poisson samples"])
    assert isinstance(dp.interop.dp_event(certificates["Poisson samples"], 1e-6), da.ComposedDpEvent)


def ledger(privacy=None, **options):
    return dp.Budget(privacy or dp.Privacy(20.0, 1e-3, "add-remove"), **options)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("privacy", [dp.Privacy(40.0, 1e-3), dp.Privacy(40.0, 1e-3, "add-remove")])
@pytest.mark.parametrize("kind", ["gaussian", "many", "laplace", "mixed", "sampled"])
def test_a_ledger_never_counts_less_than_dp_accounting(privacy, kind):
    da = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    steps = da.SelfComposedDpEvent(da.PoissonSampledDpEvent(0.02, da.GaussianDpEvent(1.5)), 50)
    events = {"gaussian": da.GaussianDpEvent(4.0), "many": da.SelfComposedDpEvent(da.GaussianDpEvent(40.0), 10_000)}
    events |= {"laplace": da.SelfComposedDpEvent(da.LaplaceDpEvent(10.0), 3), "sampled": steps}
    events["mixed"] = da.ComposedDpEvent([da.GaussianDpEvent(3.0), da.NoOpDpEvent(), da.LaplaceDpEvent(4.0)])
    event = events[kind]
    replaced, laplace = privacy.adjacency == "replace-one", kind in ("laplace", "mixed")
    budget = ledger(privacy)
    dp.interop.charge(budget, event, "theirs", 1e-6)
    if not (replaced and laplace):  # which dp-accounting has no bound for
        relation = da.NeighboringRelation.REPLACE_ONE if replaced else da.NeighboringRelation.ADD_OR_REMOVE_ONE
        theirs = PLDAccountant(relation).compose(event).get_epsilon(1e-6)
        assert budget.spent.epsilon >= theirs * (1 - 1e-7)
        assert kind not in ("gaussian", "many", "sampled") or budget.spent.epsilon <= theirs * (1 + 1e-5)
    if kind == "gaussian":
        assert budget.entries[0].event.mu == pytest.approx(0.5 if replaced else 0.25, rel=1e-15)


def test_people_of_a_ledger_have_so_many_records():
    da = pytest.importorskip("dp_accounting")
    budget = ledger(dp.Privacy(20.0, 1e-3, "add-remove", unit="patient", most=3))
    dp.interop.charge(budget, da.GaussianDpEvent(4.0), "theirs", 1e-6)
    assert budget.entries[0].event.mu == 3 * math.nextafter(0.25, 1)
    with pytest.raises(dp.TemplateError, match="does not limit a patient to 3"):
        dp.interop.charge(ledger(dp.Privacy(1.0, unit="patient", most=3, keep="first")), da.LaplaceDpEvent(4.0), "a")


@pytest.mark.parametrize(
    ("spend", "options", "said"),
    [
        (lambda da: da.GaussianDpEvent(4.0), {}, "pass delta="),
        (lambda da: da.GaussianDpEvent(4.0), {"delta": 0.6}, "delta must be a number between 0 and 0.5"),
        (lambda da: da.GaussianDpEvent(4.0), {"delta": 1e-6, "apart": -1}, "apart must be .*, not -1"),
        (lambda da: da.GaussianDpEvent(4.0), {"delta": 1e-6, "apart": 0.25}, "apart must be .*, not 0.25"),
        (lambda da: da.LaplaceDpEvent(0.1), {"apart": 0}, "apart must be .*, not 0"),
        (lambda da: da.LaplaceDpEvent(0.1), {"apart": True}, "apart must be .*, not True"),
        (lambda da: da.SelfComposedDpEvent(da.GaussianDpEvent(2.0), 0.5), {"delta": 1e-6}, "count of a composition"),
        (lambda da: da.SelfComposedDpEvent(da.LaplaceDpEvent(2.0), 0.5), {"delta": 1e-6}, "count of a composition"),
        (lambda da: da.GaussianDpEvent(0.0), {"delta": 1e-6}, "epsilon"),
        (lambda da: da.GaussianDpEvent(-1.0), {"delta": 1e-6}, "standard_deviation|sigma|Standard"),
        (lambda da: da.LaplaceDpEvent(math.nan), {"delta": 1e-6}, "NaN"),
        (lambda da: da.NonPrivateDpEvent(), {"delta": 1e-6}, "epsilon"),
        (lambda da: da.UnsupportedDpEvent(), {"delta": 1e-6}, "is known neither here"),
        (
            lambda da: da.PoissonSampledDpEvent(0.1, da.GaussianDpEvent(1.0)),
            {"delta": 1e-6, "apart": 1},
            "known neither here",
        ),
        (lambda da: {"kind": "gaussian", "mu": 1.0}, {"delta": 1e-6}, "expected a DpEvent"),
        (lambda da: da.LaplaceDpEvent(0.01), {}, "asks for epsilon = 100"),
    ],
)
def test_what_is_no_spend_is_refused_and_nothing_is_entered(spend, options, said):
    da, budget = pytest.importorskip("dp_accounting"), ledger()
    dp.interop.charge(budget, da.LaplaceDpEvent(2.0), "before")
    refused((dp.DPConvexError, ValueError), said, dp.interop.charge, budget, spend(da), "theirs", **options)
    assert [entry.label for entry in budget.entries] == ["before"]
    assert budget.spent.epsilon == pytest.approx(0.5)


@pytest.fixture
def odp():
    found = pytest.importorskip("opendp.prelude")
    found.enable_features("contrib", "honest-but-curious")
    return found


@pytest.mark.parametrize("privacy", [PURE, BOTH, ADDED])
def test_a_measurement_fits_and_its_map_is_the_certificates(odp, privacy):
    measurement = dp.interop.opendp(LOGISTIC, privacy, 400)
    certificate = dp.verify(LOGISTIC, privacy, 400)
    pair = (lambda part: part.epsilon) if privacy.pure else (lambda part: (part.epsilon, part.delta))
    assert (measurement.map(1), measurement.map(3)) == (pair(privacy), pair(certificate.for_group(3)))
    assert measurement.map(0) == (0.0 if privacy.pure else (0.0, 0.0))
    X = np.random.default_rng(0).uniform(-0.5, 0.5, (400, 3))
    release = measurement({"x": X, "y": np.where(X[:, 0] > 0, 1, -1)})
    assert (release.spent, release.certificate.event) == (privacy, certificate.event)
    budget = ledger(dp.Privacy(3.0, 1e-5, privacy.adjacency))
    dp.interop.charge(budget, measurement, "by OpenDP")
    assert budget.entries[0].privacy == privacy


def test_a_measurement_asks_for_trust_and_for_records(odp):
    with pytest.raises(dp.NotPrivate, match="protects single records"):
        dp.interop.opendp(LOGISTIC, dp.Privacy(1.0, 1e-6, unit="patient", most=3), 400)
    refused(TypeError, "budget", dp.interop.opendp, LOGISTIC, PURE, 400, budget=ledger())
    odp.disable_features("honest-but-curious")
    refused(odp.OpenDPException, "honest-but-curious", dp.interop.opendp, LOGISTIC, PURE, 400)


def test_opendp_s_own_measurements_are_entered(odp):
    total = (odp.vector_domain(odp.atom_domain(bounds=(0.0, 1.0))), odp.symmetric_distance()) >> odp.t.then_sum()
    laplace, gaussian = total >> odp.m.then_laplace(4.0), total >> odp.m.then_gaussian(4.0)
    for adjacency, distance in (("add-remove", 1), ("replace-one", 2)):
        budget = ledger(dp.Privacy(9.0, 1e-4, adjacency))
        dp.interop.charge(budget, laplace, "Laplace")
        dp.interop.charge(budget, gaussian, "Gaussian", 1e-6)
        pure, both = (entry.privacy for entry in budget.entries)
        assert (pure, both.delta) == (dp.Privacy(laplace.map(distance), 0.0, adjacency), 1e-6)
        mu, e = distance / 4, both.epsilon
        assert norm.sf(e / mu - mu / 2) - math.exp(e) * norm.sf(e / mu + mu / 2) <= 1e-6  # its exact delta
        with pytest.raises(dp.BudgetExceeded):
            dp.interop.charge(budget, total >> odp.m.then_laplace(0.1), "too much")
        assert len(budget.entries) == 2
    sums = (odp.atom_domain(T=float, nan=False), odp.absolute_distance(T=float)) >> odp.m.then_laplace(4.0)
    # A pair of a rho and a delta is no (epsilon, delta).
    measure, records = odp.approximate(odp.zero_concentrated_divergence()), odp.vector_domain(odp.atom_domain(T=float))
    law = {"function": lambda _: 0.0, "privacy_map": lambda d: (d * 0.01, 1e-7), "TO": float}
    pair = odp.m.make_user_measurement(records, odp.symmetric_distance(), measure, **law)
    for wrong, said, *delta in (
        (sums, "AbsoluteDistance.* does not cover add-remove neighbours"),
        (gaussian, "pass delta="),
        (pair, "is not supported", 1e-6),
    ):
        refused(dp.TemplateError, said, dp.interop.charge, ledger(), wrong, "wrong", *delta)


def test_a_measurement_on_data_of_one_size_is_no_spend_where_records_come_and_go(odp):
    domain = odp.vector_domain(odp.atom_domain(bounds=(0.0, 1.0), nan=False), size=100)
    mean = (domain, odp.symmetric_distance()) >> odp.t.then_sum() >> odp.m.then_laplace(0.1)
    assert mean.map(1) < 1e-9 < 9 < mean.map(2)
    with pytest.raises(dp.TemplateError, match="data of a fixed size"):
        dp.interop.charge(dp.Budget(dp.Privacy(1.0, adjacency="add-remove")), mean, "sum")
    replaced = dp.Budget(dp.Privacy(20.0))
    dp.interop.charge(replaced, mean, "sum")
    assert replaced.spent.epsilon >= 10


def test_no_release_is_no_entry():
    da, budget = pytest.importorskip("dp_accounting"), dp.Budget(dp.Privacy(3.0))
    nothing, gaussian = da.NoOpDpEvent(), da.LaplaceDpEvent(2.0)
    for event in (nothing, da.ComposedDpEvent([nothing, da.SelfComposedDpEvent(nothing, 3)]), da.ComposedDpEvent([])):
        dp.interop.charge(budget, event, "nothing")
    assert not budget.entries
    dp.interop.charge(budget, da.ComposedDpEvent([da.SelfComposedDpEvent(nothing, 3), gaussian]), "something")
    assert [entry.named for entry in budget.entries]
