"""Writes docs/rules.md from the rules themselves: ``python docs/build_rules.py``.

Names, statements and sources are those that certificates quote; the constants in the tables are computed by the calculus, on
one example for each rule.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np

import dpconvex as dp
from dpconvex.calculus import analysis  # noqa: F401  (importing it registers the rules)
from dpconvex.calculus.interpreter import AFFINE_COMBINATIONS, OUTER_RULES
from dpconvex.calculus.strong_convexity import MODULUS_RULES
from dpconvex.core.declared_atoms import Atom
from dpconvex.core.expansion import AFFINE_RULES
from dpconvex.core.record_ranges import INTERVAL_RULES
from dpconvex.errors import FUNCTIONS
from dpconvex.release.verify import analyse

PAGE = Path(__file__).resolve().parent / "rules.md"

HEAD = """# Rules

<!-- Written by docs/build_rules.py from the registries in dpconvex/. Edit the rules, then run it again. -->

A loss is read from its affine leaves up. [Affine atoms](#affine-atoms) build the leaves, [functions of the
record](#functions-of-the-record) are bounded over its declared domain, and [atoms of a loss](#atoms-of-a-loss) turn
ranges, gradient sets and curvature of their arguments into those of their values. [Strong
convexity](#strong-convexity) is read off the regularizer. An expression with an atom that is not on this page is
refused by name. [theory.md](theory.md) has the proofs: sections 9 and 10 for gradients and Hessians, 11 for records,
12 for strong convexity.
"""

OUTER = """
## Atoms of a loss

`m` stands for an argument, `g` for its gradient, with an index where there are several. "Source" says where the
mathematics comes from. A rule is a function in `dpconvex/calculus/`, registered with `@outer_rule`; adding one takes
nothing else.
"""

EXAMPLES_HEAD = """
### What the rules give

Computed by the calculus for the example on the left, where `w` is a variable with three entries (`w[0]` one of them):
first on the whole space, then on the box `0.5 <= w <= 2`. `G` bounds the gradient's norm, `L` the largest eigenvalue
of the Hessian, `T` its trace, `r` its rank. *kink* means: Lipschitz, but not differentiable, so output perturbation
and noisy gradient descent only. *bounded sets* means: no constant holds on the whole space.

| rule | example | whole space | on the box |
|---|---|---|---|
"""

AFFINE = """
## Affine atoms

Expressions that are affine in the variables become exact polynomials in the record, one term for each entry, monomial
and coordinate of the parameters. Atoms that act on one argument and have no rule of their own are applied to unit
vectors, up to 4096 of them.

| atoms | what happens |
|---|---|
"""

COMBINATIONS = """
Above the leaves, the same operations carry ranges, gradient sets and Hessian pieces through, entry by entry:

| atoms | what happens |
|---|---|
"""

INTERVALS = """
## Functions of the record

Sums, products and whole powers of fields are polynomials, bounded by interval arithmetic and by Cauchy-Schwarz with
the fields' norms. A function on this list becomes a field of its own, with the bounds that its rule gives.

| function | bounds over the declared domain |
|---|---|
"""

MODULI = """
## Strong convexity

The regularizer is taken apart into terms. Each contributes a matrix that its Hessian is never below; the matrices
add, and the modulus is the smallest eigenvalue of the sum over the whole space. Affine terms and every convex term
that is not on this list contribute 0.

| term | Hessian | at least |
|---|---|---|
"""

REFERENCES = """
## References

- S. Boyd, L. Vandenberghe, *Convex Optimization*, Cambridge University Press, 2004.
- K. Chaudhuri, C. Monteleoni, A. D. Sarwate, "Differentially private empirical risk minimization", Journal of Machine Learning
  Research 12, 2011. Theorems and corollaries are numbered as in the journal: its theorem 9 and corollary 11 are theorem 2 and
  corollary 2 of arXiv:0912.0071.
- A. S. Lewis, M. L. Overton, "Eigenvalue optimization", Acta Numerica 5, 1996.
- G. A. Watson, "Characterization of the subdifferential of some matrix norms", Linear Algebra and its Applications 170, 1992.
"""

# CVXPY classes whose names users do not write.
WRITTEN = {
    "AddExpression": "+",
    "NegExpression": "-",
    "MulExpression": "@",
    "DivExpression": "/",
    "Concatenate": "concatenate",
    "Hstack": "hstack",
    "Vstack": "vstack",
    "diag_vec": "diag",
    "diag_mat": "diag",
    "index": "indexing",
    "special_index": "indexing",
    "transpose": ".T",
    "Promote": "promotion of scalars",
    "broadcast_to": "broadcasting",
    "DeclaredAtom": "dp.Atom",
    "SymbolicQuadForm": "quad_form",
    "nonneg_wrap": "wrappers of signs and definiteness",
    "nonpos_wrap": "wrappers of signs and definiteness",
    "psd_wrap": "wrappers of signs and definiteness",
    "nsd_wrap": "wrappers of signs and definiteness",
    "symmetric_wrap": "wrappers of signs and definiteness",
} | FUNCTIONS

SOFTPLUS = Atom("softplus", lambda m: __import__("jax").numpy.logaddexp(m, 0.0), slope=(0.0, 1.0), curvature=0.25)

# One expression for each rule, in a variable w with three entries.
EXAMPLES: dict[str, tuple[str, Callable[[cp.Variable], Any]]] = {
    "logistic": ("logistic(w[0])", lambda w: cp.logistic(w[0])),
    "huber": ("huber(w[0], 1)", lambda w: cp.huber(w[0], 1)),
    "maximum": ("maximum(w[0], w[1])", lambda w: cp.maximum(w[0], w[1])),
    "minimum": ("-minimum(w[0], w[1])", lambda w: -cp.minimum(w[0], w[1])),
    "abs": ("abs(w[0])", lambda w: cp.abs(w[0])),
    "exp": ("exp(w[0])", lambda w: cp.exp(w[0])),
    "log": ("-log(w[0])", lambda w: -cp.log(w[0])),
    "entr": ("-entr(w[0])", lambda w: -cp.entr(w[0])),
    "power": ("power(w[0], 2)", lambda w: cp.power(w[0], 2)),
    "log-sum-exp": ("log_sum_exp(w)", cp.log_sum_exp),
    "max": ("max(w)", cp.max),
    "norm1": ("norm1(w)", cp.norm1),
    "norm_inf": ("norm_inf(w)", cp.norm_inf),
    "p-norm": ("pnorm(w, 2)", lambda w: cp.pnorm(w, 2)),
    "quad_over_lin": ("quad_over_lin(w[:2], w[2])", lambda w: cp.quad_over_lin(w[:2], w[2])),
    "quad_form": ("quad_form(w, [[2, 1, 0], [1, 2, 0], [0, 0, 1]])", lambda w: cp.quad_form(w, FORM)),
    "relative entropy": ("kl_div(w[0], w[1])", lambda w: cp.kl_div(w[0], w[1])),
    "largest eigenvalue or singular value": ("sigma_max([w, 1])", lambda w: cp.sigma_max(cp.vstack([w, np.ones(3)]))),
    "nuclear norm": ("norm_nuc([w, 1])", lambda w: cp.norm(cp.vstack([w, np.ones(3)]), "nuc")),
    "declared atom": ("softplus(w[0]), declared", lambda w: SOFTPLUS(w[0])),
}
FORM = np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 1.0]])


def page() -> str:
    """Return the text of docs/rules.md."""
    outer = sorted(unique(OUTER_RULES.values()), key=lambda rule: rule.name == "declared atom")
    parts = [HEAD, OUTER]
    for rule in outer:
        parts.append(
            f"\n### {rule.name}\n\nAtoms: {listed(rule.atoms)}.\n\n{sentence(rule.statement)} {summary(rule.apply)}\n"
        )
        parts.append(f"\nSource: {sentence(rule.source)}\n")
    parts.append(EXAMPLES_HEAD)
    for rule in outer:
        text, make = EXAMPLES[rule.name]
        parts.append(f"| {rule.name} | `{text}` | {constants(make, None)} | {constants(make, [0.5, 2.0])} |\n")
    parts.append(AFFINE)
    parts += [f"| {listed(atoms)} | {cell(summary(function))} |\n" for function, atoms in grouped(AFFINE_RULES)]
    parts.append(COMBINATIONS)
    parts += [f"| {listed(atoms)} | {cell(summary(function))} |\n" for function, atoms in grouped(AFFINE_COMBINATIONS)]
    parts.append(INTERVALS)
    parts += [f"| {listed(rule.atoms)} | {cell(rule.statement)} |\n" for rule in unique(INTERVAL_RULES.values())]
    parts.append(MODULI)
    for term in MODULUS_RULES:
        formula, claim = term.statement.split(": Hessian ")
        parts.append(f"| {term.name} | {cell(formula)} | {cell(claim.removeprefix('at least '))} |\n")
    parts.append(REFERENCES)
    return "".join(parts)


def unique(rules: Iterable[Any]) -> list[Any]:
    """Return each rule once, in the order of registration."""
    return list({id(rule): rule for rule in rules}.values())


def grouped(registry: dict[type, Any]) -> list[tuple[Any, list[type]]]:
    """Return each function of a registry with its atoms."""
    found: dict[Any, list[type]] = {}
    for atom, function in registry.items():
        found.setdefault(function, []).append(atom)
    return list(found.items())


def listed(atoms: Iterable[type]) -> str:
    """Return the names of atoms as their users write them."""
    names = dict.fromkeys(WRITTEN.get(atom.__name__, atom.__name__) for atom in atoms)
    return ", ".join(name if " " in name else f"`{name}`" for name in names)


def summary(function: Any) -> str:
    """Return the first paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split()).replace("``", "`")


def sentence(text: str) -> str:
    """Return a text with a full stop, and with a capital letter unless it starts with a formula."""
    first = text.split()[0]
    words = first == "a" or (len(first) > 1 and first.isalpha())
    return (text[0].upper() + text[1:] if words else text) + ("" if text.endswith(".") else ".")


def cell(text: str) -> str:
    """Return a text that may stand in a table."""
    return text.replace("|", "\\|")


def constants(make: Callable[[cp.Variable], Any], bounds: list[float] | None) -> str:
    """Return what the calculus proves about an example."""
    w = cp.Variable(3, name="w", **({} if bounds is None else {"bounds": bounds}))
    template = dp.Template(dp.Record(x=dp.Box(0.0, 1.0)), lambda x: make(w), cp.sum_squares(w))
    try:
        found = analyse(template)
    except dp.NotPrivate:
        return "bounded sets"
    (loss,) = found.losses
    if found.kink is not None:
        return f"G = {loss.gradient_bound:.4g}, kink"
    curvature = loss.curvature
    text = f"G = {loss.gradient_bound:.4g}, L = {curvature.eigenvalue:.4g}"
    return f"{text}, T = {curvature.trace:.4g}, r = {curvature.rank}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE}\n")
