"""The report of a release: its text is what was agreed, it loads nothing, escapes names, and says what is not private."""

import json
import re
import shlex
import shutil
import subprocess
import zipfile
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from command_line import main
from refused import refused

import dpconvex as dp

DECIMAL = re.compile(r"\d+\.\d+")
GOLDEN = Path(__file__).with_name("report.txt")
VOID = {"meta", "br", "rect", "path", "polyline", "polygon", "circle"}
SCHEMA = dp.Schema({"age": (0, 100), "<b>ward": {"levels": ["a & b", "c"]}}, "sick", ["no", "yes"])
LEARNER = dp.load("logistic_regression", features=3, labels=("no", "yes"))
CERTIFICATE = dp.verify(LEARNER, dp.Privacy(1.0), 3000, dp.ObjectivePerturbation())
RELEASE = dp.Release({"w": [2.0, -1.0, 0.5]}, CERTIFICATE, dp.Privacy(1.0), schema=SCHEMA)
PAID = dp.Privacy(0.5)


def cells_of(kind, **options):
    data = {"x": np.zeros((9, 3)), "y": ["no"] * 9}
    release = dp.solve(LEARNER, data, PAID, seed=0)
    return replace(dp.evaluate(LEARNER, release, data, PAID, seed=0).cells, kind=kind, **options)


def evaluation(spent=PAID, groups=("f", "m")):
    """Return what a release of two groups, of 500 records each, may have looked like."""
    cells = cells_of("probabilities", groups=2)
    yes = (cells.edges[1:] + cells.edges[:-1]) / 2
    counts = np.concatenate([500 * np.diff(cells.edges) * share for share in (1 - yes, yes)])
    sums = cells.sums({"probabilities": np.tile(counts, 2)})
    return dp.Evaluation(cells, tuple(sums.tolist()), 4.0, 1000, spent, ("no", "yes"), groups, "sick")


def run(line):
    return main(shlex.split(line))


class Reader(HTMLParser):
    """Reads texts, and notes tags that are not closed, and what would be loaded from elsewhere."""

    def __init__(self):
        super().__init__()
        self.open, self.texts, self.tags, self.loaded = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.loaded += [value for name, value in attributes if name in ("src", "href", "srcset", "data")]
        self.open += [] if tag in VOID else [tag]

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "text") and data.strip():
            self.texts.append(" ".join(data.split()))
            self.tags.append(self.open[-1])


def read(page, tags=False):
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert reader.loaded == []
    assert not re.search(r"https?://|url\(|@import|<script", page)
    return [f"{tag}: {text}" for tag, text in zip(reader.tags, reader.texts, strict=True)] if tags else reader.texts


