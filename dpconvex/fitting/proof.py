"""Writes the proof of a certificate (docs/checking.md): the template's graph, and witnesses that spare the checker a search."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from math import inf, isfinite
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from dpconvex.certificates.certificate import Certificate, QueriesCertificate, StatisticsCertificate
from dpconvex.checker.expansion import REARRANGED
from dpconvex.checker.files import PROSE
from dpconvex.checker.reading import MOST_BYTES
from dpconvex.data.domains import Ball
from dpconvex.errors import MissingRule
from dpconvex.expressions.abstract_values import HessianTerm
from dpconvex.expressions.atoms.arrangement import source_entries
from dpconvex.expressions.atoms.rules import lines
from dpconvex.expressions.expression import Constant, Expression, Field, Variable, postorder
from dpconvex.expressions.to_cvxpy import attribute_constraints
from dpconvex.mechanisms.gradient_descent import ROUNDING_SHARE
from dpconvex.mechanisms.matrix_noise import best_structure
from dpconvex.mechanisms.sufficient_statistics import mechanism_of
from dpconvex.model.privacy import Privacy, remaining
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sensitivity.curvature import MeanJoint, Touch, hull_rows, maximise_trace
from dpconvex.sensitivity.gram import GradientGram
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.moments import Moments
from dpconvex.util.arrays import Array

FORMAT = "dpconvex proof 1"
LEFT_OUT = (*PROSE, "writer")
MOST_NUMBERS = 200_000  # of all constants of a template
TOO_LONG, SHORTER = "the template is too large for a proof", "write it with fewer or smaller constants"
# Weights of rows in a centre are multiples of 1 / GRID; points of tangents with a relative distance below NEAR count as one.
GRID, NEAR = 2.0**40, 1e-6


def proof_of(analysis: Analysis, certificate: Certificate) -> bytes:
    """Return the proof of a certificate for an analysis, as bytes in JSON."""
    form, template, sums = analysis.form, analysis.form.template, isinstance(certificate, StatisticsCertificate)
    record = {name: domain_of(domain) for name, domain in template.record.continuous.items()}
    if isinstance(certificate, QueriesCertificate):  # the proof uses no property of the loss
        known = {"record": record} if certificate.clustering else {}
        return json.dumps({"format": FORMAT, "claim": plain(certificate), **known}, separators=(",", ":")).encode()
    attributes = [constraint for variable in template.variables for _, constraint in attribute_constraints(variable)]
    constraints = [*form.constraints, *attributes]
    nodes, number = graph(form, [*template.losses, template.regularizer, *(a for c in constraints for a in c.args)])
    centres, tangents = witnesses(analysis, certificate, number) if certificate.curved else ([], [])
    matrix = best_structure(analysis) if certificate.noise == "matrix" else None
    moments = mechanism_of(certificate).moments(form, certificate.privacy.adjacency) if sums else None
    proof = {
        "format": FORMAT,
        "claim": plain(certificate),
        "nodes": nodes,
        "record": record,
        "cells": matrix.classes.tolist() if matrix else cells(analysis.gram, form.space.dim),
        "parts": parts(analysis.gram, analysis.bases.count),
        "centres": centres,
        "tangents": tangents,
        "modulus": exact(certificate.strong_convexity * (1 - 1e-13)),
        "moments": plain_moments(moments) if moments else [],
        "sampled": sampled(certificate) if "sampling" in certificate.settings else {},
        "layout": matrix.layout.tolist() if matrix else [],
        "losses": [] if sums else [number[loss] for loss in template.losses],
        "regularizer": number[template.regularizer],
        "constraints": [{"kind": c.kind, "args": [number[a] for a in c.args]} for c in constraints],
    }
    if analysis.bases.units:
        proof["units"] = {k: {"shift": exacts(s), "scale": exacts(a)} for k, (s, a) in analysis.bases.units.items()}
    text = json.dumps(proof, separators=(",", ":"), allow_nan=False).encode()
    if len(text) > MOST_BYTES:
        raise MissingRule(TOO_LONG, None, SHORTER)
    return text


def sampled(certificate: Certificate) -> dict[str, Any]:
    """Return the numbers that Poisson sampling relies on: the noise of one gradient, and the cost of all steps."""
    known = {key: exact(certificate.settings[key]) for key in ("steps", "sampling", "multiplier")}
    parts = {"epsilon": certificate.noise_epsilon, "delta": certificate.noise_delta}
    return known | {key: exact(remaining(part, ROUNDING_SHARE * part) * (1 + 2.0**-51)) for key, part in parts.items()}


def exact(value: float) -> int | str:
    """Return a finite number for JSON: whole numbers unchanged, others in hexadecimal."""
    return int(value) if value == int(value) and abs(value) < 2**53 else float(value).hex()


def exacts(values: Any) -> list[int | str]:
    return [exact(value) for value in np.asarray(values, dtype=float).ravel(order="F").tolist()]


def plain(value: Any) -> Any:
    """Return public numbers as JSON data, exactly, without infinite and missing ones."""
    if isinstance(value, Privacy):
        value = value.to_dict()
    if is_dataclass(value):
        value = {item.name: getattr(value, item.name) for item in fields(value) if item.name not in LEFT_OUT}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items() if item is not None and item not in (inf, -inf)}
    return exact(value) if isinstance(value, float) else value


def domain_of(domain: Any) -> dict[str, Any]:
    if isinstance(domain, Ball):
        norm = "inf" if domain.norm == inf else int(domain.norm)
        return {"dim": int(domain.dim), "radius": exact(domain.radius), "norm": norm}
    return {"lower": exacts(domain.lower), "upper": exacts(domain.upper)}


def graph(form: LossForm, roots: list[Expression]) -> tuple[list[dict[str, Any]], dict[Expression, int]]:
    """Return the nodes of all expressions and their numbers: variables first, by coordinates; arguments before functions."""
    variables: list[Expression] = [block.variable for block in form.space.blocks.values()]
    number: dict[Expression, int] = {}
    nodes: list[dict[str, Any]] = []
    order = dict.fromkeys([*variables, *postorder(roots)])
    if sum(node.size for node in order if isinstance(node, Constant)) > MOST_NUMBERS:
        raise MissingRule(TOO_LONG, None, SHORTER)
    for node in order:
        number[node] = len(nodes)
        nodes.append({"shape": list(node.shape), **dict(described(node))})
        if isinstance(node, Variable) and form.space.blocks[node.name].symmetric:
            nodes[-1]["symmetric"] = 1
        if node.args:
            nodes[-1]["args"] = [number[argument] for argument in node.args]
    return nodes, number


def described(node: Expression) -> Iterator[tuple[str, Any]]:
    """Yield the operation of a node and its options; entries of arrays are numbered in column order."""
    if isinstance(node, Constant):
        yield from (("op", "constant"), ("value", exacts(node.dense)))
    elif isinstance(node, Variable | Field):
        kind = "variable" if isinstance(node, Variable) else "field"
        yield from (("op", kind), ("name" if kind == "variable" else kind, node.name))
    else:
        yield "op", node.operation.name
        if node.operation.name in REARRANGED:
            yield "places", source_entries(node).tolist()
            return
        options: Mapping[str, Any] = dict(node.options)
        for key, value in options.items():
            if key == "axis":
                yield "groups", lines(node).tolist()
            elif key == "declaration":
                yield from zip(("low", "high", "curvature"), exacts([*value.slope, value.curvature]), strict=True)
            elif isinstance(value, int | float) and not isinstance(value, bool):
                yield key, exact(value) if isfinite(value) else "inf"


def cells(gram: GradientGram, dim: int) -> list[int]:
    """Return the cell of each coordinate; within a cell, gradients are multiples of generators."""
    found = np.zeros(dim, dtype=int)
    known: dict[tuple[int, int], int] = {}
    for generator in gram.generators:
        found[generator.place] = known.setdefault((generator.block, generator.cell), len(known))
    return [int(cell) for cell in found]


def parts(gram: GradientGram, scalars: int) -> list[int]:
    """Return the part of each scalar of the record, joined by monomials of generators; empty if no generator is divided."""
    if not any(generator.divided for generator in gram.generators):
        return []
    pairs = []
    for generator in gram.generators:
        first, *others = gram.monomial[generator.monomial][:, 0]
        pairs += [(first, other) for other in others if first >= 0 <= other]
    one, two = np.array(pairs, dtype=int).reshape(-1, 2).T
    joined = sp.coo_array((np.ones(len(one)), (one, two)), shape=(scalars, scalars))
    return [int(part) for part in connected_components(joined, directed=False)[1]]


def plain_moments(found: Moments) -> list[dict[str, Any]]:
    """Return the terms that are summed over the records, kind by kind; monomials are lists of numbers of scalars."""
    return [
        {
            "bases": list(kind.bases),
            "monomials": kind.monomials.tolist(),
            "patterns": [exacts(row) for row in kind.patterns],
            "scale": exact(kind.scale),
        }
        for kind in found.kinds
    ]


def witnesses(
    analysis: Analysis, certificate: Certificate, number: Mapping[Expression, int]
) -> tuple[list[list[Any]], list[list[int | str]]]:
    """Return the centres of covariance bounds, as weighted rows of leaves, and the points where tangents touch."""
    gram, points, touching = analysis.gram, list[Array](), list[Touch]()
    beta = 0.0 if certificate.is_gaussian else 1 / certificate.noise_scale  # 0 if only the curvature is bounded
    mu = certificate.strong_convexity
    for loss in analysis.losses:
        pieces, joint = list(loss.scalar.pieces), loss.joint
        if isinstance(joint, MeanJoint) and (beta or joint.mean.piece.outer):
            best = joint.touching(beta, mu)[1]
            touch = next((known for known in touching if np.allclose(best, known, rtol=NEAR)), best)
            touching += [] if touch is not best else [touch]
            pieces += [HessianTerm(joint.mean.piece.terms, 0.0, 1.0), joint.left(beta, mu, touch)]
        for piece in pieces:
            rows = hull_rows(piece)
            if rows is not None and piece.spread > piece.outer:
                points.append(maximise_trace(piece, rows, gram)[1] @ rows)
    places = [(number[leaf], j) for leaf, rows in analysis.rows.items() for j in range(len(rows))]
    table = np.concatenate(list(analysis.rows.values()))
    weights = np.linalg.lstsq(table.T, np.reshape(points, (len(points), -1)).T)[0].T if points else []
    found: dict[str, list[Any]] = {}
    for row in weights:
        rounded = zip(places, np.rint(row * GRID) / GRID, strict=True)
        centre = [[*place, exact(weight)] for place, weight in rounded if weight]
        found.setdefault(json.dumps(centre), centre)
    return list(found.values()), [exacts(tangent) for tangent in touching]
