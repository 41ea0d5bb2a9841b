"""CVXPY expressions as tapes: a flat list of array instructions that NumPy or JAX can run.

A tape has slots for its leaves (variables, record fields, constants) instead of the leaves themselves.  Losses that differ
only in *which* variable or number stands where, as the losses for different labels do, have equal tapes, and a compiled tape
serves them all.  Equal subexpressions become one instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.parameter_space import Block, Space
from dpconvex.errors import MissingRule, TemplateError, shorten
from dpconvex.evaluation.atom_functions import find_rule

__all__ = ["Leaf", "Tape", "record_tape"]

Array = NDArray[np.float64]

# What an instruction does: the name of its atom, its static data, the instructions it reads, the shape of its result.
Step = tuple[str, Hashable, tuple[int, ...], tuple[int, ...]]
Apply = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Leaf:
    """What stands in a leaf's slot.

    Attributes
    ----------
    kind : {"variable", "field", "constant", "affine"}
    content : Block, str, ndarray or int
        The variable's block, the name of the field, the number, or the number of a subexpression that is given.
    """

    kind: str
    content: Block | str | Array | int


@dataclass(frozen=True)
class Tape:
    """Instructions in order of execution; equal tapes compute the same function of their leaves.

    Attributes
    ----------
    steps : tuple of Step
    root : int
        Which instruction's result is the value.
    functions : tuple of callable
        ``functions[i](xp, *arguments)`` executes step i with the array module `xp`; None for leaves.
    """

    steps: tuple[Step, ...]
    root: int
    functions: tuple[Apply | None, ...] = field(compare=False, repr=False)

    def run(self, leaves: Sequence[Any], xp: Any) -> Any:
        """Evaluate on leaf values in order of their slots, with the array module `xp`."""
        results: list[Any] = []
        waiting = iter(leaves)
        for (_, _, arguments, _), function in zip(self.steps, self.functions, strict=True):
            results.append(next(waiting) if function is None else function(xp, *(results[i] for i in arguments)))
        return results[self.root]


def record_tape(
    expression: cp.Expression,
    space: Space,
    fields: Sequence[cp.Parameter] = (),
    given: Mapping[int, int] | None = None,
) -> tuple[Tape, tuple[Leaf, ...]]:
    """Write an expression as a tape and its leaves.

    Parameters
    ----------
    expression : cvxpy.Expression
    space : Space
        Gives the variables their coordinates.
    fields : sequence of cvxpy.Parameter
        The record's symbols; other parameters are refused.
    given : mapping of int to int, optional
        Subexpressions, by id, that become leaves with the given number instead of being looked into.

    Returns
    -------
    Tape
    tuple of Leaf
        One for each leaf slot, in order.

    Raises
    ------
    MissingRule
        If an atom is not known here; names the subexpression.
    TemplateError
        If a parameter is not a field of the record, or a variable is not in the space.
    """
    recorder = Recorder(space, fields, given or {})
    root = recorder.visit(expression)
    return recorder.finish(root)


class Recorder:
    """Builds a tape, instruction by instruction."""

    def __init__(self, space: Space, fields: Sequence[cp.Parameter], given: Mapping[int, int]) -> None:
        self.space = space
        self.given = given
        self.fields = {id(parameter): parameter for parameter in fields}
        self.steps: list[Step] = []
        self.functions: list[Apply | None] = []
        self.leaves: dict[int, Leaf] = {}
        self.known: dict[Hashable, int] = {}
        self.visited: dict[int, int] = {}
        self.alive: list[cp.Expression] = []  # ids in `visited` are only valid while their objects live

    def visit(self, expression: cp.Expression) -> int:
        """Return the number of the instruction that computes `expression`."""
        if id(expression) not in self.visited:
            self.alive.append(expression)
            self.visited[id(expression)] = self._record(expression)
        return self.visited[id(expression)]

    def _record(self, expression: cp.Expression) -> int:
        if id(expression) in self.given:
            number = self.given[id(expression)]
            return self._leaf(("given", number), Leaf("affine", number), expression.shape)
        if isinstance(expression, cp.Variable):
            return self._leaf(expression.id, self._variable(expression), expression.shape)
        if isinstance(expression, cp.Parameter):
            if id(expression) not in self.fields:
                raise TemplateError(
                    f"the parameter {expression.name()!r} is not a field of the record; declare it as a field, or write a "
                    "public number as a constant."
                )
            return self._leaf(expression.id, Leaf("field", expression.name()), expression.shape)
        if not expression.args:
            return self._constant(expression)
        arguments = tuple(self.visit(argument) for argument in expression.args)
        if all(i in self.leaves and self.leaves[i].kind == "constant" for i in arguments):
            return self._constant(expression)
        rule = find_rule(expression)
        if rule is None:
            raise MissingRule(
                f"there is no rule to evaluate the atom {type(expression).__name__} over a batch",
                expression,
                "write the expression with atoms that have one (affine atoms, logistic, huber, exp, log, powers, "
                "log_sum_exp, maxima, norms, quadratic forms)",
            )
        static, function = rule
        return self._step((type(expression).__name__, static, arguments, expression.shape), function)

    def _variable(self, variable: cp.Variable) -> Leaf:
        block = self.space.blocks.get(str(variable.name()))
        if block is None or block.variable.id != variable.id:
            raise TemplateError(f"the variable {variable.name()!r} is not one of the template's.")
        return Leaf("variable", block)

    def _constant(self, expression: cp.Expression) -> int:
        value = expression.value
        if value is None:
            raise TemplateError(f"the constant {shorten(str(expression))} has no value.")
        dense = value.toarray() if sp.issparse(value) else np.asarray(value, dtype=float)
        number = np.asarray(dense, dtype=float).reshape(expression.shape)
        return self._leaf(("number", number.tobytes(), number.shape), Leaf("constant", number), expression.shape)

    def _leaf(self, identity: Hashable, leaf: Leaf, shape: tuple[int, ...]) -> int:
        key = ("leaf", identity)
        if key not in self.known:
            symmetric = isinstance(leaf.content, Block) and leaf.content.symmetric
            self.known[key] = len(self.steps)
            self.leaves[len(self.steps)] = leaf
            self.steps.append((leaf.kind, symmetric, (), shape))
            self.functions.append(None)
        return self.known[key]

    def _step(self, step: Step, function: Apply) -> int:
        if step not in self.known:
            self.known[step] = len(self.steps)
            self.steps.append(step)
            self.functions.append(function)
        return self.known[step]

    def finish(self, root: int) -> tuple[Tape, tuple[Leaf, ...]]:
        """Drop what the root does not read, and number the rest in order of first use."""
        needed = {root}
        for index in range(root, -1, -1):
            if index in needed:
                needed.update(self.steps[index][2])
        order = sorted(needed)
        number = {old: new for new, old in enumerate(order)}
        steps = tuple((n, s, tuple(number[i] for i in a), shape) for n, s, a, shape in (self.steps[i] for i in order))
        functions = tuple(self.functions[i] for i in order)
        return Tape(steps, number[root], functions), tuple(self.leaves[i] for i in order if i in self.leaves)
