"""Writes docs/rules.md from the atoms themselves: ``python docs/build_rules.py``.

Names, statements and sources are those that certificates quote; the constants in the table are computed by the calculus, on one
example for each atom.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np

import dpconvex as dp
from dpconvex.expressions.atom import AtomDefinition
from dpconvex.expressions.atoms import ATOMS
from dpconvex.expressions.atoms.matrices import never_smooth
from dpconvex.fitting.verify import analyse

PAGE = Path(__file__).resolve().parent / "rules.md"

HEAD = """# Rules

<!-- Written by docs/build_rules.py from the atoms in dpconvex/expressions/atoms/. Edit the atoms, then run it again. -->

A loss is read from its affine leaves up. [Affine atoms](#affine-atoms) build the leaves, [functions of the
record](#what-each-atom-can-do) are bounded over its declared domain, and [curved atoms](#curved-atoms) turn ranges, gradient
sets and curvature of their arguments into those of their values. [Strong convexity](#strong-convexity) is read off the
regularizer. An expression with an atom that is not on this page is refused by name. [theory.md](theory.md) has the proofs:
sections 9 and 10 for gradients and Hessians, 11 for records, 12 for strong convexity.

## Affine atoms

Expressions that are affine in the variables become exact polynomials in the record, one term for each entry, monomial and
coordinate of the parameters. Above the leaves, the same atoms carry ranges, gradient sets and Hessian pieces through, entry by
entry: sums add them, factors scale them. A factor of a curved term may be a constant or a function of the record that keeps its
sign, a divisor one that keeps away from zero.

"""

AFFINE = {
    "linear": "Of any affine arguments",
    "bilinear": "With variables in at most one argument",
    "quotient": "With variables in the dividend only",
}

CURVED = """
## Curved atoms

`m` stands for an argument, `g` for its gradient, with an index where there are several. "Source" says where the mathematics
comes from.
"""

EXAMPLES_HEAD = """
### What the rules give

Computed by the calculus for the example on the left, where `w` is a variable with three entries (`w[0]` one of them): first on
the whole space, then on the box `0.5 <= w <= 2`. `G` bounds the gradient's norm, `L` the largest eigenvalue of the Hessian, `T`
its trace, `r` its rank. *nonsmooth* means: Lipschitz, but not differentiable, so output perturbation and noisy gradient descent
only. *bounded sets* means: no constant holds on the whole space.

| atom | example | whole space | on the box |
|---|---|---|---|
"""

ABILITIES = """
## What each atom can do

Affine atoms can do all that is asked of them. *Loss*: the atom has a rule, so it may stand in a loss, and be applied to fields
of the record alone. Sums, products and whole powers of fields are polynomials, bounded by interval arithmetic and by
Cauchy-Schwarz with the fields' norms; any other function becomes a field of its own, with bounds over the declared domain.
*Strong*: it may make a regularizer strongly convex. *Rounded*: it can be smoothed. *Conic*: it has a conic
form, so that a conic solver can minimise it.

| atom | loss | strong | rounded | conic |
|---|---|---|---|---|
"""

STRONG = """
## Strong convexity

The regularizer is taken apart into terms. Each contributes a matrix that its Hessian is never below; the matrices add, and the
modulus is the smallest eigenvalue of the sum over the whole space. Affine terms and every convex term that is not on this list
contribute 0.

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

# Functions of CVXPY that it writes with others.
ALSO = {
    "maximum": ("pos",),
    "power": ("square", "sqrt", "inv_pos"),
    "quad_over_lin": ("sum_squares", "quad_form"),
    "norm": ("norm", "norm2"),
}

# Classes of CVXPY whose functions have other names.
SPELLED = {"Trace": "trace", "diag_mat": "diag", "diag_vec": "diag", "Hstack": "hstack", "Vstack": "vstack"}

# Atoms that CVXPY lacks, where they are not `dp.` and their name.
OWN = {"declared": "`dp.Atom`", "neg_log_normcdf": "`-dp.log_normcdf`, exact where `cp.log_normcdf` approximates"}

SOFTPLUS = dp.Atom("softplus", lambda m: np.logaddexp(m, 0.0), slope=(0.0, 1.0), curvature=0.25)
OWN_EXAMPLES: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "declared": ("softplus(w[0]), declared", lambda cp, w: SOFTPLUS(w[0])),
    "neg_log_normcdf": ("-log_normcdf(w[0])", lambda cp, w: -dp.log_normcdf(w[0])),
}


def page() -> str:
    """Return the text of docs/rules.md."""
    parts = [HEAD]
    for kind, heading in AFFINE.items():
        affine = [atom for atom in ATOMS.values() if atom.affine == kind]
        names = ", ".join(f"`{name}`" for name in dict.fromkeys(n for a in affine for n in (a.name, *functions(a))))
        parts.append(f"- {heading}: {names}.\n")
    ruled = [atom for atom in ATOMS.values() if atom.affine == "curved"]
    parts.append(CURVED)
    for atom in ruled:
        parts.append(f"\n### {atom.name}\n\nIn CVXPY: {spelled(atom)}.\n\n")
        parts.append(f"{sentence(atom.statement)}\n\nSource: {sentence(atom.source)}\n")
    parts.append(EXAMPLES_HEAD)
    for atom in ruled:
        text, make = atom.example or own_example(atom.name)
        parts.append(f"| {atom.name} | `{text}` | {constants(make, None)} | {constants(make, [0.5, 2.0])} |\n")
    parts.append(ABILITIES)
    for atom in (atom for atom in ATOMS.values() if atom.affine == "curved"):
        smooth = atom.smoothed is not None and atom.smoothed is not never_smooth
        known = (atom.bounds, atom.hessian_lower_bound, smooth, atom.to_cvxpy)
        parts.append(f"| {atom.name} | {' | '.join('yes' if slot else '' for slot in known)} |\n")
    parts.append(STRONG)
    for term in (atom.hessian_lower_bound for atom in ATOMS.values() if atom.hessian_lower_bound):
        formula, claim = term.statement.split(": Hessian ")
        parts.append(f"| {term.name} | {cell(formula)} | {cell(claim.removeprefix('at least '))} |\n")
    parts.append(REFERENCES)
    return "".join(parts)


def spelled(atom: AtomDefinition) -> str:
    """Return the functions of CVXPY that make an atom."""
    found = [f"`cp.{name}`" for name in dict.fromkeys([*functions(atom), *ALSO.get(atom.name, ())])]
    return ", ".join(found) if found else OWN.get(atom.name, f"`dp.{atom.name}`")


def own_example(name: str) -> tuple[str, Callable[[Any, Any], Any]]:
    return OWN_EXAMPLES.get(name) or (f"{name}(w[0])", lambda cp, w: getattr(dp, name)(w[0]))


def functions(atom: AtomDefinition) -> list[str]:
    """Return the names of CVXPY's functions that are read as an atom."""
    read = [atom.from_cvxpy] if isinstance(atom.from_cvxpy, str) else atom.from_cvxpy
    names = [SPELLED.get(name, name) for name in (name.rsplit(".", 1)[-1] for name in read)]
    return [name for name in names if name[0].islower() and hasattr(cp, name)]


def sentence(text: str) -> str:
    """Return a text with a full stop, and with a capital letter unless it starts with a formula."""
    first = text.split()[0]
    words = first == "a" or (len(first) > 1 and first.isalpha() and first != "log")
    return (text[0].upper() + text[1:] if words else text) + ("" if text.endswith(".") else ".")


def cell(text: str) -> str:
    """Return a text that may stand in a table."""
    return text.replace("|", "\\|")


def constants(make: Callable[[Any, cp.Variable], Any], bounds: list[float] | None) -> str:
    """Return what the calculus proves about an example."""
    w = cp.Variable(3, name="w", **({} if bounds is None else {"bounds": bounds}))
    template = dp.Template(dp.Record(x=dp.Box(0.0, 1.0)), lambda x: make(cp, w), cp.sum_squares(w))
    try:
        found = analyse(template)
    except dp.NotPrivate:
        return "bounded sets"
    (loss,) = found.losses
    if found.kink is not None:
        return f"G = {loss.gradient_bound:.4g}, nonsmooth"
    curvature = loss.curvature
    text = f"G = {loss.gradient_bound:.4g}, L = {curvature.eigenvalue:.4g}"
    return f"{text}, T = {curvature.trace:.4g}, r = {curvature.rank}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE}\n")
