"""What is needed of a template to evaluate it, whatever the records: made once, when it is first needed."""

from __future__ import annotations

from functools import cached_property
from weakref import WeakKeyDictionary

import scipy.sparse as sp

from dpconvex.core.expression import Expression, Variable
from dpconvex.core.parameter_space import Space
from dpconvex.evaluation.programs import Lowered, entries_matrix
from dpconvex.geometry.quadratics import Quadratic, quadratic
from dpconvex.language.template import Template


class LoweredTemplate:
    """Losses and regularizer as programs."""

    def __init__(self, template: Template, space: Space) -> None:
        self._losses, self._space, self._regularizer = template.losses, space, template.regularizer
        self._public: dict[Expression, Lowered | Quadratic] = {}

    @cached_property
    def losses(self) -> tuple[Lowered, ...]:
        """The loss of each combination of discrete fields."""
        return tuple(Lowered.build(loss, self._space) for loss in self._losses)

    def public(self, part: Expression | None = None) -> Lowered | Quadratic:
        """Return the regularizer, or what is left of it without its kinks."""
        part = self._regularizer if part is None else part
        if part not in self._public:
            self._public[part] = quadratic(part, self._space) or Lowered.build(part, self._space)
        return self._public[part]

    @cached_property
    def lift(self) -> sp.csr_array:
        """See `entries_matrix`."""
        return entries_matrix(self._space)


_lowered: WeakKeyDictionary[Template, tuple[tuple[Variable, ...], LoweredTemplate]] = WeakKeyDictionary()


def lower_template(template: Template, space: Space) -> LoweredTemplate:
    """Lower the losses and the regularizer of a template, once."""
    order = tuple(block.variable for block in space.blocks.values())
    known = _lowered.get(template)
    if known is None or known[0] != order:
        known = (order, LoweredTemplate(template, space))
        _lowered[template] = known
    return known[1]
