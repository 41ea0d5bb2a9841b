"""Measures a case: numbers that another machine must find too."""

import math
from functools import partial
from itertools import product

import numpy as np
from golden_cases import COLUMNS, GALLERY, Fit

import dpconvex as dp
from dpconvex.fitting.verify import analyse
from dpconvex.mechanisms.plans import Automatic
from dpconvex.optim import backend as backends
from dpconvex.optim.problem import Problem

# Certified distance from the exact minimiser, in the Euclidean norm of the parameters; the regularization where a case says
# nothing else, so that minima are determined to that distance on every machine; the fixed directions whose inner products stand
# for a vector of parameters.
TOLERANCE, REGULARIZATION, PROBES = 1e-7, 0.01, 3

CONSTANTS = (
    *("gradient_bound", "sensitivity", "strong_convexity", "added", "hessian_bound", "jacobian_epsilon"),
    *("noise_epsilon", "noise_dimension", "noise_scale", "expected_noise", "predicted_risk", "tolerance"),
)
CHOICE = ("mechanism", "added", "strong_convexity", "noise_scale", "predicted_risk")

# Certificates of the gallery need no data.  The quadratic is given, so that every constant is determined to rounding; it is
# small, so that curvature costs something.
GALLERY_FEATURES, GALLERY_SIZE, GALLERY_EPSILON, ADDED = 3, 100, 3.0, 2.0
OBJECTIVE, OUTPUT = (partial(kind, added=ADDED) for kind in (dp.ObjectivePerturbation, dp.OutputPerturbation))
MECHANISMS = {
    0.0: (None, OBJECTIVE("gamma"), OBJECTIVE("matrix"), OUTPUT("gamma")),
    1e-6: (None, OBJECTIVE("gaussian"), OUTPUT("gaussian"), dp.NoisyGradientDescent()),
}
# Problems that only statistics are released for.
STATISTICS = {"least_squares_classifier", "linear_regression"}


def constants(certificate, given=False):
    """Return every number of a certificate; `given` if the added quadratic is."""
    found = {"mechanism": certificate.mechanism} | ({"given": True} if given else {})
    found |= {name: getattr(certificate, name) for name in CONSTANTS if getattr(certificate, name) is not None}
    found |= dict(certificate.settings)
    if certificate.cover is not None:
        found |= {f"cover_{name}": getattr(certificate.cover, name) for name in ("distance", "size", "noise_cap")}
    # The derivation as a checksum: each constant in it that moves, moves the sum of their logarithms.
    steps = [certificate.derivation]
    for step in steps:
        steps.extend(step.children)
    values = [abs(value) for step in steps for value in step.claims.values()]
    found["derivation_steps"] = len(steps)
    found["derivation_logarithms"] = sum(math.log(value) for value in values if 1e-6 < value < math.inf)
    return found


def certificates(name):
    """Return the constants of all certificates of a problem of the gallery, or the fact that there is none."""
    problem, options = GALLERY[name]
    template = dp.load(problem, features=GALLERY_FEATURES, **options)
    found = {}
    for adjacency, (delta, mechanisms) in product(("replace-one", "add-remove"), MECHANISMS.items()):
        privacy = dp.Privacy(GALLERY_EPSILON, delta, adjacency)
        if problem in STATISTICS:
            noise = "gaussian" if delta else "gamma"
            residuals = dp.SufficientStatistics(noise, weight=0.5, residuals=True)
            mechanisms = None, dp.SufficientStatistics(noise), residuals
        for mechanism in mechanisms:
            given = getattr(mechanism, "added", None) is not None
            try:
                numbers = constants(dp.verify(template, privacy, GALLERY_SIZE, mechanism or Automatic()), given)
            except (dp.NotPrivate, dp.TemplateError):  # no promise, or no step size of its own
                numbers = {"mechanism": "refused"}
            # The automatic choice is one of the others, with a quadratic that is known to fewer digits.
            short = {name: numbers[name] for name in CHOICE if name in numbers}
            case = Fit(privacy, mechanism).name + ", with residuals" * getattr(mechanism, "residuals", False)
            found[case] = short if mechanism is None else numbers
    return found


def probes(theta):
    """Return inner products of a vector with fixed unit vectors, which no vector of another direction shares."""
    directions = [np.cos(np.arange(1, len(theta) + 1) * (k + 1) + k) for k in range(PROBES)]
    return [float(theta @ d / np.linalg.norm(d)) for d in directions]


class Measured:
    """A case with its data: each method measures one group of numbers."""

    def __init__(self, case, data):
        self.case = case
        columns = {name: np.asarray(column) for name, column in COLUMNS[case.columns](data).items()}
        # Every third record is for testing; the sets that are sorted by class keep their mix that way.
        tested = np.arange(len(data.y)) % 3 == 2
        self.train, self.test = ({name: column[rows] for name, column in columns.items()} for rows in (~tested, tested))
        options = {"features": columns["x"].shape[1], "regularization": REGULARIZATION, **case.options}
        self.size, self.template = int((~tested).sum()), dp.load(case.problem, **options)
        analysis = analyse(self.template)
        form, self.kinked = analysis.form, analysis.kink is not None
        self.problem = Problem(
            **{"template": form.template, "space": form.space, "feasible": form.feasible, "size": self.size},
            batch=self.template.record.validate(self.train),
            strong_convexity=self.size * analysis.modulus,
            gradient_bound=analysis.gradient_bound,
            projector=form.projection,
        )

    def minimum(self):
        """Fit without privacy; with a subgradient of length r, the objective is ``r^2 / (2 mu)`` above its minimum at most."""
        if self.kinked:  # no first-order certificate
            return {"records": self.size}
        solution = backends.solve(self.problem, None, TOLERANCE)
        gap = self.problem.strong_convexity * solution.distance_bound**2 / 2 / self.size
        objective = self.problem.value(solution.theta) / self.size
        assert gap <= 1e-10 * abs(objective), f"{self.case.name}: the objective is certified only to {gap:.2g}"
        return {"records": self.size, "distance": TOLERANCE, "objective": objective} | self.quality(solution.theta)

    def fit(self, fit):
        """Fit privately with a seed, and say what was promised and what came out."""
        nominal = self.size if fit.privacy.adjacency == "add-remove" else None
        release = dp.solve(
            self.template, self.train, fit.privacy, fit.mechanism or Automatic(), size=nominal, seed=fit.seed
        )
        assert release.certificate is not None
        theta = self.problem.space.pack(dict(release.items()))
        found = {"seed": fit.seed, "certificate": constants(release.certificate)}
        return found | {"objective": self.problem.value(theta) / self.size} | self.quality(theta)

    def quality(self, theta):
        """Return what parameters are, and mistakes on the test records, or for other than labels the mean absolute error."""
        parameters = self.problem.space.unpack(theta)
        found = {"norm": float(np.linalg.norm(theta)), "probes": probes(theta)}
        assert self.template.predict is not None
        answer = self.template.predict(parameters, self.test["x"].astype(float))
        if self.template.record.discrete:
            return found | {"test_mistakes": int((answer != self.test["y"]).sum()), "test_records": len(self.test["y"])}
        return found | {"test_error": float(np.mean(np.abs(answer - self.test["y"]) if "y" in self.test else answer))}

    def everything(self):
        return {"minimum": self.minimum()} | {fit.name: self.fit(fit) for fit in self.case.fits}