def test_the_text_of_a_report_is_what_was_agreed(tmp_path):
    """If a sentence was meant to change, delete the golden file and run this test again: it writes the file, and fails."""
    budget = dp.Budget(dp.Privacy(2.0), tmp_path / "budget.jsonl")
    budget.spend(dp.Privacy(1.0), "fit of <i>March</i>")
    page = dp.report(RELEASE, evaluation(), budget, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page
    assert page.count("<svg") == 3 + 2  # of effects and curves
    assert 'name="viewport"' in page
    assert "prefers-color-scheme:dark" in page
    assert "@media print" in page
    (entry,) = budget.entries
    known = {entry.time[:16].replace("T", " "): "TIME", entry.user: "USER", entry.host: "HOST"}
    parts = (text.partition(": ") for text in read(page, tags=True))
    texts = [f"{tag}: {known.get(text, text)}" for tag, _, text in parts]
    texts = [re.sub(r"\b\d+ \w+ 20\d\d\b", "DATE", re.sub(r"\b[0-9a-f]{64}\b", "HASH", text)) for text in texts]
    if not GOLDEN.exists():
        GOLDEN.write_text("\n".join(texts) + "\n", encoding="utf-8")
        raise AssertionError("written anew: look at it")
    told, agreed = ("\n".join(texts), GOLDEN.read_text(encoding="utf-8").rstrip("\n"))
    assert DECIMAL.sub("#", told) == DECIMAL.sub("#", agreed)
    numbers = ([float(number) for number in DECIMAL.findall(text)] for text in (told, agreed))
    assert next(numbers) == pytest.approx(next(numbers), rel=0.01)  # versions of SciPy differ in the third digit


def test_ticks_of_three_digits_have_room():
    found = evaluation()
    counts = np.where(np.tile(found.cells.edges[1:] < 0.62, 4), found.sums, 0.0)  # the last tick is .789
    page = dp.report(RELEASE, replace(found, sums=tuple(counts.tolist()), total=int(counts.sum())))
    for at, anchor, tick in re.findall(r'<text x="([\d.]+)"[^>]*"(end|middle)">([\d.]+)<', page):
        right = float(at) + 3.5 * len(tick) * (anchor == "middle")
        assert right - 7 * len(tick) >= 14 or anchor == "middle"  # the name of the axis ends at 14
        assert right <= 340


def learnt(otherwise=None, **changes):
    """Return a schema that says that two columns were learnt, for epsilon = 0.5."""
    event = dp.verify(LEARNER, dp.Privacy(0.5, 2e-6), 3000, dp.AdaptiveSteps()).event.to_dict()  # normal noise, too
    paid = {"epsilon": 0.5, "delta": 2e-6, "adjacency": "replace-one"} | changes
    columns = {"age": 0.1, "sick": 0.1}
    own = {"privacy": paid, "event": event, "entry": "learn_schema 1", "columns": columns, "otherwise": otherwise}
    return replace(SCHEMA, learnt=own)


def test_a_learnt_schema_is_named_with_its_cost_and_the_whole_is_added_up(tmp_path, monkeypatch, capsys):
    release = replace(RELEASE, schema=learnt())
    texts = read(dp.report(release))
    assert [text for text in texts if "epsilon = 1.5" in text and "epsilon = 0.5, delta = 2e-06 for the schema" in text]
    assert not [text for text in texts if "2.72 times" in text]
    assert [text for text in texts if "except bounds and levels of 'age', 'sick', which were learnt" in text]
    monkeypatch.chdir(tmp_path)
    release.save("model.npz")
    loaded = dp.Release.load("model.npz").certificate
    for certificate in (release.certificate, loaded):
        assert certificate.privacy == dp.Privacy(1.0)  # of the fit
        assert certificate.whole[0] == dp.Privacy(1.5, 2e-6)
        said = dict(certificate.lines())
        assert "4.49 times" in said["meaning"]
        assert "which were learnt" in said["taken as public"]
        assert certificate.risk(0.1) < CERTIFICATE.risk(0.1)
    assert run("certificate model.npz") == 0
    assert "epsilon = 1.5" in capsys.readouterr().out
    other = replace(RELEASE, schema=learnt(adjacency="add-remove")).certificate
    assert "these do not add up" in dict(other.lines())["guarantee"]
    assert other.risk(0.1) == 0.0  # it was that of the fit alone
    refused(dp.NotPrivate, "these do not add up", other.for_group, 1)
    refused(dp.TemplateError, "other neighbours", dp.interop.dp_event, other)
    assert CERTIFICATE.learnt is None


def test_a_ledger_without_the_release_is_not_called_that_of_these_people():
    budget = dp.Budget(dp.Privacy(9.0, 1e-5))
    budget.spend(dp.Privacy(1.1), "evaluate model.npz")
    release = replace(RELEASE, schema=learnt())
    texts = " ".join(read(dp.report(release, None, budget)))
    assert "does not list this model; missing: its fit, learn_schema 1" in texts
    assert "ledger of these people" not in texts
    budget.spend(dp.Privacy(1.0), "fit", CERTIFICATE.event)
    budget.spend(dp.Privacy(0.5, 2e-6), "learn_schema 1")
    assert "ledger of these people" in " ".join(read(dp.report(release, None, budget)))


def test_what_is_not_private_is_said_first():
    seeded = dp.Release({"w": [1.0, 2, 3]}, CERTIFICATE, schema=SCHEMA, not_private_because="drawn with a seed")
    said = read(dp.report(seeded))
    assert "Not private: drawn with a seed. Do not publish this model." in said
    assert not {"Protected", "guarantee"} & set(said)  # as its certificate says of a fit without a seed
    texts = read(dp.report(RELEASE, evaluation(spent=None)))
    assert any(text.startswith("This evaluation is not private") for text in texts)
    assert not any("measured privately" in text for text in texts)
    refused(dp.TemplateError, "release must be a Release", dp.report, "model.npz")
    with pytest.raises(dp.TemplateError, match="evaluation must be an Evaluation"):
        dp.report(RELEASE, budget := dp.Budget(dp.Privacy(1.0)))
    assert not budget.entries


def test_intervals_curves_and_residuals_are_drawn(tmp_path):
    table = {"dose": np.arange(3000) / 3000, "kind": ["a", "b"] * 1500}
    schema = dp.Schema({"dose": (0, 1), "kind": {"levels": ["a", "b"]}}, "effect", label_bounds=(0, 2))
    model = dp.AdditiveRegressor(schema, epsilon=3.0, delta=1e-5, bounds=(0, 2), seed=0)
    model.fit(table, table["dose"] ** 0.5)
    cells = cells_of("numbers", labels=0)
    sums = np.concatenate([np.full(np.prod(shape), 100.0) for shape in cells.tables.values()])
    numbers = dp.Evaluation(cells, tuple(sums.tolist()), 8.0, None, dp.Privacy(1.0), bounds=(-1.0, 1.0))
    texts = read(dp.report(model, numbers, title="Doses"))
    assert texts[0] == "Doses"
    assert {"dose: what it adds to the score", "kind = a", "Residuals", "mean absolute error"} <= set(texts)
    assert any(text.endswith("truth; y is between -1 and 1") for text in texts)
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.5, 0.5, (20_000, 3))
    data = {"x": x, "y": np.where(2 * x[:, 0] + 0.5 * rng.logistic(size=20_000) > 0, "yes", "no")}
    promise = dp.Privacy(1.0, 1e-6)
    fit = dp.solve(LEARNER, data, promise, dp.ObjectivePerturbation("gaussian"), seed=1)
    found = dp.intervals(LEARNER, fit, data, promise, seed=2)
    (tmp_path / "one.json").write_text(json.dumps(found.to_dict()), encoding="utf-8")
    again = type(found).load(tmp_path / "one.json")
    assert str(again) == str(found)
    texts = read(dp.report(replace(fit, names=("a", "b", "c")), coefficients=again))
    assert f"{found.lower[0]:.3g} to {found.upper[0]:.3g}" in texts
    assert any(text.startswith("These intervals are not private") for text in texts)
    lost = {part: np.array([np.nan, *getattr(again, part)[1:]]) for part in ("estimates", "lower", "upper")}
    texts = read(dp.report(replace(fit, names=("a", "b", "c")), coefficients=replace(again, **lost)))
    assert any(text.endswith("have no interval: a.") for text in texts)
    texts = read(dp.report(replace(fit, schema=SCHEMA), coefficients=replace(again, **lost)))
    assert any(text.endswith("have no interval: age.") for text in texts)
    assert any("no intercept" in text for text in texts)
    named, others = (replace(one, names=("a", "b", "c")) for one in (fit, again))  # as those of LinearRegression
    refused(dp.TemplateError, "not those of the release", dp.report, named, coefficients=others)
    fit, again = (replace(one, not_private_because="", spent=promise) for one in (fit, again))
    assert "the same people: epsilon = 1, delta = 1e-06" in dp.report(fit, coefficients=again)
    (tmp_path / "one.json").write_text("{}", encoding="utf-8")
    refused(dp.DPConvexError, "no coefficients", type(found).load, tmp_path / "one.json")


