"""Differentially private convex learning: declared in CVXPY, proved by rules, solved, and certified.

The names below are the whole public interface.  Each is imported from its room on first use, so that
``import dpconvex`` is quick and brings in no engine or plotting library that a program does not use.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from dpconvex import errors
from dpconvex.errors import (
    BudgetExceeded,
    DomainError,
    DPConvexError,
    MissingRule,
    NotConverged,
    NotPrivate,
    TemplateError,
)

if TYPE_CHECKING:
    from dpconvex.atoms import huber_hinge
    from dpconvex.audit import Audit, audit
    from dpconvex.backends.conic import Conic
    from dpconvex.certificate import Certificate
    from dpconvex.clustering import cluster
    from dpconvex.columns import Chunks
    from dpconvex.components import Components
    from dpconvex.declared import Atom
    from dpconvex.estimators import (
        HuberSVC,
        KernelSVC,
        LargeMarginGaussian,
        LargeMarginGaussianMixture,
        LogisticRegression,
        SoftmaxRegression,
    )
    from dpconvex.falsify import Falsification, falsify
    from dpconvex.features import RandomFourierFeatures
    from dpconvex.gallery import load, problems
    from dpconvex.mechanisms.clustering import NoisyKMeans
    from dpconvex.mechanisms.cover import Cover
    from dpconvex.mechanisms.gradient_descent import NoisyGradientDescent
    from dpconvex.mechanisms.objective import ObjectivePerturbation
    from dpconvex.mechanisms.output import OutputPerturbation
    from dpconvex.mechanisms.repetitions import Repetitions
    from dpconvex.mixtures import Mixture, solve_mixture, verify_mixture
    from dpconvex.privacy import Budget, Privacy
    from dpconvex.record import Ball, Box, Choice, Record
    from dpconvex.release import Release
    from dpconvex.repeated import tune_repeated
    from dpconvex.risk import RiskBound, risk_bound
    from dpconvex.solve import minimize, solve
    from dpconvex.sweep import sweep
    from dpconvex.template import Template
    from dpconvex.tuning import tune
    from dpconvex.verify import is_private, verify

__version__ = "0.1.0"

__all__ = [
    "Atom",
    "Audit",
    "Ball",
    "Box",
    "Budget",
    "BudgetExceeded",
    "Certificate",
    "Choice",
    "Chunks",
    "Components",
    "Conic",
    "Cover",
    "DPConvexError",
    "DomainError",
    "Falsification",
    "HuberSVC",
    "KernelSVC",
    "LargeMarginGaussian",
    "LargeMarginGaussianMixture",
    "LogisticRegression",
    "MissingRule",
    "Mixture",
    "NoisyGradientDescent",
    "NoisyKMeans",
    "NotConverged",
    "NotPrivate",
    "ObjectivePerturbation",
    "OutputPerturbation",
    "Privacy",
    "RandomFourierFeatures",
    "Record",
    "Release",
    "Repetitions",
    "RiskBound",
    "SoftmaxRegression",
    "Template",
    "TemplateError",
    "__version__",
    "audit",
    "cluster",
    "errors",
    "falsify",
    "huber_hinge",
    "is_private",
    "load",
    "minimize",
    "problems",
    "risk_bound",
    "solve",
    "solve_mixture",
    "sweep",
    "tune",
    "tune_repeated",
    "verify",
    "verify_mixture",
]

# Public name -> the module that defines it.
_HOMES = {
    "Atom": "declared",
    "Audit": "audit",
    "Ball": "record",
    "Box": "record",
    "Budget": "privacy",
    "Certificate": "certificate",
    "Choice": "record",
    "Chunks": "columns",
    "Components": "components",
    "Conic": "backends.conic",
    "Cover": "mechanisms.cover",
    "Falsification": "falsify",
    "Mixture": "mixtures",
    "NoisyGradientDescent": "mechanisms.gradient_descent",
    "NoisyKMeans": "mechanisms.clustering",
    "ObjectivePerturbation": "mechanisms.objective",
    "OutputPerturbation": "mechanisms.output",
    "Privacy": "privacy",
    "RandomFourierFeatures": "features",
    "Record": "record",
    "Release": "release",
    "RiskBound": "risk",
    "Repetitions": "mechanisms.repetitions",
    "Template": "template",
    "audit": "audit",
    "cluster": "clustering",
    "falsify": "falsify",
    "huber_hinge": "atoms",
    "is_private": "verify",
    "load": "gallery",
    "minimize": "solve",
    "problems": "gallery",
    "risk_bound": "risk",
    "solve": "solve",
    "solve_mixture": "mixtures",
    "sweep": "sweep",
    "verify": "verify",
    "verify_mixture": "mixtures",
    "tune": "tuning",
    "tune_repeated": "repeated",
    "HuberSVC": "estimators",
    "KernelSVC": "estimators",
    "LargeMarginGaussian": "estimators",
    "LargeMarginGaussianMixture": "estimators",
    "LogisticRegression": "estimators",
    "SoftmaxRegression": "estimators",
}


def _resolve(name: str) -> object:
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


class _Package(ModuleType):
    """The package's own type: its public functions keep their names although some files are named after them.

    Importing the file ``dpconvex/solve.py`` makes Python bind the *module* to ``dpconvex.solve``; what that name
    promises is the function.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, ModuleType) and name in _HOMES:
            value = _resolve(name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; public names: {', '.join(__all__)}")
    value = _resolve(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
