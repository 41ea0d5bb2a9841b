"""The public names, each with the module that defines it."""

from . import datasets as datasets, errors as errors, interop as interop, plots as plots
from .auditing.audit import audit as audit
from .auditing.falsify import Falsification as Falsification, falsify as falsify
from .auditing.report import Audit as Audit
from .core.declared_atoms import Atom as Atom
from .core.record_domains import Ball as Ball, Box as Box, Choice as Choice
from .errors import (
    BudgetExceeded as BudgetExceeded,
    DomainError as DomainError,
    DPConvexError as DPConvexError,
    MissingRule as MissingRule,
    NotConverged as NotConverged,
    NotPrivate as NotPrivate,
    PrivacyWarning as PrivacyWarning,
    TemplateError as TemplateError,
    WorkersLost as WorkersLost,
)
from .estimators.additive import AdditiveClassifier as AdditiveClassifier, AdditiveRegressor as AdditiveRegressor
from .estimators.classifiers import (
    HuberSVC as HuberSVC,
    KernelSVC as KernelSVC,
    LargeMarginGaussian as LargeMarginGaussian,
    LargeMarginGaussianMixture as LargeMarginGaussianMixture,
    LeastSquaresClassifier as LeastSquaresClassifier,
    LinearSVC as LinearSVC,
    LogisticRegression as LogisticRegression,
    MetricLearner as MetricLearner,
    OrdinalRegressor as OrdinalRegressor,
    SoftmaxRegression as SoftmaxRegression,
)
from .estimators.own import PrivateEstimator as PrivateEstimator
from .estimators.regressors import (
    HuberRegressor as HuberRegressor,
    LinearRegression as LinearRegression,
    QuantileRegressor as QuantileRegressor,
    Ridge as Ridge,
)
from .estimators.tables import SchemaEncoder as SchemaEncoder
from .evaluation.devices import devices as devices
from .features.groups import GroupNormalizer as GroupNormalizer
from .features.preconditioner import PublicPreconditioner as PublicPreconditioner
from .features.scattering import ScatteringFeatures as ScatteringFeatures
from .features.splines import SplineEncoder as SplineEncoder
from .language.columns import ChunkedColumn as ChunkedColumn
from .language.partitions import Partitions as Partitions
from .language.privacy import Privacy as Privacy
from .language.record import Record as Record
from .language.schema import Schema as Schema
from .language.schema_columns import (
    Boolean as Boolean,
    Categorical as Categorical,
    Date as Date,
    Numeric as Numeric,
    Ordered as Ordered,
)
from .language.template import Template as Template, huber_hinge as huber_hinge
from .learners.clustering import ComponentCenters as ComponentCenters, cluster as cluster
from .learners.evaluate import Evaluation as Evaluation, evaluate as evaluate
from .learners.fourier_features import RandomFourierFeatures as RandomFourierFeatures
from .learners.mixtures import Mixture as Mixture, solve_mixture as solve_mixture, verify_mixture as verify_mixture
from .learners.problem_files import load as load, problems as problems
from .learners.sweep import Calibration as Calibration, calibrate as calibrate, sweep as sweep
from .learners.tune import tune as tune, tune_repeated as tune_repeated
from .mechanisms.adaptive_steps import AdaptiveSteps as AdaptiveSteps
from .mechanisms.certificate import Certificate as Certificate
from .mechanisms.gradient_descent import NoisyGradientDescent as NoisyGradientDescent
from .mechanisms.noisy_kmeans import NoisyKMeans as NoisyKMeans
from .mechanisms.objective_perturbation import ObjectivePerturbation as ObjectivePerturbation
from .mechanisms.output_perturbation import OutputPerturbation as OutputPerturbation
from .mechanisms.private_selection import Repetitions as Repetitions
from .mechanisms.private_whitening import PrivateWhitening as PrivateWhitening
from .mechanisms.residual_noise import ResidualNoise as ResidualNoise
from .mechanisms.sufficient_statistics import SufficientStatistics as SufficientStatistics
from .release.baseline import solve_without_privacy as solve_without_privacy
from .release.bounded import (
    PrivateBound as PrivateBound,
    solve_bounded as solve_bounded,
    verify_bounded as verify_bounded,
)
from .release.budget import Budget as Budget
from .release.intervals import intervals as intervals
from .release.release import Release as Release
from .release.solve import solve as solve, statistics as statistics
from .release.statistics import Coefficients as Coefficients, Statistics as Statistics, coefficients as coefficients
from .release.verify import is_private as is_private, verify as verify
from .solvers.conic import ConicSolver as ConicSolver

__version__: str
