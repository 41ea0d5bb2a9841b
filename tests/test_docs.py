"""The pages under docs/ keep their word: generated ones are up to date, links lead somewhere, formulas hold in numbers."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import cvxpy as cp
import numpy as np
import pytest
from numpy.typing import NDArray

import dpconvex as dp
from dpconvex.core.atoms import ATOMS
from dpconvex.release.verify import analyse

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
SEVERITIES = ("critical", "high", "medium", "low")

Array = NDArray[np.float64]


def script() -> ModuleType:
    """Import docs/build_rules.py, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("build_rules", ROOT / "docs" / "build_rules.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The rules page


def test_the_rules_page_is_what_the_rules_say_today() -> None:
    module = script()
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run: python docs/build_rules.py"


def test_every_rule_has_an_example() -> None:
    ruled = [atom for atom in ATOMS.values() if atom.affine == "curved" and atom.rule is not None]
    assert {atom.name for atom in ruled} == set(script().EXAMPLES)
    assert all(atom.statement and atom.source for atom in ruled)


def test_the_reference_lists_the_public_names() -> None:
    spec = importlib.util.spec_from_file_location("build_api", ROOT / "docs" / "build_api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = {file.stem: file.read_text(encoding="utf-8") for file in (ROOT / "docs" / "api").glob("*.md")}
    assert written == module.pages(), "run: python docs/build_api.py"
    assert "further" not in written, "give the new names a page in docs/build_api.py"


def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "api" / "proving" / "index.html").is_file()


# Links, names and tables


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        other = page if not file else (page.parent / file).resolve()
        assert other.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(other.read_text(encoding="utf-8")), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_public_names_that_a_page_mentions_exist(page: Path) -> None:
    for name in re.findall(r"`dp\.(\w+)", page.read_text(encoding="utf-8")):
        assert hasattr(dp, name), f"{page.name} mentions dp.{name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_mentions_exist(page: Path) -> None:
    for name in re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", page.read_text(encoding="utf-8")):
        places = (ROOT, ROOT / "dpconvex")
        assert any((place / name).is_file() for place in places), f"{page.name} mentions {name}"


def test_pitfalls_are_rated_and_complete() -> None:
    text = (ROOT / "docs" / "pitfalls.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[(.*?)\]\(#.*?\) \| (\w+) \|$", text, flags=re.MULTILINE)
    assert len(listed) >= 20
    section, found = "", []
    for level, title in re.findall(r"^(##+) (.*)$", text, flags=re.MULTILINE):
        section = title.lower() if level == "##" else section
        if level == "###":
            found.append((title, section))
    assert found == listed
    assert {rating for _, rating in listed} == set(SEVERITIES)
    for part in text.split("\n### ")[1:]:
        for label in ("What goes wrong", "What the toolkit does", "Left to you"):
            assert part.count(f"*{label}.*") == 1, part.splitlines()[0]


# The statements of theory.md, in numbers.  Each is a theorem there; a random instance would show a slip of the pen.


def psd(size: int, rng: np.random.Generator, rank: int | None = None) -> Array:
    factor = rng.normal(size=(size, rank or size))
    return factor @ factor.T


def log_det(matrix: Array) -> float:
    sign, value = np.linalg.slogdet(np.eye(len(matrix)) + matrix)
    assert sign > 0
    return float(value)


def relative(h: Array, m: Array) -> Array:
    """Return M^(-1/2) H M^(-1/2)."""
    values, vectors = np.linalg.eigh(m)
    root = (vectors / np.sqrt(values)) @ vectors.T
    return root @ h @ root


SEEDS = pytest.mark.parametrize("seed", range(5))


@SEEDS
def test_section_3_the_determinant_on_the_sensitive_subspace(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, p, d = psd(6, rng) + 0.1 * np.eye(6), 3, 6
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
    inside, outside = basis[:, :p], basis[:, p:]
    h = inside @ psd(p, rng) @ inside.T
    a, b, c = inside.T @ m @ inside, inside.T @ m @ outside, outside.T @ m @ outside
    schur = a - b @ np.linalg.inv(c) @ b.T
    assert np.allclose(np.linalg.inv(schur), inside.T @ np.linalg.inv(m) @ inside)
    assert log_det(relative(inside.T @ h @ inside, schur)) == pytest.approx(log_det(relative(h, m)))


@SEEDS
def test_section_4_one_record_pays_for_the_determinant(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m = psd(5, rng) + 0.1 * np.eye(5)
    rest, h, other = m + psd(5, rng, 2), psd(5, rng, 1), psd(5, rng, 2)
    ratio = np.linalg.slogdet(rest + h)[1] - np.linalg.slogdet(rest + other)[1]
    assert ratio <= log_det(relative(h, m)) + 1e-12
    part = np.linalg.qr(rng.normal(size=(5, 3)))[0]
    compressed = log_det(relative(part.T @ h @ part, part.T @ m @ part))
    assert compressed <= log_det(relative(h, m)) + 1e-12


@SEEDS
def test_section_5_bounds_on_curvature(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mu, a, b = 0.3, psd(5, rng, 2), psd(5, rng, 2)
    trace, rank = np.trace(a), 2
    assert log_det(a / mu) <= rank * np.log1p(trace / (rank * mu)) + 1e-12
    assert rank * np.log1p(trace / (rank * mu)) <= trace / mu
    assert log_det((a + b) / mu) <= log_det(a / mu) + log_det(b / mu) + 1e-12


@SEEDS
def test_section_6_the_joint_supremum_of_softmax(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vertices = rng.normal(size=(4, 3))
    longest = np.linalg.norm(vertices, axis=1).max()
    mu = rng.uniform(0.1, 2)
    beta = 2 * longest / mu
    for weights in rng.dirichlet(np.full(4, 0.3), size=200):
        mean = weights @ vertices
        covariance = (vertices.T * weights) @ vertices - np.outer(mean, mean)
        assert beta * np.linalg.norm(mean) + log_det(covariance / mu) <= beta * longest + 1e-9


@SEEDS
def test_section_6_the_joint_supremum_of_the_logistic_loss(seed: int) -> None:
    rng = np.random.default_rng(seed)
    w = cp.Variable(2, name="w")
    template = dp.Template(dp.Record(x=dp.Ball(2, radius=1.5)), lambda x: 2 * cp.logistic(x @ w), cp.sum_squares(w))
    joint = analyse(template).losses[0].joint
    assert joint is not None
    slope = np.linspace(0, 1, 2001)
    for beta, mu in rng.uniform(0.05, 3, size=(20, 2)):
        seen = 2 * beta * 1.5 * slope + np.log1p(2 * slope * (1 - slope) * 1.5**2 / mu)
        assert joint.loss(beta, mu) == pytest.approx(seen.max(), rel=1e-5)
    assert joint.loss(2.0, 0.75) == pytest.approx(2 * 2.0 * 1.5, rel=1e-9)  # R = beta mu: curvature is free


@SEEDS
def test_section_9_one_matrix_dominates_every_gram_matrix(seed: int) -> None:
    rng = np.random.default_rng(seed)
    W = cp.Variable((3, 2), name="W")
    record = dp.Record(x=dp.Box([0.5, -1.0], [2.0, 1.0]), v=dp.Ball(2, radius=0.7))
    template = dp.Template(record, lambda x, v: cp.log_sum_exp(W @ (x + v) + W @ v), cp.sum_squares(W))
    analysis = analyse(template)
    gram = analysis.gram
    scalars = np.column_stack([*(column for column in record.sample(200, rng).fields.values()), np.ones(200)])
    monomials = scalars[:, gram.monomial].prod(axis=2)
    for values in monomials:
        exact = sum(form.weight * float(values @ form.matrix @ values) for form in gram.forms)
        assert np.linalg.eigvalsh(gram.upper - exact).min() >= -1e-9


@SEEDS
def test_section_10_covariances(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points, weights = rng.normal(size=(6, 3)), rng.dirichlet(np.ones(6))

    def covariance(rows: Array, share: Array) -> Array:
        mean = share @ rows
        return (rows.T * share) @ rows - np.outer(mean, mean)

    whole = covariance(points, weights)
    diameter = max(np.linalg.norm(a - b) for a in points for b in points)
    assert np.linalg.eigvalsh(whole)[-1] <= diameter**2 / 4 + 1e-12  # Popoviciu
    groups = [slice(0, 2), slice(2, 6)]
    means = np.stack([weights[g] @ points[g] / weights[g].sum() for g in groups])
    between = covariance(means, np.array([weights[g].sum() for g in groups]))
    assert np.linalg.eigvalsh(whole - between).min() >= -1e-12  # the law of total covariance


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_section_10_the_trace_of_softmax(classes: int) -> None:
    W = cp.Variable((classes, 2), name="W")
    template = dp.Template(
        dp.Record(x=dp.Ball(2, radius=1.5)),
        lambda x: cp.log_sum_exp(W @ x - cp.sum(W @ x) / classes),
        cp.sum_squares(W),
    )
    curvature = analyse(template).losses[0].curvature
    assert curvature.trace == pytest.approx((1 - 1 / classes) * 1.5**2, rel=1e-6)
    assert curvature.eigenvalue == pytest.approx(1.5**2 / 2, rel=1e-6)
    assert curvature.rank == classes - 1


@SEEDS
def test_sections_13_and_14_distances_from_a_minimiser(seed: int) -> None:
    rng = np.random.default_rng(seed)
    hessian = psd(4, rng) + 0.5 * np.eye(4)
    mu = float(np.linalg.eigvalsh(hessian)[0])
    centre, noise = rng.normal(size=4), rng.normal(size=4)

    def value(theta: Array) -> float:
        return float(0.5 * (theta - centre) @ hessian @ (theta - centre))

    answer = centre - np.linalg.solve(hessian, noise)
    assert value(answer) <= noise @ noise / (2 * mu) + 1e-12
    assert np.linalg.norm(answer - centre) <= np.linalg.norm(noise) / mu + 1e-12
    # Section 13, with K the non-negative orthant: the residual of one step bounds the distance from the minimiser.
    step = 1 / float(np.linalg.eigvalsh(hessian)[-1])
    exact = np.maximum(centre, 0)
    for _ in range(20000):
        exact = np.maximum(exact - step * hessian @ (exact - centre), 0)
    y = rng.normal(size=4)
    x = np.maximum(y - step * hessian @ (y - centre), 0)
    residual = hessian @ (x - y) + (y - x) / step
    assert np.linalg.norm(x - exact) <= np.linalg.norm(residual) / mu + 1e-12