def test_an_estimator_fitted_to_encoded_features_names_their_effects():
    rng = np.random.default_rng(0)
    table = {"age": rng.uniform(0, 100, 400), "sick": rng.choice(["no", "yes"], 400), "cost": rng.uniform(0, 9000, 400)}
    sick = dp.Schema({"age": (0, 100)}, "sick", ["no", "yes"])
    cost = dp.Schema({"age": (0, 100)}, "cost", label_bounds=(0, 9000))
    logistic = dp.LogisticRegression(classes=["no", "yes"], fit_intercept=False)
    for schema, model in ((sick, logistic), (cost, dp.Ridge(bounds=(0, 9000)))):
        model.set_params(epsilon=1.0, delta=1e-6, seed=0).fit(*schema.encode(table))
        assert model.release_.schema == schema
        page = dp.report(model)
        assert "age: 0 to 100" in read(page)
        assert ("no intercept" in page) == (schema is sick)  # "age" then stands for one, perhaps with the wrong sign


def test_the_commands_about_a_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    RELEASE.save("model.npz")
    found = evaluation()
    found.save("evaluation.json")
    assert run("report model.npz --evaluation evaluation.json --title T --out report.html --json") == 0
    assert json.loads(capsys.readouterr().out) == {"file": "report.html", "private": True, "missing": []}
    assert read(Path("report.html").read_text(encoding="utf-8"))[0] == "T"
    assert run("report model.npz --out model.npz") == 2
    assert run("certificate model.npz --json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["risk"]["0.05"] == pytest.approx(1 - CERTIFICATE.risk(0.05))
    with zipfile.ZipFile("model.npz") as whole, zipfile.ZipFile("unproved.npz", "w") as less:
        for name in whole.namelist():
            if name != "proof.json":
                less.writestr(name, whole.read(name))
    assert run("certificate unproved.npz --progress") == 0  # a claim that anybody may have written
    assert "nobody can check its numbers" in capsys.readouterr().out
    assert any("nobody can check its numbers" in text for text in read(dp.report(dp.Release.load("unproved.npz"))))
    assert run("coefficients model.npz --json") == 0
    effects = json.loads(capsys.readouterr().out)["effects"]
    assert [row["name"] for row in effects] == ["age", "<b>ward = a & b", "<b>ward = c"]
    assert effects[0]["effect"] == pytest.approx(2.0 / SCHEMA.norm_bound)
    Path("t.csv").write_text("id,text\n" + "".join(f'p{k // 2},"a, {k}"\n' for k in range(40)), encoding="utf-8")
    assert run("split t.csv --unit id --part 0.5 --seed 1 --out a.csv --test b.csv --json") == 0
    one, other = (Path(name).read_text(encoding="utf-8").splitlines() for name in ("a.csv", "b.csv"))
    assert one[0] == other[0] == "id,text"
    assert len(one) == len(other) == 21
    assert not {line.split(",")[0] for line in one[1:]} & {line.split(",")[0] for line in other[1:]}
    assert run("split t.csv --unit name --out a.csv --test b.csv") == 2
    Path("short.csv").write_text("text,id\na,p1\nb\nc,p2\n", encoding="utf-8")
    assert run("split short.csv --unit id --out a.csv --test b.csv") == 2
    assert "short.csv, line 3" in capsys.readouterr().err


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = [f"--disable-{what}" for what in ("gpu", "quic", "background-networking", "component-update", "sync")]
VIEWS = {"computer": (1000, 1), "phone": (500, 1), "dark": (1000, 0)}
HEIGHT, CELL = 3000, 20  # Pixels


@pytest.mark.sampled(3)
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium or Chrome")
@pytest.mark.parametrize("view", VIEWS)
def test_a_report_looks_as_it_did(view, tmp_path):
    """If the look was meant to change, delete the golden picture and run this test again: it writes the picture, and fails."""
    width, light = VIEWS[view]
    scheme = f"--blink-settings=preferredColorScheme={light}"
    dp.report(RELEASE, evaluation(), None, page := tmp_path / "report.html")
    shown = tmp_path / "shown.png"
    where = (f"--window-size={width},{HEIGHT}", f"--screenshot={shown}", f"--user-data-dir={tmp_path / 'user'}")
    start = (BROWSER, "--headless", "--no-sandbox", "--no-first-run", "--hide-scrollbars", scheme, *QUIET, *where)
    subprocess.run([*start, page.as_uri()], check=True, capture_output=True, timeout=120)
    drawn = plt.imread(shown)[..., :3].mean(axis=2)
    cells = drawn.reshape(HEIGHT // CELL, CELL, width // CELL, CELL).mean(axis=(1, 3))
    golden = Path(__file__).with_name(f"report_{view}.png")
    if not golden.exists():
        plt.imsave(golden, cells, cmap="gray", vmin=0, vmax=1)
        raise AssertionError("drawn anew: look at it, and at the report")
    expected = plt.imread(golden)[..., 0]
    # Fonts differ between machines, by their lines' lengths and heights; colours, columns and curves do not.
    assert abs(np.median(cells) - np.median(expected)) < 0.02
    assert np.abs(cells.mean(axis=0) - expected.mean(axis=0)).max() < 0.08
    assert np.abs(cells - expected).mean() < 0.04
