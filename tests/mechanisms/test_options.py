"""Options of mechanisms that are out of range are refused by name."""

import math
from typing import Any

import pytest

import dpconvex as dp

CASES: dict[Any, list[dict[str, Any]]] = {
    dp.NoisyKMeans: [{"rounds": 1}, {"rounds": 2.5}, {"rounds": True}, {"directions": -1}],
    dp.OutputPerturbation: [{"noise": "matrix"}, {"added": -1.0}, {"smoothing": math.nan}],
    dp.ObjectivePerturbation: [{"noise": "laplace"}, {"added": -1.0}, {"reference_norm": True}],
    dp.PrivateWhitening: [{"share": 0.0}, {"share": 1.0}, {"share": True}, {"field": 3}],
    dp.Cover: [{"share": 0.0}, {"share": 1.0}, {"tolerance": 0.0}, {"tolerance": math.inf}],
    dp.Repetitions: [
        *({"mean": 1.0}, {"mean": math.nan}, {"mean": True}, {"shape": -1.0}, {"shape": math.inf}),
        *({"share": 0.0}, {"share": 1.0}, {"share": "0.1"}),
    ],
    dp.NoisyGradientDescent: [
        *({"steps": 0}, {"steps": 2.5}, {"steps": True}, {"step_size": -1.0}, {"clip": 0.0}),
        *({"clip": math.inf}, {"momentum": 0.5}, {"clip": 1.0, "momentum": 1.0}),
        {"clip": 1.0, "sampling": 1.0},
    ],
}


@pytest.mark.parametrize(("kind", "options"), [(kind, one) for kind, many in CASES.items() for one in many])
def test_bad_options_are_refused(kind: Any, options: dict[str, Any]) -> None:
    with pytest.raises(dp.TemplateError, match=rf"{kind.__name__}.*{list(options)[-1]}"):
        kind(**options)
